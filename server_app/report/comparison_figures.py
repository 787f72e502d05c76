"""The figures that set runs on one task side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from server_app.report.drawing import SERIES, Drawing, by_round, canvas, legend, line
from server_app.report.groups import Group, Task, deviation
from server_app.report.run_figures import distribution
from server_app.units import PERCENT, percent, percents, scale


def accuracy(task: Task) -> Drawing | None:
    """Accuracy over rounds of each group, with a band over seeds."""
    groups = [group for group in task.groups if group.values(lambda r: r)]
    if not groups:
        return None
    ends = []
    with canvas() as (figure, (axis,)):
        for index, group in enumerate(groups):
            rounds, mean, spread = group.over_rounds("accuracy-mean")
            if not rounds:
                continue
            line(axis, index, rounds, percents(mean), label=group.label)
            if any(spread):
                low, high = np.subtract(mean, spread), np.add(mean, spread)
                colour = SERIES[index % len(SERIES)][0]
                axis.fill_between(
                    rounds, PERCENT * low, PERCENT * high, color=colour, alpha=0.2
                )
            ends.append(f"{group.label} {percent(mean[-1])} %")
        by_round(axis, "accuracy, % (mean over clients)")
        legend(figure, columns=_columns(groups))
    return Drawing(
        "accuracy",
        "Accuracy over rounds",
        f"A line per kind of run; at the end {', '.join(ends)}.",
        figure,
        "Averaged over a network's exits."
        + (f" Bands: {_SEEDS}." if any(len(g.runs) > 1 for g in groups) else ""),
    )


def clients(task: Task) -> Drawing | None:
    """Distribution of the clients' accuracies in each group."""
    found = [
        (group.label, [c.average for run in group.runs for c in run.clients.values()])
        for group in task.groups
    ]
    found = [(label, values) for label, values in found if values]
    if not found:
        return None
    with canvas() as (figure, (axis,)):
        labels = [label.replace(", ", ",\n") for label, _ in found]
        distribution(axis, [values for _, values in found], labels)
        axis.set_ylabel("accuracy of a client, %")
        if len(found) > 4:
            axis.tick_params(axis="x", labelrotation=30)
    medians = ", ".join(f"{name} {percent(float(np.median(v)))} %" for name, v in found)
    return Drawing(
        "clients",
        "Accuracy of each client",
        f"Boxes with a point per client; medians: {medians}.",
        figure,
        "Averaged over a network's exits; each point is a client on its own test data, "
        "boxes show quartiles and median, whiskers the 5th and 95th percentile.",
    )


def trade_off(task: Task) -> Drawing | None:
    """Accuracy against cost where inference leaves early, of each group."""
    points = []
    for index, group in enumerate(task.groups):
        costs = group.values(lambda r: r["early-macs-mean"])
        values = group.values(lambda r: r["early-accuracy-mean"])
        if costs:
            points.append((index, group, costs, values))
    if not points or all(len(run.macs) == 1 for run in task.runs):
        return None
    divisor, prefix = scale(max(max(costs) for _, _, costs, _ in points))
    with canvas() as (figure, (axis,)):
        for index, group, costs, values in points:
            colour, marker, _ = SERIES[index % len(SERIES)]
            several = len(costs) > 1
            axis.errorbar(
                float(np.mean(costs)) / divisor,
                PERCENT * float(np.mean(values)),
                xerr=deviation(costs) / divisor if several else None,
                yerr=PERCENT * deviation(values) if several else None,
                linestyle="none",
                marker=marker,
                markersize=9,
                color=colour,
                capsize=3,
                label=group.label,
            )
            curves = group.values(lambda r: r.get("epsilon-macs-mean"))
            if curves:
                heights = group.values(lambda r: r.get("epsilon-accuracy-mean"))
                line(
                    axis,
                    index,
                    np.mean(curves, axis=0) / divisor,
                    PERCENT * np.mean(heights, axis=0),
                    marker="",
                )
        axis.margins(0.12)
        axis.set(xlabel=f"{prefix} MACs per sample (mean)", ylabel="accuracy, % (mean)")
        legend(figure, columns=_columns([group for _, group, _, _ in points]))
    chosen = ", ".join(
        f"{group.label} {percent(float(np.mean(values)))} % at "
        f"{np.mean(costs) / divisor:.2f} {prefix} MACs"
        for _, group, costs, values in points
    )
    return Drawing(
        "trade-off",
        "Accuracy against cost, leaving early",
        f"A point per kind of run at its confidence threshold: {chosen}.",
        figure,
        "Points: at the run's ε; lines, where recorded: over all ε."
        + (f" Bars: {_SEEDS}." if any(len(g.runs) > 1 for g in task.groups) else ""),
    )


FIGURES: Final[Sequence[Callable[[Task], Drawing | None]]] = (
    accuracy,
    trade_off,
    clients,
)
"""All figures of a task, in the order of the page."""

_SEEDS: Final = "± one sample standard deviation over the seeds"


def _columns(groups: Sequence[Group]) -> int:
    """Return how many names of groups fit side by side."""
    longest = max(len(group.label) for group in groups)
    return max(1, min(3, 56 // (longest + 6)))
