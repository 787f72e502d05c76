"""Text to token ids; as a command: train the tokenizer that all clients share.

``python -m common.data.text TRAIN.parquet tokenizer.json``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from common.data.extras import needs_extra
from common.data.spec import PADDING_ID, VOCABULARY

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE: Final = "tokenizer.json"
"""Name of the tokenizer's file in, or one above, a folder with text."""

COMMAND: Final = f"python -m common.data.text TRAIN.parquet {FILE}"

PADDING, UNKNOWN, CLASSIFICATION = "[PAD]", "[UNK]", "[CLS]"
_CHUNK: Final = 4096


def train_tokenizer(texts: Sequence[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Train a tokenizer; equal texts give an equal tokenizer.

    Lower-cased byte-level byte-pair encoding: no text is unknown to it, and, unlike
    WordPiece of the same library, its training does not depend on the order of a hash
    table. A text begins with ``[CLS]``, whose place is what the network classifies.

    Parameters
    ----------
    texts
        Training texts.
    vocabulary
        Upper bound of the number of tokens.
    """
    with needs_extra("text"):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
        from tokenizers.processors import TemplateProcessing
        from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.train_from_iterator(
        texts,
        BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[PADDING, UNKNOWN, CLASSIFICATION],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = TemplateProcessing(
        single=f"{CLASSIFICATION} $A",
        special_tokens=[(CLASSIFICATION, tokenizer.token_to_id(CLASSIFICATION))],
    )
    return tokenizer


def load_tokenizer(file: Path, vocabulary: int = VOCABULARY) -> Tokenizer:
    """Load a tokenizer and check that the network can use it.

    Raises
    ------
    ValueError
        If the file is no tokenizer, or has too many tokens, another padding id than 0,
        or does not start a text with ``[CLS]``.
    """
    with needs_extra("text"):
        from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises Exception itself.
        raise ValueError(
            f"{file} is not a tokenizer ({error}): make one by {COMMAND}"
        ) from error
    size = tokenizer.get_vocab_size()
    if size > vocabulary:
        raise ValueError(f"{file} has {size} tokens, the network takes {vocabulary}")
    if tokenizer.token_to_id(PADDING) != PADDING_ID:
        raise ValueError(
            f"{file}: {PADDING} must have the id {PADDING_ID}; make one by {COMMAND}"
        )
    if tokenizer.encode("a").tokens[:1] != [CLASSIFICATION]:
        raise ValueError(
            f"{file} does not begin a text with {CLASSIFICATION}, whose place is what "
            f"the network classifies; make one by {COMMAND}"
        )
    return tokenizer


def tokenize(
    texts: Sequence[str], tokenizer: Tokenizer, out: npt.NDArray[np.int32]
) -> None:
    """Write token ids of N texts to an array (N, L), cut or padded with 0 to L."""
    length = out.shape[1]
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    out[:] = 0
    rows = iter(out)
    for start in range(0, len(texts), _CHUNK):
        for encoding in tokenizer.encode_batch(list(texts[start : start + _CHUNK])):
            ids = encoding.ids
            next(rows)[: len(ids)] = ids


def main(arguments: Sequence[str] | None = None) -> None:
    """Train a tokenizer from Parquet files with a column ``text``."""
    from common.data.files import Part
    from common.data.read import read_part

    parser = argparse.ArgumentParser(
        prog="python -m common.data.text",
        description="Train the tokenizer that all clients with text share.",
    )
    parser.add_argument("train", nargs="+", type=Path, help="Parquet files of texts")
    parser.add_argument("tokenizer", type=Path, help=f"file to write, {FILE}")
    options = parser.parse_args(arguments)
    part = Part("train", Path(), "Parquet", tuple(options.train))
    tokenizer = train_tokenizer(read_part(part, "text").examples)
    tokenizer.save(str(options.tokenizer))
    print(f"{options.tokenizer}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
