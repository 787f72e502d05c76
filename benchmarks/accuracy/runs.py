"""Figures of a finished run, read from its folder."""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cost import training_macs
from common.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure of one run."""

    value: float | None
    """None where it does not exist, as the cost of a target that is not reached."""
    std_clients: float | None = None
    curve: list[list[float]] = field(default_factory=list)
    """Round and value after it, for every evaluation."""
    clients: list[float] = field(default_factory=list)
    """The value of every client, in the order of their names."""


def is_finished(folder: Path, num_rounds: int) -> bool:
    """Tell whether a folder holds a run of so many rounds."""
    path = folder / "summary.json"
    if not path.exists():
        return False
    summary = json.loads(path.read_text())
    ended = summary.get("ended", "finished")
    return bool(summary["rounds"] == num_rounds and ended == "finished")


def stored_settings(folder: Path) -> dict[str, Any] | None:
    """Return the settings of a run, None where the folder holds none."""
    path = folder / "settings.json"
    if not path.exists():
        return None
    settings: dict[str, Any] = json.loads(path.read_text())["settings"]
    return settings


def figures(
    folder: Path, settings: Settings, targets: Sequence[float] = ()
) -> dict[str, Measured]:
    """Return the figures of a finished run by name.

    Accuracies, in %, are those after the last round, mean and population standard
    deviation over all clients: ``averaged`` over the exits; where there are several,
    ``exit-1`` .. ``exit-m``, ``early`` for inference that stops early, ``early-macs``
    what that costs per sample. ``down-bytes`` and ``up-bytes`` are the payload of a
    training per client and round, ``round-seconds`` is the median time of a round's
    training.

    Parameters
    ----------
    settings
        Of the run.
    targets
        Accuracies in %: for each the figures ``rounds-to-X``, ``bytes-to-X`` and
        ``macs-to-X`` tell what was needed until the clients' mean accuracy reached it,
        bytes (up and down) and training multiply-accumulates per client.

    Raises
    ------
    ValueError
        No client could be evaluated after the last round.
    """
    records = [
        json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()
    ]
    if "accuracy-mean" not in records[-1].get("evaluate", {}):
        raise ValueError(
            f"{folder}: no client was evaluated after the last round; move the folder "
            "away and run again"
        )
    found = _accuracies(records)
    found["averaged"].clients.extend(_clients(folder, records[-1]["round"]))
    training = [record["train"] for record in records]
    for way in ("down", "up"):
        sizes = [phase[f"{way}_bytes_per_client"] for phase in training]
        found[f"{way}-bytes"] = Measured(value=statistics.mean(sizes))
    found["round-seconds"] = Measured(
        value=statistics.median(phase["seconds"] for phase in training)
    )
    if targets:
        per_client = _training_macs(folder, settings)
        for target in targets:
            found |= _cost(target, records, found["averaged"].curve, per_client)
    return found


def _accuracies(records: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    evaluations = [
        (record["round"], record["evaluate"])
        for record in records
        if "accuracy-mean" in record.get("evaluate", {})
    ]
    last = evaluations[-1][1]

    def measured(name: str, exit_: int | None = None) -> Measured:
        def read(evaluation: Mapping[str, Any], what: str) -> float:
            value = evaluation[f"{name}-{what}"]
            return round(100 * float(value if exit_ is None else value[exit_]), 4)

        return Measured(
            value=read(last, "mean"),
            std_clients=read(last, "std"),
            curve=[[t, read(evaluation, "mean")] for t, evaluation in evaluations],
        )

    found = {"averaged": measured("accuracy")}
    num_exits = len(last.get("exit-accuracy-mean", []))
    if num_exits > 1:
        for exit_ in range(num_exits):
            found[f"exit-{exit_ + 1}"] = measured("exit-accuracy", exit_)
        found["early"] = measured("early-accuracy")
        found["early-macs"] = Measured(value=last["early-macs-mean"])
    return found


def _clients(folder: Path, server_round: int) -> list[float]:
    accuracies = defaultdict(list)
    with (folder / "clients.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if int(row["round"]) == server_round and row["exit"] != "early":
                accuracies[row["client"]].append(100 * float(row["accuracy"]))
    return [round(statistics.mean(accuracies[name]), 4) for name in sorted(accuracies)]


def _training_macs(folder: Path, settings: Settings) -> dict[str, float]:
    """Return every client's multiply-accumulates of one round's training."""
    roster = json.loads((folder / "roster.json").read_text())
    return {
        name: training_macs(settings, identity["macs"][-1]) * identity["num_train"]
        for name, identity in roster.items()
    }


def _cost(
    target: float,
    records: Sequence[Mapping[str, Any]],
    curve: Sequence[Sequence[float]],
    macs: Mapping[str, float],
) -> dict[str, Measured]:
    reached = next((int(t) for t, accuracy in curve if accuracy >= target), None)
    sums: dict[str, float | None] = dict.fromkeys(("rounds", "bytes", "macs"))
    if reached is not None:
        phases = [r["train"] for r in records if r["round"] <= reached]
        traffic = sum(
            len(phase["clients"]) * phase["down_bytes_per_client"]
            + len(phase["replied"]) * phase["up_bytes_per_client"]
            for phase in phases
        )
        work = sum(macs[client] for phase in phases for client in phase["clients"])
        sums = {
            "rounds": reached,
            "bytes": traffic / len(macs),
            "macs": work / len(macs),
        }
    return {f"{k}-to-{target:g}": Measured(value=v) for k, v in sums.items()}
