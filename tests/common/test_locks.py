from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from common.locks import FolderError, one_writer


def test_the_holder_is_named_and_its_process_only_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr("common.locks._MOMENT", 0.1)
    monkeypatch.setattr(
        "common.locks.log", lambda _, text, *values: logged.append(text % values)
    )
    folder = tmp_path / "new" / "folder"
    with (
        one_writer(folder, "run 7", "", patience=0),
        pytest.raises(FolderError) as raised,
        one_writer(folder, "run 8", "wait", patience=600),
    ):
        pytest.fail("two writers at a time")
    assert str(raised.value) == f"{folder} is in use by run 7, this is run 8: wait"
    held = f"{folder} is held by process {os.getpid()} on {socket.gethostname()}"
    assert logged == [held]
    with one_writer(folder, "run 8", "", patience=0):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    with (
        pytest.raises(FolderError, match=r"folder cannot be written .*: free space"),
        one_writer(tmp_path / "folder", "run 7", "", patience=0),
    ):
        pytest.fail("no folder")


def test_a_full_disk_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with (
            pytest.raises(FolderError, match="No space left on device"),
            one_writer(tmp_path, "run 7", "", patience=0),
        ):
            pytest.fail("no space")
    with one_writer(tmp_path, "run 8", "", patience=0):
        pass


def test_an_earlier_task_of_the_same_writer_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.locks._MOMENT", 0.05)
    order, held = [], threading.Event()

    def earlier() -> None:
        with one_writer(tmp_path, "node 1", "", patience=0):
            held.set()
            time.sleep(0.3)
            order.append("earlier")

    thread = threading.Thread(target=earlier)
    thread.start()
    assert held.wait(60)
    with one_writer(tmp_path, "node 1", "", patience=60):
        order.append("later")
    thread.join()
    assert order == ["earlier", "later"]
