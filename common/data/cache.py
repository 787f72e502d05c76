"""Results that are costly to make, kept on disk and made by one process only.

An entry is a folder of ``.npy`` files whose name is a hash of everything that
determines its content, so that nothing ever has to be brought up to date.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.settings import DataSettings

_SMALL = 2**20  # bytes; reading so few takes less time than mapping them


def cache_root(settings: DataSettings) -> Path:
    """Return the folder of all entries: ``cache-dir`` or the user's cache folder."""
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "flower-personalized"


def digest(*parts: object) -> str:
    """Return the name of the entry that `parts` (values JSON can hold) determine."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def fingerprint(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return path, size in bytes and time of change in ns of every file."""
    states = ((path, path.stat()) for path in files)
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in states]


def build_once(entry: Path, build: Callable[[Path], None]) -> None:
    """Make a folder unless it is there; of several processes one does, others wait.

    Parameters
    ----------
    entry
        The folder; it appears complete or not at all.
    build
        Fills an empty folder with files. What it raises passes through, and nothing is
        left behind.
    """
    from filelock import FileLock

    if entry.is_dir():
        return
    entry.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{entry}.lock"):
        if entry.is_dir():
            return
        unfinished = entry.with_name(f"{entry.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            build(unfinished)
            for file in unfinished.iterdir():
                _flush(file)
            unfinished.rename(entry)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def read_array(entry: Path, name: str) -> npt.NDArray[Any]:
    """Return the array ``name.npy`` of an entry, read-only; mapped if it is large."""
    file = entry / f"{name}.npy"
    large = file.stat().st_size > _SMALL
    array: npt.NDArray[Any] = np.load(file, mmap_mode="r" if large else None)
    array.flags.writeable = False
    return array


def _flush(file: Path) -> None:
    """Force a file to the disk: after a power cut a renamed file could be empty."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
