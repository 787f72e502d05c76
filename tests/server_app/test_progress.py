"""What is told of a run while it goes on."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from flwr.common import log

from server_app.progress import LINE, Progress, round_line
from server_app.units import duration, roughly


def record(server_round: int = 7, clients: int = 10, **train: Any) -> dict[str, Any]:
    names = [f"client-{i}" for i in range(clients)]
    return {
        "round": server_round,
        "train": {"clients": names, "replied": names[:-1], "train-loss": 0.74439}
        | train,
        "evaluate": {"accuracy-mean": 0.61291, "accuracy-std": 0.13220},
        "seconds": 23.13,
    }


def test_a_round_in_one_line() -> None:
    assert round_line(record(), 40, "3 min left") == (
        "round  7/40 | trained 9/10, loss 0.744, accuracy 61.29 ± 13.22 %, 23.1 s, "
        "3 min left"
    )
    bare = record()
    del bare["evaluate"], bare["train"]["train-loss"]
    assert round_line(bare, 40, "done") == "round  7/40 | trained 9/10, 23.1 s, done"


@pytest.mark.parametrize("loss", [0.5, 123456.7, 1.5e-9, 3e38])
@pytest.mark.parametrize("clients", [1, 10_000])
@pytest.mark.parametrize("rounds", [1, 1_000, 100_000])
def test_the_line_always_fits(loss: float, clients: int, rounds: int) -> None:
    extreme = record(rounds, clients, **{"train-loss": loss})
    extreme["evaluate"] = {"accuracy-mean": 1.0, "accuracy-std": 0.5}
    extreme["seconds"] = 86_399.0
    line = round_line(extreme, rounds, f"{roughly(3_600_000)} left")
    assert len(line) <= LINE
    assert line.startswith(f"round {rounds}/{rounds} | trained {clients - 1}/{clients}")
    assert "accuracy 100.00 ± 50.00 %" in line


def test_with_the_prefix_of_the_log_it_fits_100_columns(log_text: io.StringIO) -> None:
    extreme = record(1_000, 10_000)
    Progress(1, 1_000).finished(extreme)
    (line,) = plain(log_text.getvalue()).splitlines()
    assert line.startswith("INFO :")
    assert 80 < len(line) <= 100


@pytest.mark.parametrize(
    ("seconds", "exact", "rough"),
    [
        (0.4, "0 s", "0 s"),
        (61, "1 min 01 s", "61 s"),
        (7_260, "2 h 01 min", "2.0 h"),
        (3_600_000, "1000 h 00 min", "42 d"),
    ],
)
def test_durations(seconds: float, exact: str, rough: str) -> None:
    assert duration(seconds) == exact
    assert roughly(seconds) == rough


def test_plain_lines_where_there_is_no_terminal(
    log_text: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server_app.progress._INTERVAL", 0.0)
    progress = Progress(1, 2)
    progress.begin()
    for done in (1, 2):
        progress.replies(1, "training", done, 2)
    progress.finished(record(1, 2))
    progress.close()
    lines = plain(log_text.getvalue()).splitlines()
    assert lines[0].endswith("round 1/2 | training 1/2 clients")
    assert "round 1/2 | trained 1/2" in lines[1]
    assert len(lines) == 2
    assert "\r" not in log_text.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_bar_in_a_terminal_below_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        handler = flower_handler()
        before = handler.setStream(terminal)
        progress = Progress(1, 5)
        progress.begin()
        progress.replies(1, "training", 3, 4)
        shown = ""
        while "training 3/4" not in shown:
            shown += os.read(master, 65536).decode()
        log(logging.WARNING, "client-3 does not count")
        progress.finished(record(1, 4))
        progress.close()
        assert sys.stderr is terminal
        assert handler.stream is terminal
        handler.setStream(before or sys.__stderr__)
        terminal.write("<end>")
        terminal.flush()
        while "<end>" not in shown:  # a terminal hands on what it has, bit by bit
            shown += os.read(master, 65536).decode()
    os.close(master)
    assert "0/5 rounds" in shown
    lines = re.split(r"[\r\n]+", plain(shown))
    assert sum(line.rstrip().endswith("client-3 does not count") for line in lines) == 1
    assert sum("round 1/5 | trained 3/4" in line for line in lines) == 1
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def flower_handler() -> logging.StreamHandler[Any]:
    return next(
        handler
        for handler in logging.getLogger("flwr").handlers
        if isinstance(handler, logging.StreamHandler)
    )


@pytest.fixture
def log_text() -> Iterator[io.StringIO]:
    """What Flower's log shows."""
    handler, text = flower_handler(), io.StringIO()
    before = handler.setStream(text)
    yield text
    handler.setStream(before or sys.__stderr__)
