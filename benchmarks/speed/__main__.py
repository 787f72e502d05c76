"""Measure speed and memory: ``python -m benchmarks.speed [PART ...]``.

Figures go to ``benchmarks/results/speed.json``; those of parts that were not measured
now stay. The table shows each beside what it was before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from benchmarks.records import RESULTS, Figure, figures_table, write_figures
from benchmarks.speed import deployed, gpu, inference, server, simulation, training

PARTS: dict[str, Callable[[], list[Figure]]] = {
    "matching": server.matching,
    "selection": server.selection,
    "averaging": server.averaging,
    "training": training.throughput,
    "profile": training.where_time_goes,
    "memory": training.memory,
    "inference": inference.early_exit,
    "deployed": deployed.start_up,
    "overhead": simulation.overhead,
    "scaling": simulation.scaling,
    "simulation": simulation.whole,
    "gpu": gpu.throughput,
}


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args().parts or list(PARTS)
    if unknown := set(chosen) - PARTS.keys():
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    path = RESULTS / "speed.json"
    before = {}
    if path.exists():
        before = {f["name"]: f["value"] for f in json.loads(path.read_text())}
    for part in chosen:
        figures = PARTS[part]()
        command = f"python -m benchmarks.speed {part}"
        write_figures(figures, path, command, gpu=bool(figures) and part == "gpu")
        for figure in figures:
            last = before.get(figure.name)
            change = f"   (before: {last:,.4g})" if last is not None else ""
            verdict = {True: "  met", False: "  NOT MET", None: ""}[figure.met]
            print(
                f"{figure.name}: {figure.value:,.4g} {figure.unit}"
                f"{'  ' + figure.target if figure.target else ''}{verdict}{change}",
                flush=True,
            )
    table = figures_table(path)
    path.with_suffix(".md").write_text(table)
    print(f"\n{table}")


if __name__ == "__main__":
    main()
