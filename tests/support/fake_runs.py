"""Run folders as a simulation leaves them, with made-up results."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from server_app.results import CLIENT_COLUMNS


def write_run(
    folder: Path,
    config: dict[str, Any],
    accuracies: Sequence[Sequence[Sequence[float]]],
    *,
    ended: str = "finished",
    started: str = "2026-01-02T03:04:05+0000",
    macs: Sequence[int] = (100, 200),
) -> None:
    """Write a run of two clients that is evaluated after every round.

    Parameters
    ----------
    accuracies
        By round, client and exit, as fractions. Client 0 trains in every round, client
        1 in every second.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(
        json.dumps({"settings": config, "started": started})
    )
    roster = {
        f"client-{i}": {"macs": list(macs[: len(exits)]), "num_train": 10 + i}
        for i, exits in enumerate(accuracies[0])
    }
    (folder / "roster.json").write_text(json.dumps(roster))
    records = []
    with (folder / "clients.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(CLIENT_COLUMNS)
        for t, clients in enumerate(accuracies, start=1):
            records.append(_record(t, clients))
            for i, exits in enumerate(clients):
                for exit_, accuracy in enumerate(exits, start=1):
                    rows.writerow([t, f"client-{i}", exit_, accuracy, 1.0, 5, 1])
                rows.writerow([t, f"client-{i}", "early", exits[-1], "", 5, 1])
    (folder / "rounds.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    summary = {"rounds": len(records), "ended": ended}
    (folder / "summary.json").write_text(json.dumps(summary))


def _record(t: int, clients: Sequence[Sequence[float]]) -> dict[str, Any]:
    trained = ["client-0", "client-1"] if t % 2 == 0 else ["client-0"]
    exits = list(zip(*clients, strict=True))
    averaged = [sum(client) / len(client) for client in clients]
    return {
        "round": t,
        "train": {
            "clients": trained,
            "replied": trained,
            "down_bytes_per_client": 1000.0,
            "up_bytes_per_client": 500.0,
            "seconds": float(t),
        },
        "evaluate": {
            "accuracy-mean": sum(averaged) / 2,
            "accuracy-std": abs(averaged[0] - averaged[1]) / 2,
            "early-accuracy-mean": sum(exits[-1]) / 2,
            "early-accuracy-std": 0.0,
            "early-macs-mean": 150.0,
            "exit-accuracy-mean": [sum(values) / 2 for values in exits],
            "exit-accuracy-std": [abs(a - b) / 2 for a, b in exits],
        },
    }
