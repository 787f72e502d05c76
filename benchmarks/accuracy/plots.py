"""Accuracy over rounds, one figure per table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from benchmarks.accuracy.store import Entry
from benchmarks.accuracy.table import Table


def plot(table: Table, entries: Mapping[str, Entry], path: Path) -> bool:
    """Draw the averaged accuracy of a table's cells, mean over seeds, as SVG.

    Returns
    -------
    Whether there was anything to draw, and matplotlib to draw it.
    """
    curves = {
        cell.label: curve
        for cell in table.cells
        if (entry := entries.get(f"{cell.key}/averaged")) is not None
        and len(curve := mean_curve(entry)) > 1
    }
    if not curves:
        return False
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "accuracy"  # the same file for the same data
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    styles = ("-", "--", "-.", ":")
    colours = plt.colormaps["tab10"]
    for index, (label, curve) in enumerate(curves.items()):
        axis.plot(
            list(curve),
            list(curve.values()),
            styles[index % len(styles)],
            color=colours(index % 10),
            label=label,
        )
    axis.set(xlabel="round", ylabel="averaged accuracy, %", title=table.title)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return True


def mean_curve(entry: Entry) -> dict[int, float]:
    """Return the mean over seeds after each round that all of them evaluated."""
    seeds = [dict(seed.get("curve", [])) for seed in entry["per_seed"].values()]
    common = set.intersection(*map(set, seeds))
    return {int(t): statistics.mean(seed[t] for seed in seeds) for t in sorted(common)}
