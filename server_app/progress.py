"""Lines that tell how far a run is."""

from __future__ import annotations

import time
from logging import INFO

from flwr.common import log

_INTERVAL = 5.0  # seconds between two lines within a round


class Progress:
    """One line per round, and further ones while a round takes long."""

    def __init__(self, first_round: int, num_rounds: int) -> None:
        self.first_round = first_round
        self._last = num_rounds
        self._start = self._spoken = time.monotonic()

    def begin(self) -> None:
        """Count the time from here: how clients start tells nothing of rounds."""
        self._start = self._spoken = time.monotonic()

    def replies(self, server_round: int, phase: str, done: int, total: int) -> None:
        """Report `done` of `total` clients, at most every few seconds."""
        now = time.monotonic()
        if now - self._spoken >= _INTERVAL and done < total:
            self._spoken = now
            log(
                INFO,
                "%s %s %d/%d clients",
                self._round(server_round),
                phase,
                done,
                total,
            )

    def finished(self, server_round: int, text: str) -> None:
        """Report a finished round and the time that the others will take."""
        self._spoken = time.monotonic()
        elapsed = self._spoken - self._start
        rounds = server_round - self.first_round + 1
        left = elapsed / rounds * (self._last - server_round)
        remaining = f"{duration(left)} left" if server_round < self._last else "done"
        log(INFO, "%s %s | %s", self._round(server_round), text, remaining)

    def _round(self, server_round: int) -> str:
        width = len(str(self._last))
        return f"round {server_round:{width}d}/{self._last} |"


def duration(seconds: float) -> str:
    """Write a duration in the two largest fitting units."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
