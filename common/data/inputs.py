"""Samples to predict: images, arrays or texts, with or without labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.data.class_names import CLASS_NAMES
from common.data.files import IMAGE_SUFFIXES, natural_key
from common.data.images import decode_images
from common.data.labels import class_indices
from common.data.read import read_file
from common.data.spec import DataSpec, given_class_names
from common.settings import DataSettings

_IMAGES = "an image, a folder of images, .npz or .parquet"
_TEXTS = "a .txt file with one text per line, or .parquet"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Samples as they stand in files.

    Parameters
    ----------
    examples
        Images as file, encoded bytes or array; texts as str.
    names
        What to call each: its path, or its file and row.
    targets
        Class indices (N,) int64, None where not every sample has a label.
    """

    examples: Sequence[Any]
    names: Sequence[str]
    targets: npt.NDArray[np.int64] | None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.examples)


def class_names(settings: DataSettings) -> tuple[str, ...]:
    """Return the names of a run's classes in order; empty where none are known."""
    return given_class_names(settings) or CLASS_NAMES[settings.dataset]


def find_inputs(
    paths: Sequence[Path], spec: DataSpec, settings: DataSettings
) -> Inputs:
    """Read what is to be predicted.

    Parameters
    ----------
    paths
        Images, folders of images, ``.npz`` or ``.parquet`` files; for text ``.txt``
        files with one text per line or ``.parquet`` files. A folder is searched with
        the folders in it; where an image's folder has the name of a class, that is its
        label.
    spec, settings
        Of the run.

    Raises
    ------
    ValueError
        A file is missing, unreadable or of the wrong kind, or there is nothing.
    """
    examples: list[Any] = []
    names: list[str] = []
    labels: list[Any] = []
    for path in paths:
        for name, example, label in _read(path.expanduser(), spec.kind):
            examples.append(example)
            names.append(name)
            labels.append(label)
    if not examples:
        wanted = _IMAGES if spec.kind == "image" else _TEXTS
        listed = ", ".join(map(str, paths))
        raise ValueError(f"there is nothing to predict in {listed}: name {wanted}")
    return Inputs(examples, names, _targets(labels, spec, settings, str(paths[0])))


def decode_batches(
    inputs: Inputs,
    spec: DataSpec,
    settings: DataSettings,
    batch_size: int,
    tokenizer: Path | None = None,
) -> Iterator[Tensor]:
    """Yield the samples as :func:`common.data.to_model_input` reads them, in order.

    Parameters
    ----------
    tokenizer
        Of the run; needed for text.

    Raises
    ------
    ValueError
        An image cannot be decoded or has another size than the network reads.
    """
    if spec.kind == "text":
        yield from _tokenize(inputs, spec, batch_size, tokenizer)
        return
    resize = settings.image_size > 0
    for start in range(0, len(inputs), batch_size):
        rows = range(start, min(start + batch_size, len(inputs)))
        out = np.empty((len(rows), *spec.shape), np.uint8)
        for place, row in enumerate(rows):
            decode_images(
                [inputs.examples[row]],
                spec.shape,
                out[place : place + 1],
                resize=resize,
                origin=inputs.names[row],
            )
        yield torch.from_numpy(out)


def _tokenize(
    inputs: Inputs, spec: DataSpec, batch_size: int, file: Path | None
) -> Iterator[Tensor]:
    from common.data import text

    assert file is not None
    tokenizer = text.load_tokenizer(file, spec.vocabulary)
    for start in range(0, len(inputs), batch_size):
        texts = inputs.examples[start : start + batch_size]
        out = np.zeros((len(texts), *spec.shape), np.int32)
        text.tokenize(texts, tokenizer, out)
        yield torch.from_numpy(out)


def _read(path: Path, kind: Literal["image", "text"]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, example and label (None where it has none) of every sample."""
    if path.is_dir() and kind == "image":
        found = (file for file in path.rglob("*") if _is_image(file))
        for file in sorted(found, key=lambda f: natural_key(str(f))):
            yield str(file), file, file.parent.name
    elif not path.is_file():
        raise ValueError(f"{path} does not exist, or is no file")
    elif path.suffix == ".parquet" or (path.suffix == ".npz" and kind == "image"):
        examples, labels = read_file(path, kind)
        for row, example in enumerate(examples):
            yield f"{path}:{row}", example, labels[row] if labels else None
    elif kind == "image":
        if not _is_image(path):
            raise ValueError(f"{path} is no image: name {_IMAGES}")
        yield str(path), path, path.parent.name
    elif path.suffix == ".txt":
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no UTF-8 text: {error}") from error
        for number, line in enumerate(lines, start=1):
            yield f"{path}:{number}", line, None
    else:
        raise ValueError(f"{path} is no text: name {_TEXTS}")


def _is_image(path: Path) -> bool:
    hidden = path.name[0] in "._"
    return path.suffix.lower() in IMAGE_SUFFIXES and not hidden and path.is_file()


def _targets(
    labels: Sequence[Any], spec: DataSpec, settings: DataSettings, origin: str
) -> npt.NDArray[np.int64] | None:
    """Return class indices; None where a sample has no label or its is no class."""
    if any(label is None for label in labels):
        return None
    names = class_names(settings)
    known = {*names, *map(str, range(spec.num_classes))}
    if any(isinstance(label, str) and label not in known for label in labels):
        return None
    return class_indices(labels, names, spec.num_classes, origin)
