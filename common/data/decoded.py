"""A data set as arrays: decoded once, kept in the cache, memory-mapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from common.data.cache import build_once, cache_root, digest, fingerprint, read_array
from common.data.class_names import CLASS_NAMES
from common.data.files import LAYOUT, Part
from common.data.images import decode_images
from common.data.labels import class_indices
from common.data.read import RawPart, read_part
from common.data.spec import DataSpec, data_spec, given_class_names
from common.settings import DataSettings

_VERSION: Final = 1
"""Raised whenever decoding gives other arrays than before."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """All examples of a data set, training before test.

    Parameters
    ----------
    inputs
        Memory-mapped: images (N, channels, height, width) uint8, tokens (N, L) int32.
    targets
        Memory-mapped class indices, (N,) int64.
    num_train
        Rows before this one are training data.
    key
        Determines the arrays.
    origin
        Where they come from, for messages.
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[np.int64]
    num_train: int
    key: str
    origin: str


def open_parts(parts: list[Part], settings: DataSettings, *, own_text: bool) -> Decoded:
    """Return the data set that lies in the files of `parts`.

    Parameters
    ----------
    parts
        Training and test part, or the training part alone; of one folder.
    settings
        Say what to decode them to.
    own_text
        Text needs the tokenizer that all clients share, in the folder or one above;
        otherwise it is trained from the training texts where the folder has none.

    Raises
    ------
    ValueError
        If there is no training part or a file is not what it has to be.
    """
    spec = data_spec(settings)
    folder = parts[0].folder
    if parts[0].name != "train":
        raise ValueError(f"{folder} has no training part: expected {LAYOUT}")
    tokenizer = None
    if spec.kind == "text":
        tokenizer = _find_tokenizer(folder, required=own_text)
    source = [fingerprint(part.files) for part in parts]
    if tokenizer is not None:
        source.append(fingerprint([tokenizer]))

    def read() -> dict[str, RawPart]:
        return {part.name: read_part(part, spec.kind) for part in parts}

    return _open(source, read, settings, tokenizer, str(folder))


def open_download(settings: DataSettings) -> Decoded:
    """Return a known data set, downloaded where it is not in the cache.

    Raises
    ------
    ValueError
        If the data set is ``custom``.
    ConnectionError
        If the download fails.
    """
    if settings.dataset == "custom":
        raise ValueError(
            "dataset = 'custom' cannot be downloaded: set data-path in the run "
            "configuration, or in every node's own"
        )

    def read() -> dict[str, RawPart]:
        from common.data.download import fetch

        folder = cache_root(settings) / "downloads" / settings.dataset
        return fetch(settings.dataset, folder)

    return _open(["download", settings.dataset], read, settings, None, settings.dataset)


def _open(
    source: object,
    read: Callable[[], Mapping[str, RawPart]],
    settings: DataSettings,
    tokenizer: Path | None,
    origin: str,
) -> Decoded:
    spec = data_spec(settings)
    names = given_class_names(settings) or CLASS_NAMES[settings.dataset]
    resize = settings.image_size > 0
    key = digest(
        _VERSION,
        source,
        (spec.kind, spec.shape, spec.num_classes, spec.vocabulary),
        names,
        resize,
    )
    entry = cache_root(settings) / "decoded" / key

    def build(folder: Path) -> None:
        _decode(read(), spec, names, folder, resize=resize, tokenizer=tokenizer)

    build_once(entry, build)
    return Decoded(
        read_array(entry, "inputs"),
        read_array(entry, "targets"),
        int(read_array(entry, "num_train")[0]),
        key,
        origin,
    )


def _decode(
    parts: Mapping[str, RawPart],
    spec: DataSpec,
    class_names: tuple[str, ...],
    folder: Path,
    *,
    resize: bool,
    tokenizer: Path | None,
) -> None:
    """Decode the parts into ``.npy`` files in `folder`."""
    targets = [
        class_indices(part.labels, class_names, spec.num_classes, part.origin)
        for part in parts.values()
    ]
    np.save(folder / "targets.npy", np.concatenate(targets))
    np.save(folder / "num_train.npy", np.array([len(targets[0])]))
    inputs = np.lib.format.open_memmap(
        folder / "inputs.npy",
        mode="w+",
        dtype=np.uint8 if spec.kind == "image" else np.int32,
        shape=(sum(map(len, targets)), *spec.shape),
    )
    rows = inputs.view(np.ndarray)  # quicker to index than a memmap
    outs = np.split(rows, np.cumsum([len(part) for part in targets])[:-1])
    if spec.kind == "image":
        for part, out in zip(parts.values(), outs, strict=True):
            decode_images(
                part.examples, spec.shape, out, resize=resize, origin=part.origin
            )
    else:
        _tokenize(parts, spec, outs, folder, tokenizer)


def _tokenize(
    parts: Mapping[str, RawPart],
    spec: DataSpec,
    outs: list[npt.NDArray[np.int32]],
    folder: Path,
    file: Path | None,
) -> None:
    from common.data import text

    if file is None:
        tokenizer = text.train_tokenizer(parts["train"].examples, spec.vocabulary)
        tokenizer.save(str(folder / text.FILE))
    else:
        tokenizer = text.load_tokenizer(file, spec.vocabulary)
    for part, out in zip(parts.values(), outs, strict=True):
        text.tokenize(part.examples, tokenizer, out)


def _find_tokenizer(folder: Path, *, required: bool) -> Path | None:
    from common.data import text

    places = (folder, folder.parent) if required else (folder,)
    for place in places:
        if (place / text.FILE).is_file():
            return place / text.FILE
    if required:
        raise ValueError(
            f"there is no {text.FILE} in {folder} or {folder.parent}: clients with "
            f"text of their own share one; make it by {text.COMMAND} and give every "
            "client the same file"
        )
    return None
