"""One table of finished runs: ``python -m server_app.summary runs/*``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from server_app.units import duration

_HEADER = (
    "run",
    "method",
    "rounds",
    "accuracy %",
    "per exit %",
    "early exit %",
    "early MACs",
    "down B",
    "up B",
    "failures",
    "time",
)


def table(folders: Sequence[Path]) -> str:
    """Return a Markdown table of runs, one row each.

    Accuracy is mean ± standard deviation over clients after the last round, averaged
    over exits; bytes are the arrays' payload per client and round, training and
    evaluation together where both took place.
    """
    rows = [_HEADER, *(_row(folder) for folder in folders)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = [
        "| "
        + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))
        + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _row(folder: Path) -> tuple[str, ...]:
    try:
        summary = json.loads((folder / "summary.json").read_text())
        settings = json.loads((folder / "settings.json").read_text())["settings"]
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder} holds no finished run: {Path(error.filename).name} is missing"
        ) from error
    last = summary["last_round"]
    train, evaluate = last.get("train", {}), last.get("evaluate", {})
    down, up = (
        sum(part.get(f"{way}_bytes_per_client", 0) for part in (train, evaluate))
        for way in ("down", "up")
    )
    return (
        folder.name,
        settings["method"],
        str(summary["rounds"]),
        _spread(evaluate, "accuracy"),
        " / ".join(f"{100 * v:.1f}" for v in evaluate.get("exit-accuracy-mean", [])),
        _spread(evaluate, "early-accuracy"),
        _large(evaluate.get("early-macs-mean")),
        f"{down:,.0f}",
        f"{up:,.0f}",
        str(summary["failures"]),
        duration(summary["seconds"]),
    )


def _spread(metrics: dict[str, Any], key: str) -> str:
    if f"{key}-mean" not in metrics:
        return "-"
    return f"{100 * metrics[f'{key}-mean']:.2f} ± {100 * metrics[f'{key}-std']:.2f}"


def _large(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:.2f} M" if value >= 1e5 else f"{value:,.0f}"


def main() -> None:
    """Print the table of the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    try:
        print(table(parser.parse_args().runs))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
