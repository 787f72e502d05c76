"""The figures of one run. Each is None where the run has no data for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from server_app.report.drawing import (
    INK,
    PAPER,
    SERIES,
    Drawing,
    by_round,
    canvas,
    legend,
    line,
)
from server_app.report.runs import Record, Run, number_of_clients
from server_app.report.teacher_figures import teacher_history, teachers
from server_app.units import PERCENT, percent, percents, quantity, scale


def accuracy(run: Run) -> Drawing | None:
    """Accuracy over rounds, per exit and where inference leaves early."""
    history = run.evaluations
    if not history:
        return None
    rounds = [number for number, _ in history]
    with canvas() as (figure, (axis,)):
        exits = [record.get("exit-accuracy-mean", ()) for _, record in history]
        count = min(map(len, exits))
        for index in range(count):
            values = percents([values[index] for values in exits])
            name = f"exit {index + 1}" if count > 1 else "accuracy"
            line(axis, index, rounds, values, label=name)
        if count == 0:
            values = percents([record["accuracy-mean"] for _, record in history])
            line(axis, 0, rounds, values, label="averaged over exits")
        if count > 1:
            early = [record["early-accuracy-mean"] for _, record in history]
            epsilon = run.settings["confidence-threshold"]
            axis.plot(
                rounds,
                percents(early),
                color=INK,
                alpha=0.3,
                linewidth=6,
                solid_capstyle="round",
                zorder=1.5,
                label=f"leaving early, ε = {epsilon:g}",
            )
        by_round(axis, "accuracy, % (mean over clients)")
        legend(figure, columns=2)
    last = exits[-1] or (history[-1][1]["accuracy-mean"],)
    ends = ", ".join(f"exit {i} {percent(v)} %" for i, v in enumerate(last, start=1))
    alt = f"Lines of accuracy over {rounds[-1]} rounds; at the end {ends}."
    return Drawing("accuracy", "Accuracy over rounds", alt, figure)


def clients(run: Run) -> Drawing | None:
    """Distribution of the clients' accuracies, per exit."""
    results = list(run.clients.values())
    if not results:
        return None
    count = len(run.macs)
    if count > 1:
        columns = [[r.per_exit[i] for r in results] for i in range(count)]
        labels = [f"exit {i + 1}" for i in range(count)]
        columns.append([r.early for r in results if r.early is not None])
        labels.append("leaving\nearly")
    else:
        columns, labels = [[r.average for r in results]], ["accuracy"]
    with canvas() as (figure, (axis,)):
        distribution(axis, columns, labels)
        axis.set_ylabel("accuracy of a client, %")
    spread = ", ".join(
        f"{label.replace(chr(10), ' ')} {percent(min(column))} to "
        f"{percent(max(column))} %"
        for label, column in zip(labels, columns, strict=True)
        if column
    )
    return Drawing(
        "clients",
        "Accuracy of each client",
        f"Boxes with a point per client, {len(results)} clients: {spread}.",
        figure,
        "Each point is a client on its own test data; boxes show quartiles and median, "
        "whiskers the 5th and 95th percentile.",
    )


