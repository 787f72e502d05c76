"""How far a run is: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Mapping
from logging import INFO
from typing import Any, Final

from flwr.common import log

from common.protocol import TRAIN_LOSS
from server_app.units import duration, roughly

_INTERVAL = 5.0  # seconds between two lines within a round
LINE: Final = 100 - len("INFO :      ")
"""Columns of a round's line, so that it fits 100 with what Flower's log puts first."""


class Progress:
    """One line per round; within a round a bar in a terminal, further lines elsewhere.

    Parameters
    ----------
    first_round, num_rounds
        Rounds that this process runs: from the one to the other.
    """

    def __init__(self, first_round: int, num_rounds: int) -> None:
        self.first_round = first_round
        self._last = num_rounds
        self._start = self._spoken = time.monotonic()
        self._bar: _Bar | None = None

    def begin(self) -> None:
        """Count the time from here: how clients start tells nothing of rounds."""
        self._start = self._spoken = time.monotonic()
        if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._bar = _Bar(self.first_round - 1, self._last)

    def replies(self, server_round: int, phase: str, done: int, total: int) -> None:
        """Report `done` of `total` clients; as a line at most every few seconds."""
        if self._bar is not None:
            self._bar.show(server_round - 1, f"{phase} {done}/{total}")
            return
        now = time.monotonic()
        if now - self._spoken >= _INTERVAL and done < total:
            self._spoken = now
            head = _head(server_round, self._last)
            log(INFO, "%s%s %d/%d clients", head, phase, done, total)

    def finished(self, record: Mapping[str, Any]) -> None:
        """Report a finished round and the time that the others will take."""
        self._spoken = time.monotonic()
        server_round = record["round"]
        rounds = server_round - self.first_round + 1
        seconds = (self._spoken - self._start) / rounds * (self._last - server_round)
        left = f"{roughly(seconds)} left" if server_round < self._last else "done"
        log(INFO, "%s", round_line(record, self._last, left))
        if self._bar is not None:
            self._bar.show(server_round, left)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _Bar:
    """The last line of a terminal, below all that is logged meanwhile."""

    def __init__(self, done: int, total: int) -> None:
        from rich import progress
        from rich.console import Console

        self._progress = progress.Progress(
            progress.TextColumn("{task.completed}/{task.total} rounds"),
            progress.BarColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", completed=done, total=total)
        terminal = sys.stderr
        self._progress.start()  # puts a stand-in for sys.stderr that spares the bar
        self._handlers = [
            handler
            for handler in logging.getLogger("flwr").handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream is terminal
        ]
        for handler in self._handlers:
            handler.setStream(sys.stderr)
        atexit.register(self.close)  # else a run that is broken off hides the cursor

    def show(self, done: int, status: str) -> None:
        """Show the number of finished rounds and what goes on."""
        self._progress.update(self._task, completed=done, description=status)

    def close(self) -> None:
        """Give the terminal back."""
        atexit.unregister(self.close)
        self._progress.stop()
        for handler in self._handlers:
            handler.setStream(sys.stderr)


def round_line(record: Mapping[str, Any], num_rounds: int, left: str) -> str:
    """Return one line on a round that fits :data:`LINE` columns.

    Where it would not, the round's duration is left out, then the loss, then `left`.
    """
    train, evaluate = record["train"], record.get("evaluate", {})
    parts = {"trained": f"trained {len(train['replied'])}/{len(train['clients'])}"}
    if TRAIN_LOSS in train:
        parts["loss"] = f"loss {train[TRAIN_LOSS]:#.3g}"
    if "accuracy-mean" in evaluate:
        mean, std = (100 * evaluate[f"accuracy-{name}"] for name in ("mean", "std"))
        parts["accuracy"] = f"accuracy {mean:.2f} ± {std:.2f} %"
    seconds = record["seconds"]
    parts["seconds"] = f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
    parts["left"] = left
    head = _head(record["round"], num_rounds)
    for surplus in ("seconds", "loss", "left"):
        if len(head + ", ".join(parts.values())) <= LINE:
            break
        parts.pop(surplus, None)
    return head + ", ".join(parts.values())


def _head(server_round: int, num_rounds: int) -> str:
    return f"round {server_round:{len(str(num_rounds))}d}/{num_rounds} | "
