"""The file of measured figures: entries, and how runs of several machines add up.

An entry has ``name`` (table/cell/figure), ``value`` (mean over seeds), ``unit``,
``target`` (None where nothing is asked), ``met``, ``command``, ``date``, ``hardware``
and further ``std_clients`` (mean over seeds of the standard deviation over clients),
``std_seeds`` (standard deviation over seeds), ``seeds``, ``rounds``, ``data`` and
``per_seed``, what each seed gave. A cell's entry ``averaged`` also holds its settings.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cells import same_settings
from benchmarks.accuracy.runs import Measured
from common.files import write_atomically
from common.schema import Scalar

Entry = dict[str, Any]

UNITS = {
    "averaged": "%",
    "early": "%",
    "exit": "%",
    "early-macs": "MACs per sample",
    "down-bytes": "bytes per client and round",
    "up-bytes": "bytes per client and round",
    "round-seconds": "s",
    "rounds-to": "rounds",
    "bytes-to": "bytes per client",
    "macs-to": "MACs per client",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a run's figures come from."""

    command: str
    date: str
    hardware: str


class Store:
    """Entries by name, in a JSON file with one entry per line.

    Parameters
    ----------
    path
        The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        entries = json.loads(path.read_text()) if path.exists() else []
        self.entries: dict[str, Entry] = {entry["name"]: entry for entry in entries}

    def add(
        self,
        cell: str,
        seed: int,
        measured: Mapping[str, Measured],
        *,
        settings: Mapping[str, Scalar],
        data: str,
        origin: Origin,
    ) -> None:
        """Add what a run of a cell measured.

        What other seeds gave is kept where they ran with the same settings, and dropped
        otherwise.
        """
        known = self.entries.get(f"{cell}/averaged", {}).get("settings", {})
        if not same_settings(known, settings):
            self.remove(cell)
        for figure, value in measured.items():
            name = f"{cell}/{figure}"
            seeds = dict(self.entries.get(name, {}).get("per_seed", {}))
            seeds[str(seed)] = {
                "value": value.value,
                **({"std_clients": value.std_clients} if value.curve else {}),
                **({"curve": value.curve} if value.curve else {}),
                **({"clients": value.clients} if value.clients else {}),
                "date": origin.date,
                "hardware": origin.hardware,
            }
            entry = _summarize(name, figure, seeds)
            entry |= {"command": origin.command, "data": data}
            entry["rounds"] = settings["num-server-rounds"]
            if figure == "averaged":
                entry["settings"] = dict(settings)
            self.entries[name] = entry

    def remove(self, prefix: str) -> None:
        """Forget all entries of a cell, or of a table's comparisons."""
        for name in [n for n in self.entries if n.startswith(f"{prefix}/")]:
            del self.entries[name]

    def replace(self, prefix: str, entries: Iterable[Entry]) -> None:
        """Put entries in the place of all whose names start with `prefix` and '/'."""
        self.remove(prefix)
        self.entries.update({entry["name"]: entry for entry in entries})

    def save(self) -> None:
        """Put the entries in the order of their names and write the file."""
        self.entries = dict(sorted(self.entries.items()))
        lines = (
            json.dumps(entry, ensure_ascii=False) for entry in self.entries.values()
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, ("[\n" + ",\n".join(lines) + "\n]\n").encode())


def _summarize(name: str, figure: str, per_seed: Mapping[str, Entry]) -> Entry:
    seeds = {key: per_seed[key] for key in sorted(per_seed, key=int)}
    values = [seed["value"] for seed in seeds.values()]
    spreads = [s["std_clients"] for s in seeds.values() if "std_clients" in s]
    complete = None not in values
    return {
        "name": name,
        "value": statistics.mean(values) if complete else None,
        "unit": _unit(figure),
        "target": None,
        "met": None,
        "date": max(seed["date"] for seed in seeds.values()),
        "hardware": "; ".join(dict.fromkeys(s["hardware"] for s in seeds.values())),
        "std_clients": statistics.mean(spreads) if spreads else None,
        "std_seeds": statistics.stdev(values) if complete and len(values) > 1 else None,
        "seeds": [int(key) for key in seeds],
        "per_seed": seeds,
    }


def _unit(figure: str) -> str:
    return UNITS.get(figure) or UNITS[figure.rpartition("-")[0]]
