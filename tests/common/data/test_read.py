from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from common.data.files import find_parts
from common.data.read import read_part


def read(folder, kind="image"):
    return read_part(find_parts(folder)[0], kind)


def test_hugging_face_images_of_several_shards(tmp_path, write_images):
    write_images(tmp_path / "train-0.parquet", [3, 1])
    write_images(tmp_path / "train-1.parquet", [2], seed=1)
    part = read(tmp_path)
    assert part.labels == [3, 1, 2]
    assert [e[1:4] for e in part.examples] == [b"PNG"] * 3
    assert part.examples[0] != part.examples[2]


@pytest.mark.parametrize("label", ["label", "labels", "fine_label"])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_raw_bytes_and_names_of_the_label(tmp_path, write_parquet, label, kind):
    columns = {"image": pa.array([b"a", b"b"], kind), label: ["cat", "dog"]}
    write_parquet(tmp_path / "train.parquet", coarse_label=[0, 0], **columns)
    part = read(tmp_path)
    assert (part.examples, part.labels) == ([b"a", b"b"], ["cat", "dog"])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text(tmp_path, write_parquet, kind):
    texts = pa.array(["one", "two"], kind)
    labels = pa.array(["x", "y"]).dictionary_encode()
    write_parquet(tmp_path / "train.parquet", text=texts, label=labels)
    part = read(tmp_path, "text")
    assert (part.examples, part.labels) == (["one", "two"], ["x", "y"])


@pytest.mark.parametrize(
    ("kind", "columns", "message"),
    [
        ("image", {"pixels": [b"a"], "label": [0]}, "holds pixels, label, expected one"
         " of img, image"),
        ("image", {"img": [b"a"], "class": [0]}, "expected one of label, labels"),
        ("image", {"img": ["a.png"], "label": [0]}, "'img' is string, expected enc"),
        ("text", {"text": [5], "label": [0]}, "'text' is int64, expected text"),
        ("image", {"img": [b"a", b"b"], "label": [0, None]}, "'label' has no value in"
         " row 1"),
        ("image", {"img": [b"a"], "label": [[0, 1]]}, "expected one whole number"),
    ],
)  # fmt: skip
def test_unusable_columns_are_named(tmp_path, write_parquet, kind, columns, message):
    write_parquet(tmp_path / "train.parquet", **columns)
    with pytest.raises(ValueError, match=message):
        read(tmp_path, kind)


def test_image_that_is_only_a_path_is_refused(tmp_path, write_parquet):
    rows = pa.array(
        [{"bytes": None, "path": "a.png"}],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    write_parquet(tmp_path / "train.parquet", img=rows, label=[0])
    with pytest.raises(ValueError, match="'img' has no value in row 0"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["train.parquet", "train.npz"])
def test_broken_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"no such format")
    with pytest.raises(ValueError, match=rf"{name} is not readable as"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["train.parquet", "train"])
def test_empty_part_is_refused(tmp_path, write_parquet, name):
    if name == "train":
        (tmp_path / "train" / "cat").mkdir(parents=True)
    else:
        empty = {"img": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}
        write_parquet(tmp_path / name, **empty)
    with pytest.raises(ValueError, match=r"\(train, .*\) is empty"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (("images", "labels"), lambda x: x),
        (("x", "y"), lambda x: x.transpose(0, 3, 1, 2)),
    ],
)
def test_npz_with_channels_last_or_first(tmp_path, names, layout):
    images = np.arange(2 * 5 * 4 * 3, dtype=np.uint8).reshape(2, 5, 4, 3)
    arrays = dict(zip(names, (layout(images), np.array([1, 0])), strict=True))
    np.savez(tmp_path / "train.npz", **arrays)
    part = read(tmp_path)
    np.testing.assert_array_equal(np.stack(part.examples), images)
    assert part.labels == [1, 0]


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 5, 4, 1), (2, 1, 5, 4)])
def test_npz_with_grey_images_and_text_labels(tmp_path, shape):
    images = np.arange(40, dtype=np.uint8)
    labels = np.array(["a", "b"])
    np.savez(tmp_path / "train.npz", images=images.reshape(shape), labels=labels)
    part = read(tmp_path)
    np.testing.assert_array_equal(np.stack(part.examples), images.reshape(2, 5, 4))
    assert part.labels == ["a", "b"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 4, 4)), "y": [0, 1]}, "float64, expected uint8"),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": [0]}, "2 images, but labels of"),
        ({"x": np.zeros((2, 4, 4, 4), np.uint8), "y": [0, 1]}, r"shape \(2, 4, 4, 4\)"),
        ({"pixels": [0], "y": [0]}, "holds pixels, y, expected one of images, x"),
    ],
)
def test_unusable_npz_says_what_is_expected(tmp_path, arrays, message):
    np.savez(tmp_path / "train.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read(tmp_path)


def test_text_needs_parquet(tmp_path):
    np.savez(tmp_path / "train.npz", x=["a"], y=[0])
    with pytest.raises(ValueError, match="text must come as Parquet"):
        read(tmp_path, "text")