def trade_off(run: Run) -> Drawing | None:
    """Accuracy against cost over the confidence threshold ε."""
    last, macs = run.last, run.macs
    fixed = last.get("exit-accuracy-mean", ())
    if len(macs) < 2 or len(fixed) != len(macs):
        return None
    divisor, prefix = scale(macs[-1])
    epsilon = run.settings["confidence-threshold"]
    curve = last.get("epsilon-macs-mean", ())
    with canvas() as (figure, (axis,)):
        if curve:
            costs = np.asarray(curve) / divisor
            values = percents(last["epsilon-accuracy-mean"])
            line(axis, 0, costs, values, markersize=3, label="leaving early, ε 0 to 1")
        axis.plot(
            np.asarray(macs) / divisor,
            percents(fixed),
            linestyle="none",
            marker="s",
            markersize=7,
            markerfacecolor=PAPER,
            markeredgecolor=SERIES[1][0],
            markeredgewidth=1.6,
            label="always the same exit",
        )
        for index, (cost, value) in enumerate(zip(macs, fixed, strict=True), start=1):
            _note(axis, f"exit {index}", cost / divisor, PERCENT * value, below=True)
        cost = last["early-macs-mean"] / divisor
        value = PERCENT * last["early-accuracy-mean"]
        axis.plot(
            cost,
            value,
            linestyle="none",
            marker="*",
            markersize=15,
            color=INK,
            label=f"chosen, ε = {epsilon:g}",
        )
        axis.margins(x=0.12, y=0.16)
        axis.set(xlabel=f"{prefix} MACs per sample (mean)", ylabel="accuracy, % (mean)")
        legend(figure, columns=2)
    saved = percent(1 - last["early-macs-mean"] / macs[-1])
    return Drawing(
        "trade-off",
        "Accuracy against cost",
        f"At ε = {epsilon:g} accuracy is {value:.2f} % at {cost:.2f} {prefix} MACs per "
        f"sample, {saved} % less than the whole network.",
        figure,
        f"Inference leaves at the first exit whose confidence reaches ε; ε = "
        f"{epsilon:g} saves {saved} % of the multiply-accumulates.",
    )


def cost(run: Run) -> Drawing | None:
    """Mean cost of inference at the configured ε, by round."""
    if len(run.macs) < 2:
        return None
    rounds = [number for number, _ in run.evaluations]
    values = [record["early-macs-mean"] for _, record in run.evaluations]
    divisor, prefix = scale(run.macs[-1])
    epsilon = run.settings["confidence-threshold"]
    with canvas(height=3.0) as (figure, (axis,)):
        whole = run.macs[-1] / divisor
        axis.axhline(whole, color=INK, linestyle=(0, (1, 2)), label="whole network")
        scaled = [value / divisor for value in values]
        line(axis, 0, rounds, scaled, label=f"leaving early, ε = {epsilon:g}")
        axis.set_ylim(0, 1.06 * whole)
        by_round(axis, f"{prefix} MACs per sample (mean)")
        legend(figure)
    return Drawing(
        "macs",
        "Cost of inference by round",
        f"From {quantity(values[0], 'MACs')} in round {rounds[0]} to "
        f"{quantity(values[-1], 'MACs')} in round {rounds[-1]}; the whole network "
        f"takes {quantity(run.macs[-1], 'MACs')}.",
        figure,
    )


def students(run: Run) -> Drawing | None:
    """Students per exit, by round."""
    found = run.method_records("students_per_exit")
    if not found:
        return None
    rounds = [number for number, _ in found]
    counts = np.array([values for _, values in found])
    with canvas(height=3.0) as (figure, (axis,)):
        for index in range(counts.shape[1]):
            line(
                axis,
                index,
                rounds,
                counts[:, index],
                label=f"exit {index + 1}",
                drawstyle="steps-mid",
                solid_joinstyle="miter",
                linewidth=1.8 * (counts.shape[1] - index),  # none hides another
                marker="",
            )
        by_round(axis, "students (clients)")
        axis.set_ylim(bottom=0)
        legend(figure, columns=4)
    ends = ", ".join(f"exit {i} {n}" for i, n in enumerate(counts[-1], start=1))
    return Drawing(
        "students",
        "Students per exit",
        f"Steps over {rounds[-1]} rounds; in the last round {ends} clients.",
        figure,
        "Clients whose exit learns in the round; the last exit always does.",
    )


