"""Where a data set's training and test part lie: Parquet, image folders or ``.npz``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

PartName = Literal["train", "test"]
Format = Literal["Parquet", "image folder", "npz"]

LAYOUT: Final = (
    "train.parquet (or train-*.parquet), train/<class>/<image> or train.npz, and the "
    "same for test"
)
"""What a folder with data looks like, for messages."""

IMAGE_SUFFIXES: Final = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)
_FORMATS: Final[dict[str, Format]] = {".parquet": "Parquet", ".npz": "npz"}
_SETTLED: Final = 2_000_000_000
"""Nanoseconds after which a change of a folder has changed its time for sure."""
_FOLDER: Final = re.compile(r"(train)|test|val(?:id(?:ation)?)?")
_FILE_STEM: Final = re.compile(rf"(?:{_FOLDER.pattern})(?:[-_.].*)?")


@dataclass(frozen=True, slots=True)
class Part:
    """Files of one part of a data set.

    Parameters
    ----------
    folder
        The data set's folder, for messages.
    files
        Parquet and ``.npz`` in natural order, images in the order of their paths.
    class_names
        Per file, for image folders only: the folder in ``train`` that holds it.
    """

    name: PartName
    folder: Path
    format: Format
    files: tuple[Path, ...]
    class_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name the part in messages."""
        return f"{self.folder} ({self.name}, {self.format})"


def natural_key(name: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Sort key under which ``client-2`` comes before ``client-10``."""
    pieces = re.findall(r"(\d+)|(\D+)", name)
    return [(not number, int(number or 0), text) for number, text in pieces], name


def find_parts(folder: Path) -> list[Part]:
    """Return the parts that lie in a folder, training before test.

    A validation part (``valid*``, ``validation*``, ``val*``) counts as test data.

    Raises
    ------
    ValueError
        If the folder does not exist, or holds data in several formats.
    """
    folder = folder.expanduser().absolute()
    if not folder.is_dir():
        raise ValueError(f"data-path: there is no folder {folder}")
    files: dict[tuple[PartName, Format], list[tuple[Path, str]]] = {}
    for name, kind, entry in _listing(folder).parts:
        found = _images(entry) if kind == "image folder" else [(entry, "")]
        files.setdefault((name, kind), []).extend(found)
    formats = sorted({kind for _, kind in files})
    if len(formats) > 1:
        raise ValueError(
            f"{folder} holds train or test data as {' and as '.join(formats)}: keep one"
        )
    return [
        Part(
            name,
            folder,
            kind,
            files=tuple(path for path, _ in found),
            class_names=tuple(c for _, c in found) if kind == "image folder" else (),
        )
        for (name, kind), found in sorted(files.items(), reverse=True)
    ]


def client_folders(root: Path) -> list[Path]:
    """Return the folders in `root` in natural order, hidden ones left out."""
    return list(_listing(root.expanduser().absolute()).folders)


class _Listing(NamedTuple):
    """What is in a folder, in natural order."""

    folders: tuple[Path, ...]
    parts: tuple[tuple[PartName, Format, Path], ...]
    """Files and folders that hold training or test data, by their names."""


def _listing(folder: Path) -> _Listing:
    """List a folder.

    A simulated client looks into the folder of all clients for every message, so a list
    is kept until the folder changes.
    """
    changed = folder.stat().st_mtime_ns
    settled = time.time_ns() - changed > _SETTLED
    return (_kept_list if settled else _list)(folder, changed)


def _list(folder: Path, changed: int) -> _Listing:
    with os.scandir(folder) as found:
        visible = {e.name: e.is_dir() for e in found if e.name[0] not in "._"}
    folders, parts = [], []
    for name in sorted(visible, key=natural_key):
        path, kind = folder / name, _FORMATS.get(Path(name).suffix)
        if visible[name]:
            folders.append(path)
            match, kind = _FOLDER.fullmatch(name), "image folder"
        else:
            match = _FILE_STEM.fullmatch(path.stem)
        if match and kind:
            parts.append((_part(match), kind, path))
    return _Listing(tuple(folders), tuple(parts))


def _part(match: re.Match[str]) -> PartName:
    return "train" if match[1] else "test"


_kept_list = lru_cache(maxsize=16)(_list)


def _images(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the images below ``folder/<class>`` with the name of the class."""
    for class_folder in client_folders(folder):
        for place, folders, files in os.walk(class_folder):
            folders.sort()
            for file in sorted(files):
                suffix = os.path.splitext(file)[1].lower()
                if suffix in IMAGE_SUFFIXES and file[0] != ".":
                    yield Path(place, file), class_folder.name
