"""The tables of the report, as rows of cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from common.settings import keys
from server_app.report.groups import Group, Task, deviation, differing
from server_app.report.paper import published
from server_app.report.runs import Run, number_of_clients, spans
from server_app.units import PERCENT, duration, percent, quantity


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a cell, and the number to sort by where it is one."""

    text: str
    key: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its caption; the first cell of a row is its heading."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sortable: bool = False

    @property
    def numeric(self) -> list[bool]:
        """Tell for each column whether it holds numbers."""
        columns = zip(*self.rows, strict=True)
        return [any(cell.key is not None for cell in column) for column in columns]


def summary(task: Task) -> Table:
    """One row per group: accuracy, cost, bytes, failures, time."""
    seeds = any(len(group.runs) > 1 for group in task.groups)
    over = "seeds" if seeds else "clients"
    head = [
        "run",
        *(["seeds"] if seeds else []),
        "rounds",
        "accuracy",
        *(["± over clients"] if seeds else []),
        "per exit",
        "leaving early",
        "MACs then",
        "saved",
        "down",
        "up",
        "failures",
        "time",
    ]
    rows = [_summary_row(group, seeds) for group in task.groups]
    caption = (
        f"After the last evaluation: accuracies and saved MACs in %, ± over {over}; "
        "bytes per client and training round"
    )
    return Table(caption, head, rows)


def papers(task: Task) -> Table:
    """Measured accuracy beside the papers', where they have the same experiment."""
    rows = []
    for group in task.groups:
        figure = published(group.runs[0])
        values = group.values(lambda record: record["accuracy-mean"])
        if figure is None or not values:
            continue
        unlike = figure.deviations(group.runs[0])
        if any(not run.finished for run in group.runs):
            unlike.append("unfinished")
        measured = PERCENT * float(np.mean(values))
        rows.append(
            [
                Cell(group.label),
                Cell(figure.quantity),
                Cell(_with_seeds(values), measured),
                Cell(f"{figure.value:.2f}", figure.value),
                Cell(f"{measured - figure.value:+.2f}", measured - figure.value),
                Cell(figure.source),
                Cell("; ".join(unlike) or "as in the paper"),
            ]
        )
    head = ["run", "figure", "here", "paper", "difference", "source", "setting here"]
    return Table("Beside the papers", head, rows)


def differences(task: Task) -> Table:
    """List the settings in which a task's runs differ."""
    runs = task.runs
    rows = [
        [Cell(name), *(Cell(_setting(value)) for value in values)]
        for name, values in differing(runs)
    ]
    head = ["setting", *(run.name for run in runs)]
    return Table("Settings that differ", head, rows)


def failures(run: Run) -> Table:
    """Why clients did not count."""
    rows = [
        [
            Cell(failure.client),
            Cell(failure.phase),
            Cell(failure.reason),
            Cell(str(len(failure.rounds)), len(failure.rounds)),
            Cell(spans(failure.rounds)),
        ]
        for failure in run.failures
    ]
    head = ["client", "while", "reason", "times", "rounds"]
    return Table("Failures", head, rows, sortable=True)


def clients(run: Run) -> Table:
    """One row per client: who it is, what it reached, what it cost."""
    exits = max((len(c.per_exit) for c in run.clients.values()), default=0)
    early = exits > 1
    measured = [name for name, _ in COSTS if run.costs.get(name)]
    head = ["client", "network", "device", "training samples", "rounds trained"]
    head += [f"exit {i}, %" for i in range(1, exits + 1)] if early else ["accuracy, %"]
    head += ["leaving early, %", "MACs then"] if early else ["MACs"]
    head += [title for name, title in COSTS if name in measured]
    rows = []
    for name in sorted(set(run.roster) | set(run.clients)):
        identity, result = run.roster.get(name, {}), run.clients.get(name)
        trained = run.rounds_trained[name]
        row = [
            Cell(name),
            Cell(str(identity.get("model", "–"))),
            Cell(str(identity.get("device", "–"))),
            _count(identity.get("num_train")),
            Cell(str(trained), trained),
        ]
        values = list(result.per_exit) if result else []
        row += [_percent(v) for v in [*values, *[None] * (exits - len(values))]]
        cost = None if result is None else result.early_macs
        if early:
            row += [_percent(result.early if result else None)]
        row += [Cell(quantity(cost, "MACs"), cost)]
        row += [_mean(run.costs[key].get(name, ())) for key in measured]
        rows.append(row)
    return Table("Clients", head, rows, sortable=True)


def settings(run: Run) -> Table:
    """All settings, with the default beside those that differ from it."""
    defaults = {key.name: key.default for key in keys()}
    rows = [
        [
            Cell(name),
            Cell(_setting(value)),
            Cell("" if value == defaults.get(name) else _setting(defaults.get(name))),
        ]
        for name, value in run.settings.items()
    ]
    return Table("Settings", ["setting", "value", "default, where another"], rows)


