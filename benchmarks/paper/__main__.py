"""Run an experiment of the papers: ``python -m benchmarks.paper PRESET``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy.collect import Collector
from benchmarks.accuracy.run import add_arguments, options, run_table, words
from benchmarks.paper.tables import tables

DESCRIPTION = """Run an experiment of the papers at full scale, on one GPU with several
clients at a time (--gpus 0.1 places ten), and compare it with the paper's figure. What
is finished is kept, what was cut off goes on after its last round: start the same
command again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=DESCRIPTION
    )
    parser.add_argument("preset", choices=tables())
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="K")
    parser.add_argument("--cells", nargs="+", metavar="NAME", help="only these methods")
    parser.add_argument(
        "--shrink",
        type=float,
        default=1,
        metavar="X",
        help="a trial with X times fewer rounds, clients and samples; its results "
        "go to paper-trial.json",
    )
    add_arguments(parser, Path("runs", "paper"))
    given = parser.parse_args(arguments)
    if given.shrink < 1:
        parser.error(f"--shrink {given.shrink:g}: must be at least 1")
    every = tables(given.shrink)
    table = every[given.preset]
    names = [cell.name for cell in table.cells]
    if unknown := set(given.cells or ()) - set(names):
        parser.error(f"no cell {sorted(unknown)}: {table.name} has {', '.join(names)}")
    how = options(given, parser)
    full = given.shrink == 1
    if not full:
        how = replace(how, runs=how.runs / "trial")
    stem = "paper" if full else "paper-trial"
    collector = Collector(
        how.output / f"{stem}.json", tuple(every.values()), how.runs / ".lock"
    )
    command = ["python -m benchmarks.paper", table.name, *words(given)]
    if not full:
        command += ["--shrink", f"{given.shrink:g}"]
    return run_table(
        table, given.cells or names, given.seeds, how, collector, " ".join(command)
    )


if __name__ == "__main__":
    sys.exit(main())
