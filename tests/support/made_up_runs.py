"""Folders as runs leave them, with figures made up by simple rules."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from common.settings import parse_settings
from server_app.results import CLIENT_COLUMNS

MACS = (3_140_608, 28_066_688, 30_427_904)


def write(
    folder: Path,
    *,
    rounds: int = 8,
    clients: int = 6,
    exits: int = 3,
    every: int = 2,
    ended: str = "finished",
    shift: float = 0.0,
    names: str = "client-{:03d}",
    failures: dict[str, str] | None = None,
    epsilon: bool = True,
    **settings: Any,
) -> Path:
    """Write the folder of a run; `shift` is added to all accuracies."""
    config = parse_settings(
        {
            "method": "xfed",
            "num-server-rounds": rounds,
            "fraction-train": 0.5,
            "evaluate-every": every,
            **{k.replace("__", ".").replace("_", "-"): v for k, v in settings.items()},
        }
    ).to_config()
    folder.mkdir(parents=True)
    everyone = [names.format(i) for i in range(clients)]
    versions = {"python": "3.11.7", "flwr": "1.26.1"}
    content = {"settings": config, "versions": versions, "started": "2026-11-29"}
    dump(folder / "settings.json", content)
    identity = {"num_train": 75, "num_test": 25, "model": "convnet", "device": "cpu"}
    identity |= {"macs": list(MACS[:exits]), "versions": "python 3.11.7"}
    dump(folder / "roster.json", {n: identity | {"client": n} for n in everyone})
    rng = np.random.default_rng(0)
    rows, records = [], []
    for number in range(1, rounds + 1):
        chosen = sorted(rng.choice(clients, max(1, clients // 2), replace=False))
        sampled = [everyone[i] for i in chosen]
        failed = {n: r for n, r in (failures or {}).items() if n in sampled}
        record: dict[str, Any] = {
            "round": number,
            "train": phase(sampled, failed) | {"train-loss": 2 / number},
            "method": method(len(sampled), exits, number / rounds),
            "seconds": 3.0,
        }
        if number % every == 0 or number == rounds:
            scores = accuracies(clients, exits, number / rounds) + shift
            record["evaluate"] = phase(everyone, {}) | evaluation(scores, epsilon)
            rows += client_rows(number, everyone, scores)
        records.append(record)
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "rounds.jsonl").write_text("".join(lines))
    with (folder / "clients.csv").open("w", newline="") as file:
        csv.writer(file).writerows([CLIENT_COLUMNS, *rows])
    if ended:
        dump(folder / "summary.json", {"ended": ended, "rounds": rounds})
    return folder


def accuracies(clients: int, exits: int, progress: float) -> Any:
    """Client i, exit j: 0.2 + 0.4·progress + 0.05·j + up to 0.2 by client."""
    of_client = 0.2 * np.arange(clients) / max(clients - 1, 1)
    return 0.2 + 0.4 * progress + 0.05 * np.arange(exits) + of_client[:, None]


def phase(sampled: list[str], failed: dict[str, str]) -> dict[str, Any]:
    replied = [name for name in sampled if name not in failed]
    return {
        "clients": sampled,
        "replied": replied,
        "failures": failed,
        "refused_nodes": {},
        "down_bytes_per_client": 1_200_168.0,
        "up_bytes_per_client": 1_200_168.0,
        "counts": bool(replied),
        "seconds": 1.5,
        "telemetry": {n: {"seconds": 1.25, "energy-joules": 40.0} for n in replied},
    }


def method(sampled: int, exits: int, progress: float) -> dict[str, Any]:
    own = 0.85 - 0.1 * progress
    weights = np.full((sampled, sampled), (1 - own) / max(sampled - 1, 1))
    np.fill_diagonal(weights, own)
    students = [round(sampled * min(1.0, 2 * progress / (j + 1))) for j in range(exits)]
    return {
        "self_weight_mean": own,
        "students_per_exit": [*students[:-1], sampled],
        "teacher_weights": weights.round(4).tolist(),
    }


def evaluation(scores: Any, epsilon: bool) -> dict[str, Any]:
    early = scores[:, -1]
    macs = MACS[: scores.shape[1]]
    metrics = {
        "clients": len(scores),
        "accuracy-mean": float(scores.mean()),
        "accuracy-std": float(scores.mean(axis=1).std()),
        "early-accuracy-mean": float(early.mean()),
        "early-accuracy-std": float(early.std()),
        "early-macs-mean": 0.75 * macs[-1],
        "exit-accuracy-mean": scores.mean(axis=0).tolist(),
        "exit-accuracy-std": scores.std(axis=0).tolist(),
    }
    if epsilon:
        grid = np.linspace(0, 1, 21)
        low, high = scores[:, 0].mean(), scores[:, -1].mean()
        metrics["epsilon"] = grid.tolist()
        metrics["epsilon-macs-mean"] = (macs[0] + (macs[-1] - macs[0]) * grid).tolist()
        metrics["epsilon-accuracy-mean"] = (low + (high - low) * grid**0.4).tolist()
    return metrics


def client_rows(number: int, names: list[str], scores: Any) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for name, values in zip(names, scores, strict=True):
        for index, value in enumerate(values):
            rows.append((number, name, index + 1, value, 1.0, 25, MACS[index]))
        cost = 0.75 * MACS[len(values) - 1]
        rows.append((number, name, "early", values[-1], "", 25, cost))
    return rows


def dump(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))
