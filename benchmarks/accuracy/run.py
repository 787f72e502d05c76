"""What the commands that run tables have in common."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from benchmarks.accuracy.cells import DataSets
from benchmarks.accuracy.collect import Collector
from benchmarks.accuracy.runner import Runner, jobs
from benchmarks.accuracy.table import Table
from benchmarks.records import RESULTS
from common.presets import merge
from common.schema import Scalar, SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the cells of a table are run."""

    runs: Path
    output: Path
    data: DataSets
    overrides: Mapping[str, Scalar]
    reuse: tuple[Path, ...]
    run: bool
    cpus: float
    gpus: float


def add_arguments(parser: argparse.ArgumentParser, runs: Path) -> None:
    """Add the arguments that :func:`options` reads."""
    given = os.environ.get("FL_SHARED_DATA", "")
    parser.add_argument("--rounds", type=int, metavar="T", help="instead of the cells'")
    parser.add_argument(
        "--data",
        default=given,
        metavar="FOLDER",
        help="folder with one folder per data set (cifar10_20c, cifar10, cifar100, "
        "tinyimagenet, agnews); what is missing is downloaded, and in place of the "
        "benchmark federation cifar10_20c one is dealt from CIFAR-10; default: "
        "$FL_SHARED_DATA",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="key=value",
        help="settings of all cells; give another --output, too",
    )
    parser.add_argument(
        "--runs", type=Path, default=runs, help=f"folder of the runs; default: {runs}"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        help="folder of JSON, Markdown and figures; default: benchmarks/results",
    )
    parser.add_argument(
        "--reuse",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="folders with runs that are taken over where they have the same settings",
    )
    parser.add_argument(
        "--no-run", action="store_true", help="only take in what is finished"
    )
    parser.add_argument("--cpus", type=float, default=1, help="CPU cores of one client")
    parser.add_argument("--gpus", type=float, default=0, help="GPU share of one client")


def options(given: argparse.Namespace, parser: argparse.ArgumentParser) -> Options:
    """Check and return what the command line gives."""
    folder = Path(given.data).expanduser() if given.data else None
    if folder is not None and not folder.is_dir():
        parser.error(f"--data {folder}: no such folder; --data '' downloads the data")
    try:
        overrides = merge(None, ["method=standalone", *given.set])
    except SettingsError as error:
        parser.error(str(error))
    del overrides["method"]
    if given.rounds is not None:
        overrides["num-server-rounds"] = given.rounds
    return Options(
        runs=given.runs,
        output=given.output,
        data=DataSets(folder),
        overrides=overrides,
        reuse=tuple(given.reuse),
        run=not given.no_run,
        cpus=given.cpus,
        gpus=given.gpus,
    )


def words(given: argparse.Namespace) -> list[str]:
    """Return the words of the command line that change results."""
    found = []
    if given.rounds is not None:
        found += ["--rounds", str(given.rounds)]
    if given.set:
        found += ["--set", *given.set]
    return found


def run_table(
    table: Table,
    names: Sequence[str],
    seeds: Sequence[int],
    how: Options,
    collector: Collector,
    command: str,
) -> int:
    """Run cells of a table and collect each as it finishes.

    Parameters
    ----------
    names
        The cells to run.
    command
        What is to be typed for the same table.

    Returns
    -------
    Exit status: 0 if all runs finished, 1 if some failed, 130 after an interrupt.
    """
    cells = [cell for cell in table.cells if cell.name in names]
    todo = jobs(cells, seeds, how.runs, how.data, how.overrides)
    runner = Runner(how.runs, how.reuse, cpus=how.cpus, gpus=how.gpus)
    folder = how.runs / table.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            runner.adopt(todo)
            finished = [job for job in todo if job.finished()]
            print(f"{table.title}: {len(finished)} of {len(todo)} runs are finished")
            collector.add(table, finished, command)
            if how.run:
                for job in runner.run([job for job in todo if job not in finished]):
                    collector.add(table, [job], command)
    except Timeout:
        print(f"{folder} is in use: the table {table.name} runs already")
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on from here")
        return 130
    print(f"\n{collector.path.with_suffix('.md')}")
    return 1 if runner.failed else 0
