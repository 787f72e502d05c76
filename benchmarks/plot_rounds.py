"""Draw accuracy over rounds of finished runs, with its spread over clients.

Usage: ``python -m benchmarks.plot_rounds FIGURE.svg TITLE=RUN,RUN,... [...]``; each
``TITLE=...`` becomes one panel.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito's colours, told apart with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v")


def accuracies(run: Path) -> tuple[list[int], list[float], list[float]]:
    """Return rounds, mean accuracies and their standard deviations, in %."""
    rounds, means, spreads = [], [], []
    for line in (run / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        evaluation = record.get("evaluate", {})
        if "accuracy-mean" in evaluation:
            rounds.append(record["round"])
            means.append(100 * evaluation["accuracy-mean"])
            spreads.append(100 * evaluation["accuracy-std"])
    return rounds, means, spreads


def main() -> None:
    """Draw the figure that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", type=Path)
    parser.add_argument("panels", nargs="+", metavar="TITLE=RUN,RUN")
    arguments = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "accuracy"  # the same file for the same data
    count = len(arguments.panels)
    figure, axes = plt.subplots(
        1, count, figsize=(4.5 * count, 3.2), layout="constrained", squeeze=False
    )
    for axis, panel in zip(axes[0], arguments.panels, strict=True):
        title, _, runs = panel.partition("=")
        for index, run in enumerate(map(Path, runs.split(","))):
            rounds, means, spreads = accuracies(run)
            settings = json.loads((run / "settings.json").read_text())["settings"]
            axis.errorbar(
                [r + 0.08 * index for r in rounds],
                means,
                spreads,
                label=settings["method"],
                color=COLOURS[index],
                marker=MARKERS[index],
                markersize=4,
                elinewidth=0.6,
                capsize=2,
            )
        axis.set(title=title, xlabel="round", ylabel="accuracy, % (mean ± std)")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(arguments.figure, metadata={"Date": None})


if __name__ == "__main__":
    main()