def versions(run: Run) -> Table:
    """Versions on the server, and those clients report that have others."""
    rows = [[Cell(name), Cell(version)] for name, version in run.versions.items()]
    reported: dict[str, list[str]] = {}
    for name, identity in run.roster.items():
        reported.setdefault(str(identity.get("versions", "–")), []).append(name)
    for line, names in reported.items():
        who = names[0] if len(names) == 1 else f"{len(names)} clients"
        rows.append([Cell(who), Cell(line)])
    return Table("Versions of the server's packages, and the clients'", ["", ""], rows)


def tiles(run: Run) -> list[tuple[str, str]]:
    """Return the few figures that say most of a run."""
    last = run.last
    found = [("rounds", f"{len(run.rounds)} of {run.settings['num-server-rounds']}")]
    if last:
        exits = " over exits" if len(run.macs) > 1 else ""
        spread = percent(last["accuracy-mean"], last["accuracy-std"])
        found.append((f"accuracy{exits}, %", spread))
    if last and len(run.macs) > 1:
        epsilon = run.settings["confidence-threshold"]
        early = percent(last["early-accuracy-mean"], last["early-accuracy-std"])
        found.append((f"leaving early, ε = {epsilon:g}, %", early))
        saved = percent(1 - last["early-macs-mean"] / run.macs[-1])
        found.append(("inference saved, %", saved))
    if "noisy-early-accuracy-mean" in last:
        noisy = [last[f"noisy-early-accuracy-{name}"] for name in ("mean", "std")]
        found.append(("the same on noisy images, %", percent(*noisy)))
    if last.get("unseen-clients"):
        label = f"{last['unseen-clients']} clients that never trained, %"
        found.append((label, percent(last["unseen-accuracy-mean"])))
    if "latency-median" in last:
        found.append(("latency, median, ms", f"{1e3 * last['latency-median']:.3g}"))
    found.append(("failures", str(sum(len(f.rounds) for f in run.failures))))
    found.append(("time", duration(run.seconds)))
    return found


COSTS = (("seconds", "training, s"), ("energy-joules", "energy, J"))
"""Telemetry shown per client, mean over its training rounds, and its column's title."""


def _summary_row(group: Group, seeds: bool) -> list[Cell]:
    runs = group.runs
    macs = group.values(lambda r: r["early-macs-mean"])
    exits = group.values(lambda r: r.get("exit-accuracy-mean"))
    per_exit = np.mean(exits, axis=0) if len({len(v) for v in exits}) == 1 else []
    saved = [1 - r.last["early-macs-mean"] / r.macs[-1] for r in runs if r.macs]
    failed = sum(len(failure.rounds) for run in runs for failure in run.failures)
    spread = group.values(lambda r: r["accuracy-std"])
    return [
        Cell(group.label),
        *([Cell(", ".join(str(r.settings["seed"]) for r in runs))] if seeds else []),
        Cell(_each(str(len(run.rounds)) for run in runs)),
        _accuracy(group, "accuracy", seeds),
        *([_percent(float(np.mean(spread)) if spread else None)] if seeds else []),
        Cell(" / ".join(f"{PERCENT * value:.1f}" for value in per_exit) or "–"),
        _accuracy(group, "early-accuracy", seeds),
        _quantity(macs, "MACs"),
        _percent(float(np.mean(saved)) if saved else None),
        _quantity([_per_client(run, "down") for run in runs], "B"),
        _quantity([_per_client(run, "up") for run in runs], "B"),
        Cell(str(failed), failed),
        Cell(_each(duration(run.seconds) for run in runs)),
    ]


def _accuracy(group: Group, key: str, seeds: bool) -> Cell:
    """Return mean ± standard deviation: over seeds, or of the one run over clients."""
    values = group.values(lambda r: r[f"{key}-mean"])
    if not values:
        return Cell("–")
    if seeds:
        return Cell(_with_seeds(values), float(np.mean(values)))
    return Cell(percent(values[0], group.runs[0].last[f"{key}-std"]), values[0])


def _each(texts: Iterable[str]) -> str:
    """Write what each seed has, once where all have the same."""
    return " / ".join(dict.fromkeys(texts))


def _per_client(run: Run, direction: str) -> float:
    """Return the mean bytes per client and training round, evaluation left out."""
    key = f"{direction}_bytes_per_client"
    parts = [r["train"] for r in run.rounds if number_of_clients(r["train"])]
    return float(np.mean([part.get(key, 0.0) for part in parts])) if parts else 0.0


def _with_seeds(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = deviation(values) if len(values) > 1 else None
    return percent(float(np.mean(values)), spread)


def _percent(value: float | None) -> Cell:
    return Cell(percent(value), value)


def _quantity(values: Sequence[float], unit: str) -> Cell:
    value = float(np.mean(values)) if values else None
    return Cell(quantity(value, unit), value)


def _count(value: int | None) -> Cell:
    return Cell("–" if value is None else f"{value:,}", value)


def _mean(values: Sequence[float]) -> Cell:
    if not values:
        return Cell("–")
    mean = float(np.mean(values))
    return Cell(f"{mean:.2f}", mean)


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value) or "''"
