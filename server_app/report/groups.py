"""Runs put together: those on one task are compared, those of one kind are averaged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from server_app.report.runs import Record, Run

T = TypeVar("T")

_OF_NO_EFFECT = {
    "seed",
    "experiment",
    "resume",
    "checkpoint-every",
    "checkpoints-kept",
    "state-dir",
    "output-dir",
    "cache-dir",
    "wait-timeout",
    "round-timeout",
    "min-available-nodes",
    "cpu-threads",
    "tensorboard",
}
"""Settings in which runs of one group may differ beside the seed: where things are kept
and how long one waits do not change what is computed."""

_TASK = (
    "dataset",
    "data-path",
    "partition",
    "dirichlet-alpha",
    "classes-per-client",
    "min-partition-size",
    "num-samples",
    "test-fraction",
    "image-size",
    "channels",
    "num-classes",
)
"""Settings that say which clients' data is to be learned."""

_ONLY_OF = {"dirichlet-alpha": "dirichlet", "classes-per-client": "pathological"}
"""Partition without which a setting means nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    runs: Sequence[Run]

    def values(self, read: Callable[[Record], Any]) -> list[Any]:
        """Return what `read` finds in each run's last evaluation; None is left out."""
        found = [read(run.last) for run in self.runs if run.last]
        return [value for value in found if value is not None]

    def over_rounds(self, key: str) -> tuple[list[int], list[float], list[float]]:
        """Return rounds, mean over seeds and sample standard deviation over seeds.

        Only rounds that all runs evaluated are there; with one run the standard
        deviation is 0.
        """
        series = [
            {number: record[key] for number, record in run.evaluations}
            for run in self.runs
            if run.evaluations
        ]
        common = sorted(set.intersection(*map(set, series))) if series else []
        columns = [[values[number] for values in series] for number in common]
        spread = [deviation(column) for column in columns]
        return common, [float(np.mean(column)) for column in columns], spread


@dataclass(frozen=True, slots=True)
class Task:
    """Runs on the same clients' data."""

    title: str
    groups: Sequence[Group]

    @property
    def runs(self) -> list[Run]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def tasks(runs: Sequence[Run]) -> list[Task]:
    """Sort runs into tasks and, inside them, into groups of one kind."""
    found = []
    for members in _sorted_by(runs, _task_key):
        kinds = _sorted_by(members, _group_key)
        groups = [
            Group(label, kind)
            for label, kind in zip(_labels(kinds), kinds, strict=True)
        ]
        found.append(Task(task_title(members[0]), groups))
    return found


def task_title(run: Run) -> str:
    """Name a run's data and clients, e.g. ``cifar10, Dirichlet(0.3), 100 clients``."""
    settings = run.settings
    partition = {
        "dirichlet": f"Dirichlet({settings['dirichlet-alpha']:g})",
        "pathological": f"{settings['classes-per-client']} classes per client",
        "iid": "IID",
    }.get(settings["partition"], settings["partition"])
    count = run.num_clients
    clients = "1 client" if count == 1 else f"{count:,} clients"
    if settings["dataset"] == "custom":
        return f"clients' own data, {clients}"
    return f"{settings['dataset']}, {partition}, {clients}"


def differing(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """Return the settings in which runs differ, with each run's value.

    The value is None for a run of another method; a setting that only one of the runs
    has is left out.
    """
    names = dict.fromkeys(key for run in runs for key in run.settings)
    rows = []
    for name in names:
        values = [run.settings.get(name) for run in runs]
        own = [value for value in values if value is not None]
        if name not in ("experiment", "output-dir") and len(set(own)) > 1:
            rows.append((name, values))
    return rows


def _labels(kinds: Sequence[Sequence[Run]]) -> list[str]:
    """Name each kind by its method, and by what sets it apart from others of it."""
    labels = []
    for kind in kinds:
        rivals = [other[0] for other in kinds if other[0].method == kind[0].method]
        apart = [name for name, _ in differing(rivals) if name not in _OF_NO_EFFECT]
        label = kind[0].method
        if len(rivals) > 1:
            values = [f"{name} {kind[0].settings[name]}" for name in apart]
            label += f", {', '.join(values)}" if 0 < len(apart) <= 2 else ""
            if not 0 < len(apart) <= 2:
                label = kind[0].name
        labels.append(label)
    return labels


def _task_key(run: Run) -> Hashable:
    settings = run.settings
    means = [
        name
        for name in _TASK
        if _ONLY_OF.get(name) in (None, settings.get("partition"))
    ]
    return tuple(settings.get(name) for name in means), run.num_clients


def _group_key(run: Run) -> Hashable:
    return tuple(sorted(_effective(run.settings).items()))


def _effective(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: v for key, v in settings.items() if key not in _OF_NO_EFFECT}


def _sorted_by(runs: Sequence[Run], key: Callable[[Run], Hashable]) -> list[list[Run]]:
    found: dict[Hashable, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return list(found.values())
