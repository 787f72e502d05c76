"""What a run leaves behind: settings, one record per round, one row per client."""

from __future__ import annotations

import csv
import json
import math
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from common.files import write_atomically
from common.protocol import Identity
from common.settings import Settings, completed
from common.state import State
from common.versions import versions
from server_app.event_files import EventFiles

CLIENT_COLUMNS = ("round", "client", "exit", "accuracy", "loss", "examples", "macs")
"""Columns of ``clients.csv``; ``exit`` counts from 1, ``early`` stands for the exit at
which early-exit inference stops, ``noisy-`` in front for evaluation on noisy images;
accuracy is a fraction, macs are per sample."""

_MAY_CHANGE = {
    "resume",
    "num-server-rounds",
    "evaluate-every",
    "min-available-nodes",
    "wait-timeout",
    "round-timeout",
    "quorum",
    "max-failed-rounds",
    "checkpoint-every",
    "checkpoints-kept",
    "output-dir",
    "state-dir",
    "cache-dir",
    "data-path",
    "tensorboard",
}
"""Settings that may be others when a run is resumed."""


class Results:
    """The folder of one run.

    It holds ``settings.json`` (with versions), ``roster.json``, ``rounds.jsonl``,
    ``clients.csv``, ``shared.safetensors`` (the final shared parameters),
    ``summary.json`` and, where asked for, the folder ``tensorboard``.

    Parameters
    ----------
    folder
        The folder; its name is the experiment's.
    run
        Identifies this run of the experiment to the clients.
    events
        Writes TensorBoard's files, too; None writes none.
    """

    def __init__(
        self, folder: Path, run: str, events: EventFiles | None = None
    ) -> None:
        self.folder = folder
        self.run = run
        self._events = events
        self._identities: dict[str, Any] = {}

    @classmethod
    def open(cls, settings: Settings) -> Results:
        """Make the folder of a new run, or with ``resume`` open that of an earlier one.

        Raises
        ------
        ValueError
            Results stand there already and are not to be resumed, or they were made
            with other settings, or a package is missing.
        """
        name = settings.run.experiment or time.strftime(
            f"{settings.method}-{settings.data.dataset}-%Y%m%d-%H%M%S"
        )
        folder = Path(settings.run.output_dir).expanduser() / name
        wanted = settings.run.tensorboard
        events = EventFiles(folder / "tensorboard") if wanted else None
        if not (folder / "settings.json").exists():
            return cls._create(folder, settings, events)
        if settings.run.resume:
            return cls._resume(folder, settings, events)
        raise ValueError(
            f"{folder} already holds the results of a run: go on with it by "
            "resume=true, choose another experiment name, or move that folder away"
        )

    @classmethod
    def _create(
        cls, folder: Path, settings: Settings, events: EventFiles | None
    ) -> Results:
        folder.mkdir(parents=True, exist_ok=True)
        results = cls(folder, run=uuid.uuid4().hex, events=events)
        with (folder / "clients.csv").open("w", newline="") as file:
            csv.writer(file).writerow(CLIENT_COLUMNS)
        results._write_json(
            "settings.json",
            {
                "run": results.run,
                "settings": settings.to_config(),
                "versions": versions(),
                "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            },
        )
        return results

    @classmethod
    def _resume(
        cls, folder: Path, settings: Settings, events: EventFiles | None
    ) -> Results:
        stored = json.loads((folder / "settings.json").read_text())
        now = completed(settings.to_config())
        changed = [
            f"{key} = {now.get(key)!r}, was {value!r}"
            for key, value in completed(stored["settings"]).items()
            if key not in _MAY_CHANGE and now.get(key) != value
        ]
        if changed:
            raise ValueError(
                f"{folder} was made with other settings, it cannot be resumed with "
                f"{'; '.join(changed)}"
            )
        return cls(folder, run=stored["run"], events=events)

    def go_back_to(self, server_round: int) -> None:
        """Forget what was recorded after a round."""
        if self._events is not None:
            self._events.go_back_to(server_round)
        rounds = self.folder / "rounds.jsonl"
        if rounds.exists():
            lines = rounds.read_text().splitlines(keepends=True)
            kept = [line for line in lines if _round_of(line) <= server_round]
            write_atomically(rounds, "".join(kept).encode())
        clients = self.folder / "clients.csv"
        header, *rows = clients.read_text().splitlines(keepends=True)
        kept = [
            row
            for row in rows
            if row.endswith("\n") and int(row.split(",", 1)[0]) <= server_round
        ]
        write_atomically(clients, "".join([header, *kept]).encode())

    @property
    def experiment(self) -> str:
        """Name of the run."""
        return self.folder.name

    def add_identities(self, identities: Mapping[str, Identity]) -> None:
        """Record who takes part in ``roster.json``, clients met earlier included."""
        self._identities.update({n: asdict(i) for n, i in identities.items()})
        self._write_json("roster.json", dict(sorted(self._identities.items())))

    def add_round(self, record: Mapping[str, Any]) -> None:
        """Append a round's record to ``rounds.jsonl``."""
        with (self.folder / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(record, default=_plain) + "\n")
        if self._events is not None:
            self._events.add_round(record)

    def add_clients(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append rows (see :data:`CLIENT_COLUMNS`) to ``clients.csv``."""
        with (self.folder / "clients.csv").open("a", newline="") as file:
            csv.writer(file).writerows(rows)

    def finish(self, shared: State, summary: Mapping[str, Any]) -> None:
        """Write the final shared parameters and the summary of the run."""
        contiguous = {k: np.asarray(v, order="C") for k, v in shared.items()}
        write_atomically(self.folder / "shared.safetensors", save(contiguous))
        self._write_json("summary.json", summary)
        if self._events is not None:
            self._events.close()

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=2, default=_plain) + "\n"
        write_atomically(self.folder / name, text.encode())


def _round_of(line: str) -> float:
    """Return the round of a line of ``rounds.jsonl``; infinity if it is cut off."""
    try:
        return int(json.loads(line)["round"])
    except json.JSONDecodeError:
        return math.inf


def _plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")
