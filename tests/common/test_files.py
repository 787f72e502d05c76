from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.files import remove_leftovers, write_atomically


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    former = os.umask(0o022)
    yield
    os.umask(former)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_as_open_as_the_umask_says(tmp_path: Path) -> None:
    path = tmp_path / "results" / "summary.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_private_files_are_their_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_atomically(path, b"open")
    write_atomically(path, b"personal", private=True)
    assert path.read_bytes() == b"personal"
    assert mode(path) == 0o600


def test_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")

    def full_disk(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".summary.json.1f.tmp").touch()
    (tmp_path / ".lock").touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
