from __future__ import annotations

import numpy as np
import pytest
from extras import REASON

from common.data import text

pytest.importorskip("tokenizers", reason=REASON)

from tokenizers import Tokenizer, models, pre_tokenizers, processors

TEXTS = ["The cat sat on the mat.", "A dog barked at the cat", "Über 100 Katzen: 猫"]


@pytest.fixture(scope="module")
def tokenizer():
    return text.train_tokenizer(TEXTS, vocabulary=280)


def tokens(texts, tokenizer, length=40):
    out = np.full((len(texts), length), -1, np.int32)
    text.tokenize(texts, tokenizer, out)
    return out


def test_text_starts_with_cls_and_ends_with_zeros(tokenizer):
    out = tokens(TEXTS, tokenizer)
    assert (out[:, 0] == tokenizer.token_to_id("[CLS]")).all()
    assert tokenizer.token_to_id("[PAD]") == 0
    lengths = (out != 0).sum(axis=1)
    for row, length in zip(out, lengths, strict=True):
        assert (row[:length] != 0).all()
    words = "".join(map(tokenizer.id_to_token, out[0][1 : lengths[0]]))
    assert words == "ĠtheĠcatĠsatĠonĠtheĠmat."


def test_text_is_cut_to_length_with_cls_kept(tokenizer):
    long = tokens([" ".join(TEXTS)], tokenizer, length=40)
    short = tokens([" ".join(TEXTS)], tokenizer, length=7)
    np.testing.assert_array_equal(short[0], long[0, :7])
    assert (short != 0).all()


def test_case_does_not_matter_and_nothing_is_unknown(tokenizer):
    out = tokens(["THE CAT ☃", "the cat ☃"], tokenizer)
    np.testing.assert_array_equal(out[0], out[1])
    assert tokenizer.token_to_id("[UNK]") not in out


def test_empty_text_is_cls_alone(tokenizer):
    out = tokens([""], tokenizer)
    assert out[0, 0] == tokenizer.token_to_id("[CLS]")
    assert (out[0, 1:] == 0).all()


def test_vocabulary_is_bounded(tokenizer):
    assert tokenizer.get_vocab_size() == 280


def test_many_texts_keep_their_order(tokenizer, monkeypatch):
    monkeypatch.setattr(text, "_CHUNK", 2)
    texts = [f"cat {i}" for i in range(5)]
    out = tokens(texts, tokenizer)
    for row, one in zip(out, texts, strict=True):
        np.testing.assert_array_equal(row, tokens([one], tokenizer)[0])


def test_command_makes_a_file_that_loads(tmp_path, write_parquet, capsys, tokenizer):
    a = write_parquet(tmp_path / "a.parquet", text=TEXTS[:2], label=[0, 1])
    b = write_parquet(tmp_path / "b.parquet", text=TEXTS[2:], label=[0])
    file = tmp_path / "tokenizer.json"
    text.main([str(a), str(b), str(file)])
    loaded = text.load_tokenizer(file)
    assert f"{loaded.get_vocab_size()} tokens" in capsys.readouterr().out
    text.train_tokenizer(TEXTS).save(str(tmp_path / "same.json"))
    assert file.read_bytes() == (tmp_path / "same.json").read_bytes()


def word_tokenizer(vocabulary, cls=True):
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if cls:
        special = [("[CLS]", vocabulary["[CLS]"])]
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A", special_tokens=special
        )
    return made


def test_foreign_tokenizer_may_have_other_ids(tmp_path):
    made = word_tokenizer({"[PAD]": 0, "a": 1, "[UNK]": 2, "[CLS]": 3})
    made.enable_padding(length=3)
    made.save(str(tmp_path / "t.json"))
    loaded = text.load_tokenizer(tmp_path / "t.json")
    assert tokens(["a b"], loaded, length=5).tolist() == [[3, 1, 2, 0, 0]]


@pytest.mark.parametrize(
    ("vocabulary", "cls", "limit", "message"),
    [
        ({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2}, True, 2, "has 3 tokens, the network"),
        ({"[PAD]": 1, "[UNK]": 0, "[CLS]": 2}, True, 9, r"\[PAD\] must have the id 0"),
        ({"[PAD]": 0, "[UNK]": 1}, False, 9, r"does not begin a text with \[CLS\]"),
    ],
)
def test_unusable_tokenizer_is_refused(tmp_path, vocabulary, cls, limit, message):
    word_tokenizer(vocabulary, cls).save(str(tmp_path / "t.json"))
    with pytest.raises(ValueError, match=message):
        text.load_tokenizer(tmp_path / "t.json", limit)


def test_file_that_is_no_tokenizer_names_the_command(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ValueError, match=r"python -m common\.data\.text"):
        text.load_tokenizer(tmp_path / "t.json")
