"""Files are damaged, foreign or cannot be written: no state is lost or mixed up."""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flwr.common import Context
from sabotage import VICTIM, BadRound
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from server_app.checkpoint import CheckpointError

Report = Callable[[str, str, float | None], None]


@contextmanager
def no_space() -> Iterator[None]:
    """Let no file grow beyond 1 kB, as a full disk or a quota does, also for root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def newest(folder: Path) -> Path:
    return sorted(folder.glob("round-*.safetensors"))[-1]


class OtherContent:
    """A state file has other content while the client answers."""

    def __init__(self, states: Path, change: Callable[[Path], object]) -> None:
        self._folder = states / f"client-{VICTIM}"
        self._change = change

    @contextmanager
    def __call__(self, _: Context) -> Iterator[None]:
        good = self._folder.parent / "good"
        shutil.copytree(self._folder, good)
        self._change(newest(self._folder))
        try:
            yield
        finally:
            shutil.rmtree(self._folder)
            good.rename(self._folder)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def corrupt(path: Path) -> None:
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])


def of(**changes: str) -> Callable[[Path], None]:
    """Make a state one of another method or network."""

    def put(path: Path) -> None:
        with safe_open(path, framework="numpy") as file:
            [(name, text)] = file.metadata().items()
        info = json.dumps({**json.loads(text), **changes})
        save_file(load_file(path), path, metadata={name: info})

    return put


@pytest.mark.parametrize(
    ("fault", "change", "reason"),
    [
        ("state file truncated", truncate, "is damaged"),
        ("state file corrupted", corrupt, "is damaged"),
        ("state of another method", of(method="standalone"), "'standalone'"),
        ("state of another network", of(model="cnn-1"), "'cnn-1'"),
    ],
)
def test_unfit_state(
    fault: str,
    change: Callable[[Path], object],
    reason: str,
    tmp_path: Path,
    report: Report,
) -> None:
    trial = BadRound(tmp_path)
    trial._around = OtherContent(trial.states, change)
    trial.run()
    told = trial.check()
    assert reason in told
    assert "client-client-1" in told
    assert any(word in told for word in ("restore it", "move", "choose another"))
    told = told.replace(str(tmp_path), "")
    report(fault, f"left out until it was mended: {told}", trial.seconds)


def test_disk_of_a_client_full(tmp_path: Path, report: Report) -> None:
    trial = BadRound(tmp_path, around=lambda _: no_space())
    trial.run()
    told = trial.check()
    folder = trial.states / f"client-{VICTIM}"
    assert f"{folder} cannot be written" in told
    assert load_file(newest(folder))
    assert list(folder.glob(".*.tmp")) == []
    told = told.replace(str(tmp_path), "")
    report("disk of a client full", f"left out of one round: {told}", trial.seconds)


def test_state_folder_cannot_be_written(tmp_path: Path, report: Report) -> None:
    @contextmanager
    def blocked(_: Context) -> Iterator[None]:
        # Root may write into any folder, but nobody into one that is a file.
        folder = trial.states / f"client-{VICTIM}"
        folder.rename(tmp_path / "away")
        folder.write_text("")
        try:
            yield
        finally:
            folder.unlink()
            (tmp_path / "away").rename(folder)

    trial = BadRound(tmp_path, around=blocked)
    trial.run()
    told = trial.check()
    assert f"client-{VICTIM}" in told
    told = told.replace(str(tmp_path), "")
    report("state folder not writable", f"left out of one round: {told}", trial.seconds)


@pytest.mark.parametrize(
    ("fault", "change"),
    [("checkpoint truncated", truncate), ("checkpoint corrupted", corrupt)],
)
def test_unfit_checkpoint(
    fault: str, change: Callable[[Path], None], tmp_path: Path, report: Report
) -> None:
    trial = BadRound(tmp_path)
    trial.run(2)
    path = newest(trial.folder / "checkpoints")
    change(path)
    with pytest.raises(CheckpointError, match=r"is damaged .* remove it") as raised:
        trial.run(3, resume=True)
    assert str(path) in str(raised.value)
    start = time.monotonic()
    path.unlink()
    trial.run(3, resume=True)
    seconds = time.monotonic() - start
    assert [record["round"] for record in trial.records] == [1, 2, 3]
    assert trial.summary["ended"] == "finished"
    assert trial.summary["failures"] == 0
    report(
        fault,
        "the run names the file and does not start; with it removed it went on from "
        "the checkpoint before",
        seconds,
    )


def test_disk_of_the_server_full(tmp_path: Path, report: Report) -> None:
    trial = BadRound(tmp_path)
    trial.run(2)
    kept = {p.name: p.read_bytes() for p in trial.folder.glob("checkpoints/*.safe*")}
    with no_space(), pytest.raises(OSError, match=r"File too large|No space"):
        trial.run(3, resume=True)
    for name, content in kept.items():
        assert (trial.folder / "checkpoints" / name).read_bytes() == content
    start = time.monotonic()
    trial.run(3, resume=True)
    seconds = time.monotonic() - start
    assert [record["round"] for record in trial.records] == [1, 2, 3]
    assert trial.summary["ended"] == "finished"
    report(
        "disk of the server full",
        "the run ends with the system's error; resumed with space it went on after "
        "the last checkpoint",
        seconds,
    )
