"""Comparisons of entries, paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.accuracy.store import Entry


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of paired differences."""

    mean: float
    seeds: tuple[int, ...]
    per_seed: tuple[float, ...]
    error: float | None
    """Standard error over seeds; None for one seed."""
    error_clients: float | None
    """Standard error over clients: of each client's difference, averaged over seeds.
    None where the clients' values are not known or not the same clients."""


def paired(first: Entry, second: Entry) -> Difference | None:
    """Return first − second over the seeds that both have; None where there is none.

    Seeds whose value does not exist do not count. Runs of other lengths or on other
    data are no pairs.
    """
    if any(first.get(key) != second.get(key) for key in ("rounds", "data")):
        return None
    pairs = {
        int(seed): (measured, second["per_seed"][seed])
        for seed, measured in first["per_seed"].items()
        if seed in second["per_seed"]
        and measured["value"] is not None
        and second["per_seed"][seed]["value"] is not None
    }
    if not pairs:
        return None
    differences = [a["value"] - b["value"] for a, b in pairs.values()]
    clients = [(a.get("clients", []), b.get("clients", [])) for a, b in pairs.values()]
    lengths = {len(values) for pair in clients for values in pair}
    by_client: list[float] = []
    if len(lengths) == 1 and lengths != {0}:
        by_client = [
            statistics.mean(a[i] - b[i] for a, b in clients) for i in range(*lengths)
        ]
    return Difference(
        mean=statistics.mean(differences),
        seeds=tuple(pairs),
        per_seed=tuple(differences),
        error=_standard_error(differences),
        error_clients=_standard_error(by_client),
    )


def _standard_error(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return statistics.stdev(values) / math.sqrt(len(values))


def bar(
    name: str,
    entries: Mapping[str, Entry],
    first: str,
    second: str,
    target: float | None = None,
) -> list[Entry]:
    """Return the entry that compares two others, [] where one is missing.

    Parameters
    ----------
    first, second
        Names of entries, measured in % points; the value is first − second.
    target
        The value to reach.
    """
    if first not in entries or second not in entries:
        return []
    difference = paired(entries[first], entries[second])
    if difference is None:
        return []
    return [
        {
            **_judged(name, difference.mean, target),
            **_origin(entries[first]),
            "what": f"{first} − {second}",
            "seeds": list(difference.seeds),
            "standard_error": difference.error,
            "standard_error_clients": difference.error_clients,
            "per_seed": {
                str(seed): {"value": value}
                for seed, value in zip(
                    difference.seeds, difference.per_seed, strict=True
                )
            },
        }
    ]


def bar_against(
    name: str,
    entries: Mapping[str, Entry],
    first: str,
    reference: float,
    target: float | None,
) -> list[Entry]:
    """Return the entry that compares another with a published figure, [] without it."""
    entry = entries.get(first)
    if entry is None or entry["value"] is None:
        return []
    spread = entry["std_seeds"]
    return [
        {
            **_judged(name, entry["value"] - reference, target),
            **_origin(entry),
            "what": f"{first} − {reference:g}",
            "seeds": entry["seeds"],
            "standard_error": (
                None if spread is None else spread / math.sqrt(len(entry["seeds"]))
            ),
        }
    ]


def _judged(name: str, value: float, target: float | None) -> Entry:
    return {
        "name": name,
        "value": value,
        "unit": "points",
        "target": target,
        "met": None if target is None else value >= target,
    }


def _origin(entry: Entry) -> Entry:
    keys = ("command", "date", "hardware", "rounds", "data")
    return {key: entry[key] for key in keys}
