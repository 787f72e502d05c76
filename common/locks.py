"""One writer per folder, also between processes."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flwr.common import log

if TYPE_CHECKING:
    from filelock import BaseFileLock

HOLDER: Final = ".holder.json"
"""Who writes to a folder, or did last; for messages only."""

_MOMENT: Final = 2.0  # seconds after which a holder by another name is taken for real


class FolderError(ValueError):
    """A folder is in use or cannot be written; the message says what to do."""


@contextmanager
def one_writer(folder: Path, name: str, remedy: str, patience: float) -> Iterator[None]:
    """Keep other writers out of a folder; makes the folder where it is absent.

    The lock is the operating system's: it ends with the process that holds it, however
    that ends.

    Parameters
    ----------
    name
        Who writes. A holder of the same name is waited for: it is an earlier task of
        the same writer.
    remedy
        What the user can do where another one writes.
    patience
        Longest wait for a holder of the same name, in seconds.

    Raises
    ------
    FolderError
        On entering: another one writes, or the same one for longer than the patience,
        or the folder cannot be written. Host and process of the other one are logged
        here, since a client's error goes to the server.
    """
    from filelock import FileLock

    lock = FileLock(folder / ".lock")
    me = {"name": name, "process": os.getpid(), "host": socket.gethostname()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(lock, folder, name, remedy, time.monotonic() + patience)
        (folder / HOLDER).write_text(json.dumps(me))
    except OSError as error:
        lock.release()
        raise FolderError(
            f"{folder} cannot be written ({error}): free space or mend the folder's "
            "permissions"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _acquire(
    lock: BaseFileLock, folder: Path, name: str, remedy: str, deadline: float
) -> None:
    from filelock import Timeout

    while True:
        try:
            lock.acquire(timeout=_MOMENT)
            return
        except Timeout:
            holder = _holder(folder)
            if holder.get("name") == name and time.monotonic() < deadline:
                continue
            log(
                WARNING,
                "%s is held by process %s on %s",
                folder,
                holder.get("process", "?"),
                holder.get("host", "?"),
            )
            raise FolderError(
                f"{folder} is in use by {holder.get('name', 'another one')}, this is "
                f"{name}: {remedy}"
            ) from None


def _holder(folder: Path) -> dict[str, Any]:
    try:
        holder = json.loads((folder / HOLDER).read_text())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}
