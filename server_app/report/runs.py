"""The folder of a run, read for the report.

A run may still go on, have been cut off, or have been made by an earlier version: what
is not there is left out, a last line that is cut off is skipped.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from common.settings import keys

Record = Mapping[str, Any]
_EARLIER_VERSIONS = "not recorded"


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The last evaluation of one client; accuracies are fractions, MACs per sample."""

    server_round: int
    examples: int
    per_exit: tuple[float, ...]
    macs: tuple[float, ...]
    early: float | None
    early_macs: float | None

    @property
    def average(self) -> float:
        """Accuracy averaged over the exits."""
        return sum(self.per_exit) / len(self.per_exit)


@dataclass(frozen=True, slots=True)
class Failure:
    """One reason for which one client did not count, and the rounds it did so."""

    client: str
    phase: str
    reason: str
    rounds: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """What a run's folder tells.

    Attributes
    ----------
    settings
        All settings; those that the run's version did not know have their default.
    status
        How the run ended, or that it has not.
    rounds
        The records of ``rounds.jsonl``, by round.
    clients
        Each client's last evaluation.
    """

    folder: Path
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    started: str
    status: str
    rounds: Sequence[Record]
    clients: Mapping[str, ClientResult]
    roster: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def method(self) -> str:
        """The algorithm."""
        return str(self.settings["method"])

    @property
    def finished(self) -> bool:
        """Whether the run came to its regular end."""
        return self.status == "finished"

    @cached_property
    def evaluations(self) -> list[tuple[int, Record]]:
        """Rounds with an evaluation that somebody answered, and its record."""
        return [
            (record["round"], record["evaluate"])
            for record in self.rounds
            if "accuracy-mean" in record.get("evaluate", {})
        ]

    @property
    def last(self) -> Record:
        """Record of the last evaluation; empty where there was none."""
        return self.evaluations[-1][1] if self.evaluations else {}

    @cached_property
    def macs(self) -> list[float]:
        """Mean multiply-accumulates per sample up to each exit, over the clients.

        Empty where the clients' networks differ in their number of exits.
        """
        costs = [client.macs for client in self.clients.values()]
        if len({len(cost) for cost in costs}) != 1:
            return []
        return [sum(column) / len(costs) for column in zip(*costs, strict=True)]

    @property
    def num_clients(self) -> int:
        """Clients that were ever met."""
        if self.roster:
            return len(self.roster)
        names = set(self.clients)
        for record in self.rounds:
            names.update(record["train"].get("clients", ()))
        return len(names)

    @property
    def seconds(self) -> float:
        """Duration of all recorded rounds."""
        return float(sum(record.get("seconds", 0.0) for record in self.rounds))

    def method_records(self, key: str) -> list[tuple[int, Any]]:
        """Return the rounds for which the method recorded `key`, and what."""
        return [
            (record["round"], record["method"][key])
            for record in self.rounds
            if record.get("method", {}).get(key)
        ]

    @cached_property
    def rounds_trained(self) -> Counter[str]:
        """Rounds in which each client's training counted."""
        return Counter(
            name for record in self.rounds for name in record["train"]["replied"]
        )

    @cached_property
    def costs(self) -> dict[str, dict[str, list[float]]]:
        """What clients measured in their training rounds, by quantity and client."""
        found: dict[str, dict[str, list[float]]] = {}
        for record in self.rounds:
            for client, figures in record["train"].get("telemetry", {}).items():
                for name, value in figures.items():
                    found.setdefault(name, {}).setdefault(client, []).append(value)
        return found

    @cached_property
    def failures(self) -> list[Failure]:
        """Why clients did not count, those with most rounds first."""
        found: dict[tuple[str, str, str], Failure] = {}
        for record in self.rounds:
            for key in _failed(record):
                found.setdefault(key, Failure(*key)).rounds.append(record["round"])
        return sorted(found.values(), key=lambda f: (-len(f.rounds), f.client))


