"""Training or evaluation of one round, and what is told of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from logging import WARNING
from statistics import median
from typing import Any

from flwr.common import log

from common.protocol import TELEMETRY, Reply
from server_app.averaging import OrderedMean
from server_app.errors import essence
from server_app.norms import outliers
from server_app.robust import FlowerAggregate
from server_app.roster import Client


@dataclass(slots=True)
class Phase:
    """Training or evaluation of one round."""

    name: str
    server_round: int
    clients: list[Client]
    down_bytes: int = 0
    up_bytes: int = 0
    accepted: dict[str, Reply] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    mean: OrderedMean | FlowerAggregate | None = None
    lost_states: dict[str, int] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    clipped: list[str] = field(default_factory=list)
    outliers: dict[str, float] = field(default_factory=dict)

    def fail(self, client: str, reason: str) -> None:
        """Count a client out, with the reason."""
        self.failures[client] = essence(reason)
        if self.mean is not None:
            self.mean.drop(client)
        log(
            WARNING,
            "round %d: %s of %s does not count: %s",
            self.server_round,
            self.name,
            client,
            self.failures[client],
        )

    def lose(self, client: str, trained: int, found: int) -> None:
        """Note that a client no longer has its personal state of round `trained`."""
        self.lost_states[client] = trained
        log(
            WARNING,
            "round %d: %s %s: its personal state of round %d was lost; a state-dir in "
            "its node configuration keeps it",
            self.server_round,
            client,
            f"went on with its state of round {found}" if found else "started afresh",
            trained,
        )

    def clip(self, client: str, norm: float, bound: float) -> None:
        """Note that a client's update was scaled down."""
        self.clipped.append(client)
        log(
            WARNING,
            "round %d: update of %s scaled down from norm %.3g to %g",
            self.server_round,
            client,
            norm,
            bound,
        )

    def judge(self) -> None:
        """Look for updates whose norm lies far from the others'."""
        self.norms = dict(sorted(self.norms.items()))
        self.outliers = outliers(self.norms)
        for client, score in self.outliers.items():
            log(
                WARNING,
                "round %d: update of %s has norm %.3g, the median is %.3g (robust "
                "z-score %.1f)",
                self.server_round,
                client,
                self.norms[client],
                median(self.norms.values()),
                score,
            )

    def record(self) -> dict[str, Any]:
        """Return the phase's part of the round's record."""
        count = max(len(self.clients), 1)
        judged = {
            "update_norms": self.norms,
            "clipped": sorted(self.clipped),
            "outliers": self.outliers,
        }
        figures = {name: _telemetry(r) for name, r in sorted(self.accepted.items())}
        telemetry = {name: found for name, found in figures.items() if found}
        return {
            "clients": [client.name for client in self.clients],
            "replied": sorted(self.accepted),
            "failures": self.failures,
            "refused_nodes": self.refused,
            "lost_states": dict(sorted(self.lost_states.items())),
            **(judged if self.norms else {}),
            **({"telemetry": telemetry} if telemetry else {}),
            "down_bytes_per_client": self.down_bytes / count,
            "up_bytes_per_client": self.up_bytes / max(len(self.accepted), 1),
        }


@dataclass(slots=True)
class Tally:
    """What is counted over a whole run."""

    rounds: int = 0
    failures: int = 0
    skipped_rounds: int = 0
    failed_in_a_row: int = 0
    lost_states: int = 0
    outliers: int = 0
    clipped_updates: int = 0
    ended: str = ""
    last_round: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def count(self, record: dict[str, Any]) -> None:
        """Take in a round's record and complete it."""
        parts = [record["train"], record.get("evaluate", {})]
        record["seconds"] = sum(part.get("seconds", 0.0) for part in parts)
        self.rounds = record["round"]
        self.seconds += record["seconds"]
        self.failures += sum(len(part.get("failures", ())) for part in parts)
        self.lost_states += len(record["train"].get("lost_states", ()))
        self.outliers += len(record["train"].get("outliers", ()))
        self.clipped_updates += len(record["train"].get("clipped", ()))
        if record["train"]["counts"]:
            self.failed_in_a_row = 0
        else:
            self.skipped_rounds += 1
            self.failed_in_a_row += 1
        self.last_round = record

    def summary(self) -> dict[str, Any]:
        """Return the summary of the run."""
        return {
            "ended": self.ended,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "failures": self.failures,
            "skipped_rounds": self.skipped_rounds,
            "lost_states": self.lost_states,
            "outliers": self.outliers,
            "clipped_updates": self.clipped_updates,
            "last_round": self.last_round,
        }


def _telemetry(reply: Reply) -> dict[str, float]:
    """Return what a client's machine says the round cost, where it makes sense."""
    values = {name: reply.metrics.get(name) for name in TELEMETRY}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and 0 <= value < math.inf
    }