def traffic(run: Run) -> Drawing | None:
    """Bytes to and from all clients, by round."""
    if not run.rounds:
        return None
    rounds = [record["round"] for record in run.rounds]
    edges = [number - 0.5 for number in rounds] + [rounds[-1] + 0.5]
    parts = {
        (direction, phase): np.array(
            [_bytes(record.get(phase, {}), direction) for record in run.rounds]
        )
        for direction in ("down", "up")
        for phase in ("train", "evaluate")
    }
    totals = {
        direction: parts[direction, "train"] + parts[direction, "evaluate"]
        for direction in ("down", "up")
    }
    divisor, prefix = scale(max(float(total.max()) for total in totals.values()))
    with canvas(height=3.0) as (figure, (axis,)):
        for index, (direction, sign) in enumerate((("down", 1), ("up", -1))):
            train = sign * parts[direction, "train"] / divisor
            total = sign * totals[direction] / divisor
            colour = SERIES[index][0]
            axis.stairs(
                train, edges, fill=True, color=colour, label=f"{direction}, training"
            )
            if (total != train).any():
                axis.stairs(
                    total,
                    edges,
                    baseline=train,
                    fill=True,
                    color=colour,
                    alpha=0.45,
                    label=f"{direction}, evaluation",
                )
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        by_round(axis, f"{prefix}B per round, all clients")
        legend(figure, columns=3)
    sums = [quantity(float(totals[name].sum()), "B") for name in ("down", "up")]
    return Drawing(
        "traffic",
        "Bytes down and up",
        f"Bars by round; over the run {sums[0]} go down and {sums[1]} up.",
        figure,
        "Payload to (above zero) and from (below) all clients; over the run "
        f"{sums[0]} down, {sums[1]} up.",
    )


def duration(run: Run) -> Drawing | None:
    """Duration of training and evaluation, by round."""
    if not run.rounds:
        return None
    rounds = [record["round"] for record in run.rounds]
    with canvas(height=3.0) as (figure, (axis,)):
        train = [record["train"].get("seconds", 0.0) for record in run.rounds]
        line(axis, 0, rounds, train, label="training")
        pairs = [
            (number, record.get("seconds", 0.0)) for number, record in _phases(run)
        ]
        if pairs:
            line(axis, 1, *zip(*pairs, strict=True), label="evaluation")
        axis.set_ylim(bottom=0)
        by_round(axis, "seconds")
        legend(figure)
    median = float(np.median(train))
    return Drawing(
        "time",
        "Duration of a round",
        f"Training takes {median:.1f} s in the median over {len(rounds)} rounds.",
        figure,
    )


FIGURES: Final[Sequence[Callable[[Run], Drawing | None]]] = (
    accuracy,
    clients,
    trade_off,
    cost,
    students,
    teachers,
    teacher_history,
    traffic,
    duration,
)
"""All figures of a run, in the order of the page."""


def distribution(
    axis: Axes, columns: Sequence[Sequence[float]], labels: Sequence[str]
) -> None:
    """Draw fractions as boxes with a point for each value."""
    positions = range(1, len(columns) + 1)
    axis.boxplot(
        [percents(column) for column in columns],
        positions=positions,
        whis=(5, 95),
        widths=0.5,
        showfliers=False,
        medianprops={"color": INK, "linewidth": 2},
        boxprops={"color": INK},
        whiskerprops={"color": INK},
        capprops={"color": INK},
    )
    for index, (position, column) in enumerate(zip(positions, columns, strict=True)):
        colour, marker, _ = SERIES[index % len(SERIES)]
        rank = np.arange(len(column)) * 0.618034 % 1 - 0.5  # spread, alike every time
        axis.plot(
            position + 0.36 * rank,
            percents(column),
            linestyle="none",
            marker=marker,
            markersize=4 if len(column) <= 40 else 2,
            color=colour,
            alpha=0.75,
        )
    axis.set_xticks(list(positions), labels)
    axis.grid(axis="x", visible=False)


def _phases(run: Run) -> list[tuple[int, Record]]:
    return [(r["round"], r["evaluate"]) for r in run.rounds if "evaluate" in r]


def _bytes(part: Record, direction: str) -> float:
    """Return the bytes of a phase from what is recorded per client."""
    if direction == "down":
        return float(part.get("down_bytes_per_client", 0.0) * number_of_clients(part))
    return float(part.get("up_bytes_per_client", 0.0) * len(part.get("replied", ())))


def _note(axis: Axes, text: str, x: float, y: float, *, below: bool) -> None:
    axis.annotate(
        text,
        (x, y),
        xytext=(0, -9 if below else 9),
        textcoords="offset points",
        ha="center",
        va="top" if below else "bottom",
        fontsize=9,
    )
