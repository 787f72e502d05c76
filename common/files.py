"""Files of tensors, and files that are there as a whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from common.state import State

STATE_FOLDER: Final = "state"
"""Folder for personal states within that of a run simulated by
``server_app.simulate``."""


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file beside the old one, flush it to the disk, then replace the old one.

    Whatever happens meanwhile, a full disk or a power cut, `path` holds its old or its
    new content. Makes the folder where it is absent. A `private` file is its owner's
    alone; the umask says who may read any other.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    mode = 0o600 if private else 0o666
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what writers that were killed left beside the files of a folder.

    Only for the one who alone writes there.
    """
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def read_tensors(path: Path, record: str) -> tuple[Any, State]:
    """Read a safetensors file: a JSON record of its metadata, and its arrays.

    Returns
    -------
    The record, None where the file has none of that name, and the arrays by name.

    Raises
    ------
    ValueError
        The file cannot be read, is truncated or of another format.
    """
    with _opened(path) as file:
        return _record(file, record), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def read_record(path: Path, record: str) -> Any:
    """Read a JSON record of a safetensors file's metadata alone, as `read_tensors`."""
    with _opened(path) as file:
        return _record(file, record)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ValueError(str(error)) from error


def _record(file: Any, name: str) -> Any:
    return json.loads((file.metadata() or {}).get(name, "null"))
