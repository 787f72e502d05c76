r"""Write a page with figures of one or several runs.

Examples::

    python -m server_app.report runs/trial
    python -m server_app.report runs/a runs/b --output figures-for-the-talk
    python -m server_app.report --latest --open
"""

from __future__ import annotations

import argparse
import os
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from server_app.report.runs import find_runs, newest, read_run


def default_output(paths: Sequence[Path]) -> Path:
    """Return ``report`` in the folder that is named, or in the one that holds all."""
    if len(paths) == 1:
        return paths[0] / "report"
    return Path(os.path.commonpath([path.resolve() for path in paths])) / "report"


def report(paths: Sequence[Path], output: Path | None = None) -> Path:
    """Write the report of the runs at or inside `paths`; return the page's path.

    Raises
    ------
    ValueError
        A path holds no run, or a run cannot be read.
    """
    target = output or default_output(paths)
    runs = [read_run(path) for path in find_runs(paths, leave_out=target)]
    if not runs:
        raise ValueError(f"{', '.join(map(str, paths))}: no run there")
    try:
        from server_app.report.page import write_report
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the report needs {error.name}: pip install '.[report]'"
        ) from error
    return write_report(runs, target)


def main() -> None:
    """Write the report that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m server_app.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="*", type=Path, help="folders of runs, or folders that hold some"
    )
    parser.add_argument(
        "--latest", action="store_true", help="the newest run or comparison in runs/"
    )
    parser.add_argument(
        "--output", type=Path, help="folder for the page and its figures"
    )
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    arguments = parser.parse_args()
    if arguments.latest == bool(arguments.runs):
        parser.error("name the folders of runs, or --latest")
    try:
        paths = [newest(Path("runs"))] if arguments.latest else arguments.runs
        page = report(paths, arguments.output)
    except ValueError as error:
        parser.error(str(error))
    print(page.resolve())
    if arguments.open and not webbrowser.open(page.resolve().as_uri()):
        print("No browser was found here: open that file in one.")


if __name__ == "__main__":
    main()
