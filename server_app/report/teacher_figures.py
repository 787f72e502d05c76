"""The figures of X-FED's teachers: who learns from whom, and how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from server_app.report.drawing import Drawing, by_round, canvas
from server_app.report.runs import Run

_PANELS = 4  # rounds whose teacher weights are shown
_NAMED = 24  # clients up to which an axis names each


def teachers(run: Run) -> Drawing | None:
    """Weights of the clients' last exits in each other's teachers, some rounds."""
    found = run.method_records("teacher_weights")
    if not found:
        return None
    chosen = np.unique(np.linspace(0, len(found) - 1, _PANELS).round().astype(int))
    rows = (len(chosen) + 1) // 2
    columns = min(2, len(chosen))
    names = {r["round"]: r["train"]["clients"] for r in run.rounds}
    largest = max(float(np.max(found[i][1])) for i in chosen)
    with canvas(0.5 + 2.3 * rows, rows, columns) as (figure, axes):
        for axis, position in zip(axes, chosen, strict=False):
            number, weights = found[position]
            _heat(axis, np.asarray(weights), largest)
            axis.set_title(f"round {number}")
            _name_clients(axis, names[number])
        for axis in axes[len(chosen) :]:
            axis.set_axis_off()
        _colour_bar(figure, axes, "weight")
        figure.supxlabel("teacher", fontsize=10)
        figure.supylabel("taught client", fontsize=10)
    own = [float(np.diag(weights).mean()) for _, weights in found]
    return Drawing(
        "teachers",
        "Who teaches whom",
        f"Heat maps of teacher weights in rounds "
        f"{', '.join(str(found[i][0]) for i in chosen)}; the weight a client gives "
        f"itself is {own[0]:.2f} at first and {own[-1]:.2f} at the end.",
        figure,
        "Each row sums to 1. Only clients sampled in the round are there; colours grow "
        "with the square root of the weight.",
    )


def teacher_history(run: Run) -> Drawing | None:
    """Weight that each client gives itself, by round."""
    found = run.method_records("teacher_weights")
    if len(found) < 2:
        return None
    by_name = {r["round"]: r["train"]["clients"] for r in run.rounds}
    names = sorted({name for number, _ in found for name in by_name[number]})
    row = {name: index for index, name in enumerate(names)}
    grid = np.full((len(names), len(found)), np.nan)
    for column, (number, weights) in enumerate(found):
        for index, name in enumerate(by_name[number]):
            grid[row[name], column] = weights[index][index]
    edges = np.array([number for number, _ in found], dtype=float)
    height = 1.6 + 0.09 * min(len(names), 40)
    with canvas(height) as (figure, (axis,)):
        axis.grid(False)
        mesh = axis.pcolormesh(
            edges, np.arange(len(names)), grid, cmap="cividis", rasterized=True
        )
        axis.invert_yaxis()
        by_round(axis, "client")
        if len(names) <= _NAMED:
            axis.set_yticks(range(len(names)), _short(names), fontsize=8)
        bar = figure.colorbar(mesh, ax=axis, label="weight given to itself")
        bar.outline.set_visible(False)
    return Drawing(
        "own-weight",
        "How much each client teaches itself",
        f"Heat map of {len(names)} clients over {len(found)} rounds; weights from "
        f"{np.nanmin(grid):.2f} to {np.nanmax(grid):.2f}, mean {np.nanmean(grid):.2f}.",
        figure,
        "Gaps: the client was not sampled in that round.",
    )


def _heat(axis: Axes, weights: Any, largest: float) -> None:
    axis.grid(False)
    axis.pcolormesh(
        weights,
        cmap="cividis",
        norm=PowerNorm(0.5, vmin=0, vmax=largest),
        rasterized=True,
    )
    axis.invert_yaxis()
    axis.set_aspect("equal")


def _colour_bar(figure: Figure, axes: Sequence[Axes], label: str) -> None:
    mesh = axes[0].collections[0]
    bar = figure.colorbar(mesh, ax=list(axes), label=label, shrink=0.7)
    bar.outline.set_visible(False)


def _name_clients(axis: Axes, names: Sequence[str]) -> None:
    if len(names) > _NAMED:
        axis.set(xticks=[], yticks=[])
        return
    ticks = [position + 0.5 for position in range(len(names))]
    axis.set_xticks(ticks, _short(names), fontsize=7, rotation=90)
    axis.set_yticks(ticks, _short(names), fontsize=7)


def _short(names: Sequence[str]) -> list[str]:
    """Leave out what all names begin with; cut long ones."""
    start = 0
    while len(names) > 1 and len({name[: start + 1] for name in names}) == 1:
        start += 1
        if any(len(name) <= start + 1 for name in names):
            break
    rest = [name[start:] for name in names]
    return [name if len(name) <= 10 else f"{name[:9]}…" for name in rest]
