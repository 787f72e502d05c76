"""Run one table: ``python -m benchmarks.accuracy TABLE``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.collect import Collector
from benchmarks.accuracy.run import add_arguments, options, run_table, words
from benchmarks.accuracy.tables import TABLES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description="Run the cells of a table with several seeds and write "
        "accuracy.json, accuracy.md and a figure. What is finished is kept, what was "
        "cut off goes on: start the same command again.",
    )
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seeds", type=int, nargs="+", metavar="K")
    parser.add_argument("--cells", nargs="+", metavar="NAME", help="only these cells")
    add_arguments(parser, Path("runs", "accuracy"))
    given = parser.parse_args(arguments)
    table = TABLES[given.table]
    names = [cell.name for cell in table.cells]
    if unknown := set(given.cells or ()) - set(names):
        parser.error(f"no cell {sorted(unknown)}: {table.name} has {', '.join(names)}")
    seeds = tuple(given.seeds or table.seeds)
    how = options(given, parser)
    collector = Collector(
        how.output / "accuracy.json", tuple(TABLES.values()), how.runs / ".lock"
    )
    command = ["python -m benchmarks.accuracy", table.name, *words(given)]
    return run_table(
        table, given.cells or names, seeds, how, collector, " ".join(command)
    )


if __name__ == "__main__":
    sys.exit(main())
