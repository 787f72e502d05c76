from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from extras import needs_datasets
from PIL import Image

from common.data import DataSpec
from common.data.inputs import decode_batches, find_inputs
from common.settings import DataSettings

SPEC = DataSpec("image", (3, 4, 4), 3)
TEXT = DataSpec("text", (8,), 3, 600)
NUTS = DataSettings(
    dataset="custom",
    class_names="bolt,nut,screw",
    num_classes=3,
    image_size=4,
    channels=3,
)


def picture(path: Path, value: int, size: int = 4, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    grey = Image.new("L", (size, size), value)
    grey.convert(mode).save(path)
    return path


def pixels(inputs: Any, batch_size: int = 2) -> list[int]:
    batches = list(decode_batches(inputs, SPEC, NUTS, batch_size))
    assert all(batch.shape[1:] == SPEC.shape for batch in batches)
    return [int(image[0, 0, 0]) for batch in batches for image in batch]


def test_folder_with_classes(tmp_path: Path) -> None:
    picture(tmp_path / "nut" / "b10.png", 10)
    picture(tmp_path / "nut" / "b9.png", 9)
    picture(tmp_path / "bolt" / "x.png", 1)
    (tmp_path / "notes.txt").write_text("no image")
    found = find_inputs([tmp_path], SPEC, NUTS)
    assert [Path(name).name for name in found.names] == ["x.png", "b9.png", "b10.png"]
    assert found.targets is not None
    assert found.targets.tolist() == [0, 1, 1]
    assert pixels(found) == [1, 9, 10]


def test_folder_without_classes_and_single_files(tmp_path: Path) -> None:
    picture(tmp_path / "camera" / "1.png", 1)
    single = picture(tmp_path / "other" / "nut" / "2.png", 2, size=9)  # is resized
    found = find_inputs([tmp_path / "camera", single], SPEC, NUTS)
    assert found.targets is None
    assert pixels(found) == [1, 2]


@pytest.mark.parametrize("labelled", [True, False])
def test_npz_and_parquet(tmp_path: Path, labelled: bool) -> None:
    images = np.full((3, 4, 4, 3), [[[[7]]], [[[8]]], [[[9]]]], np.uint8)
    labels = {"labels": np.array([2, 0, 1])} if labelled else {}
    np.savez(tmp_path / "a.npz", images=images, **labels)
    columns: dict[str, Any] = {
        "img": [picture(tmp_path / "p.png", v).read_bytes() for v in (3, 4)]
    }
    if labelled:
        columns["label"] = ["screw", "nut"]
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    found = find_inputs([tmp_path / "a.npz", tmp_path / "b.parquet"], SPEC, NUTS)
    assert pixels(found) == [7, 8, 9, 3, 4]
    assert found.names[0] == f"{tmp_path / 'a.npz'}:0"
    if labelled:
        assert found.targets is not None
        assert found.targets.tolist() == [2, 0, 1, 2, 1]
    else:
        assert found.targets is None


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    picture(tmp_path / "1.png", 1)
    broken = tmp_path / "2.png"
    broken.write_bytes((tmp_path / "1.png").read_bytes()[:40])
    with pytest.raises(ValueError, match=r"2\.png cannot be decoded"):
        pixels(find_inputs([tmp_path], SPEC, NUTS))


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    good = picture(tmp_path / "1.png", 1).read_bytes()
    table = pa.table({"image": [good, good, good[:30]]})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x\.parquet:2, image 0 cannot be decoded"):
        pixels(find_inputs([tmp_path / "x.parquet"], SPEC, NUTS))


def test_wrong_channels_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 4, 4, 2), np.uint8))
    with pytest.raises(ValueError, match=r"x\.npz: images have shape \(2, 4, 2, 4\)"):
        find_inputs([tmp_path / "x.npz"], SPEC, NUTS)


def test_what_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    for path, reason in (
        (tmp_path / "absent", "absent does not exist"),
        (tmp_path / "a.txt", "is no image: name an image, a folder"),
        (tmp_path, "nothing to predict in"),
    ):
        with pytest.raises(ValueError, match=reason):
            find_inputs([path], SPEC, NUTS)
    with pytest.raises(ValueError, match=r"is no text: name a \.txt file"):
        find_inputs([picture(tmp_path / "1.png", 1)], TEXT, NUTS)


@needs_datasets
def test_texts(tmp_path: Path) -> None:
    from common.data.text import train_tokenizer

    lines = ["a bolt", "a nut", "two nuts and a bolt"]
    tokenizer = train_tokenizer(lines, 600)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    table = pa.table({"text": lines[:1], "label": [0]})
    pq.write_table(table, tmp_path / "b.parquet")
    found = find_inputs([tmp_path / "a.txt", tmp_path / "b.parquet"], TEXT, NUTS)
    assert found.names[2] == f"{tmp_path / 'a.txt'}:3"
    assert found.targets is None  # only one of them has a label
    file = tmp_path / "tokenizer.json"
    batches = list(decode_batches(found, TEXT, NUTS, 3, file))
    assert [batch.shape for batch in batches] == [(3, 8), (1, 8)]
    assert batches[0][0].tolist() == batches[1][0].tolist()
    assert batches[0][2].tolist()[:5] == tokenizer.encode(lines[2]).ids[:5]
