"""A table of the faults: what happened, and how long recovery took.

Printed at the end of a run; ``FAULTS_TABLE=FILE`` also writes it to a file.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Report = Callable[[str, str, float | None], None]
_NOTE = "* In one process, with rounds of about a second; all else over TLS and gRPC."
_ROWS = pytest.StashKey[list[tuple[str, str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Record a row: the fault, what happened, seconds until all was as before.

    The time counts from the end of the fault until the client or the run is back; where
    an error is the right outcome, from the fault until the error is there. ``None``
    where nothing had to recover.
    """

    def record(fault: str, happened: str, seconds: float | None) -> None:
        real = request.node.get_closest_marker("integration") is not None
        time_ = "-" if seconds is None else f"{seconds:.1f}{'' if real else '*'}"
        happened = textwrap.shorten(happened, 200, placeholder=" ...")
        request.config.stash[_ROWS].append((fault, happened, time_))

    return record


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    rows = config.stash[_ROWS]
    if not rows:
        return
    header = ("fault", "what happened", "time to recover (s)")
    lines = [_line(header), "|---|---|---|", *(_line(row) for row in rows)]
    lines += ["", _NOTE]
    terminalreporter.section("faults")
    for line in lines:
        terminalreporter.write_line(line)
    if target := os.environ.get("FAULTS_TABLE"):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        when = f"Measured on {time.strftime('%Y-%m-%d')}, {cores} cores"
        Path(target).write_text("\n".join([when, "", *lines]) + "\n")


def _line(row: tuple[str, str, str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
