"""Read the examples and labels of a part as they stand in its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from common.data.files import Part

_EXAMPLE_COLUMNS: Final = {"image": ("img", "image"), "text": ("text",)}
_COLUMN_TYPES: Final = {
    "image": ("binary", "large_binary", "binary_view"),
    "text": ("string", "large_string", "string_view"),
}
_LABEL_COLUMNS: Final = ("label", "labels", "fine_label")
_IMAGE_ARRAYS: Final = ("images", "x")
_LABEL_ARRAYS: Final = ("labels", "y")


@dataclass(frozen=True, slots=True)
class RawPart:
    """Examples and labels before decoding.

    Parameters
    ----------
    examples
        Images as encoded bytes, as path of a file or as uint8 array (height, width) or
        (height, width, 3); texts as str.
    labels
        Whole numbers or names of classes, one per example.
    origin
        Where they come from, for messages.
    """

    examples: Sequence[Any]
    labels: Sequence[Any]
    origin: str


def read_part(part: Part, kind: Literal["image", "text"]) -> RawPart:
    """Read one part of a data set.

    Raises
    ------
    ValueError
        If a file cannot be read, lacks a column or an array, or the part is empty.
    """
    if kind == "text" and part.format != "Parquet":
        raise ValueError(f"{part}: text must come as Parquet with columns text, label")
    examples: list[Any] = []
    labels: list[Any] = []
    if part.format == "image folder":
        examples, labels = list(part.files), list(part.class_names)
    for file in part.files if part.format != "image folder" else ():
        more_examples, more_labels = read_file(file, kind)
        if more_labels is None:
            wanted = _LABEL_COLUMNS if part.format == "Parquet" else _LABEL_ARRAYS
            raise ValueError(
                f"{file} has no labels, expected one of {', '.join(wanted)}"
            )
        examples += more_examples
        labels += more_labels
    if not examples:
        raise ValueError(
            f"{part} is empty: every client needs at least one example there"
        )
    return RawPart(examples, labels, str(part))


def read_file(
    file: Path, kind: Literal["image", "text"]
) -> tuple[list[Any], list[Any] | None]:
    """Read a ``.parquet`` or ``.npz`` file: its examples, and its labels if any.

    Raises
    ------
    ValueError
        The file cannot be read, or lacks the column or array of the examples.
    """
    if file.suffix == ".npz":
        return _read_npz(file)
    return _read_parquet(file, kind)


def _read_parquet(
    file: Path, kind: Literal["image", "text"]
) -> tuple[list[Any], list[Any] | None]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        source = pq.ParquetFile(file)
        names = source.schema_arrow.names
        example = _pick(file, _EXAMPLE_COLUMNS[kind], names)
        label = next((name for name in _LABEL_COLUMNS if name in names), None)
        table = source.read([example] if label is None else [example, label])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} is not readable as Parquet: {error}") from error
    column = table[example]
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        # The image feature of Hugging Face datasets: struct {bytes, path}.
        column = pc.struct_field(column, "bytes")
    if str(column.type) not in _COLUMN_TYPES[kind]:
        raise ValueError(
            f"{file}: column {example!r} is {column.type}, expected "
            f"{'text' if kind == 'text' else 'encoded images (PNG, JPEG) as bytes'}"
        )
    columns = {example: column}
    if label is not None:
        columns[label] = table[label]
        if pa.types.is_nested(table[label].type):
            raise ValueError(
                f"{file}: column {label!r} is {table[label].type}, expected one whole "
                "number or class name per row"
            )
    for name, values in columns.items():
        if values.null_count:
            row = values.is_null().to_pylist().index(True)
            raise ValueError(f"{file}: column {name!r} has no value in row {row}")
    labels = None if label is None else table[label].to_pylist()
    return column.to_pylist(), labels


def _read_npz(file: Path) -> tuple[list[Any], list[Any] | None]:
    try:
        with np.load(file, allow_pickle=False) as archive:
            names = archive.files
            known = {*_IMAGE_ARRAYS, *_LABEL_ARRAYS}.intersection(names)
            arrays = {name: archive[name] for name in known}
    except Exception as error:  # Its kind depends on what the file really is.
        raise ValueError(f"{file} is not readable as .npz: {error}") from error
    images = arrays[_pick(file, _IMAGE_ARRAYS, names)]
    labels = next((arrays[n] for n in _LABEL_ARRAYS if n in arrays), None)
    if images.dtype != np.uint8:
        raise ValueError(
            f"{file}: images are {images.dtype}, expected uint8 with values 0 to 255"
        )
    if labels is not None and labels.shape != (len(images),):
        raise ValueError(
            f"{file}: {len(images)} images, but labels of shape {labels.shape}: "
            "expected one label per image"
        )
    examples = list(_channels_last(file, images))
    return examples, None if labels is None else labels.tolist()


def _channels_last(file: Path, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Bring images to (N, H, W) where they are grey and (N, H, W, 3) elsewhere."""
    if images.ndim == 3:
        return images
    if images.ndim == 4 and images.shape[3] not in (1, 3):
        images = np.moveaxis(images, 1, 3)
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise ValueError(
            f"{file}: images have shape {images.shape}, expected (N, height, width), "
            "(N, height, width, channels) or (N, channels, height, width) with 1 or 3 "
            "channels"
        )
    return images[..., 0] if images.shape[3] == 1 else images


def _pick(file: Path, wanted: tuple[str, ...], present: Sequence[str]) -> str:
    """Return the first of the wanted names that is present."""
    for name in wanted:
        if name in present:
            return name
    raise ValueError(
        f"{file} holds {', '.join(present)}, expected one of {', '.join(wanted)}"
    )
