"""Training or evaluation of one round, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.common import log

from common.protocol import TRAIN_LOSS, Reply
from server_app.averaging import OrderedMean
from server_app.errors import essence
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
    mean: OrderedMean | None = None

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

    def record(self) -> dict[str, Any]:
        """Return the phase's part of the round's record."""
        count = max(len(self.clients), 1)
        return {
            "clients": [client.name for client in self.clients],
            "replied": sorted(self.accepted),
            "failures": self.failures,
            "refused_nodes": self.refused,
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
            "last_round": self.last_round,
        }


def round_line(record: Mapping[str, Any]) -> str:
    """Return one short line on a round."""
    train = record["train"]
    parts = [f"trained {len(train['replied'])}/{len(train['clients'])}"]
    if TRAIN_LOSS in train:
        parts.append(f"loss {train[TRAIN_LOSS]:.3f}")
    evaluate = record.get("evaluate", {})
    if "accuracy-mean" in evaluate:
        parts.append(
            f"accuracy {100 * evaluate['accuracy-mean']:.2f} "
            f"± {100 * evaluate['accuracy-std']:.2f} %"
        )
    parts.append(f"{record['seconds']:.1f} s")
    return ", ".join(parts)