def read_run(folder: Path) -> Run:
    """Read the folder of a run.

    Raises
    ------
    ValueError
        The folder holds no run, or one that cannot be read.
    """
    try:
        stored = json.loads((folder / "settings.json").read_text())
        chosen = stored["settings"]
        chosen["method"]
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no run: settings.json is missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder}/settings.json cannot be read: {type(error).__name__}: {error}"
        ) from error
    rounds = list(_rounds(folder / "rounds.jsonl"))
    return Run(
        folder=folder,
        settings=_defaults(chosen["method"]) | chosen,
        versions=stored.get("versions") or {"versions": _EARLIER_VERSIONS},
        started=stored.get("started", ""),
        status=_status(_object(folder / "summary.json"), rounds),
        rounds=rounds,
        clients=_clients(folder / "clients.csv"),
        roster=_object(folder / "roster.json"),
    )


def find_runs(paths: Sequence[Path], *, leave_out: Path | None = None) -> list[Path]:
    """Return the folders of runs among `paths` and directly inside them.

    Parameters
    ----------
    leave_out
        A folder that is none of the runs though a pattern may name it.

    Raises
    ------
    ValueError
        A path neither is a run nor holds one.
    """
    found = []
    for path in paths:
        if leave_out is not None and path.resolve() == leave_out.resolve():
            continue
        inside = [p.parent for p in sorted(path.glob("*/settings.json"))]
        if (path / "settings.json").is_file():
            found.append(path)
        elif inside:
            found += inside
        else:
            raise ValueError(
                f"{path} neither is a run nor holds one: name folders with a "
                "settings.json, e.g. runs/trial, or their parent"
            )
    return list(dict.fromkeys(found))


def newest(root: Path) -> Path:
    """Return the folder in `root`, a run or a folder of runs, with the newest run.

    Raises
    ------
    ValueError
        There is no run in `root`.
    """
    ages = {
        path: max(path.stat().st_mtime for path in path.rglob("rounds.jsonl"))
        for path in root.glob("*")
        if path.is_dir() and any(path.rglob("rounds.jsonl"))
    }
    if not ages:
        raise ValueError(f"{root} holds no run: `make simulate` makes some")
    return max(ages, key=lambda path: ages[path])


def spans(rounds: Sequence[int]) -> str:
    """Write rounds in short: 1, 2, 3, 7 as ``1–3, 7``."""
    parts: list[list[int]] = []
    for number in sorted(rounds):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("–".join(map(str, part)) for part in parts)


def number_of_clients(part: Record) -> int:
    """Return how many clients a phase was meant for."""
    clients = part.get("clients", 0)
    return clients if isinstance(clients, int) else len(clients)


def _failed(record: Record) -> Iterator[tuple[str, str, str]]:
    for phase, title in (("train", "training"), ("evaluate", "evaluation")):
        part = record.get(phase, {})
        for client, reason in part.get("failures", {}).items():
            yield client, title, reason
    for node, reason in record["train"].get("refused_nodes", {}).items():
        yield node, "joining", reason


def _defaults(method: str) -> dict[str, Any]:
    """Return the defaults of a method's settings."""
    return {
        key.name: key.default
        for key in keys()
        if "." not in key.name or key.name.startswith(f"{method}.")
    }


def _rounds(path: Path) -> Iterator[Record]:
    with suppress(FileNotFoundError), path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _object(path: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError, json.JSONDecodeError):
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else {}
    return {}


def _status(summary: Record, rounds: Sequence[Record]) -> str:
    reached = rounds[-1]["round"] if rounds else 0
    if not summary or summary.get("rounds", 0) < reached:
        return f"after round {reached}: still going on, or cut off"
    return str(summary.get("ended") or "finished")


def _clients(path: Path) -> dict[str, ClientResult]:
    latest: dict[str, dict[str, dict[str, str]]] = {}
    with suppress(FileNotFoundError), path.open(newline="") as file:
        for row in csv.DictReader(line for line in file if line.endswith("\n")):
            rows = latest.setdefault(row["client"], {})
            if rows and next(iter(rows.values()))["round"] != row["round"]:
                rows.clear()
            rows[row["exit"]] = row
    results = {}
    for name, rows in sorted(latest.items()):
        with suppress(ValueError):
            exits = [rows[key] for key in sorted(filter(str.isdigit, rows), key=int)]
            early = rows.get("early")
            if exits:
                results[name] = ClientResult(
                    server_round=int(exits[0]["round"]),
                    examples=int(exits[0]["examples"]),
                    per_exit=tuple(float(row["accuracy"]) for row in exits),
                    macs=tuple(float(row["macs"]) for row in exits),
                    early=float(early["accuracy"]) if early else None,
                    early_macs=float(early["macs"]) if early else None,
                )
    return results
