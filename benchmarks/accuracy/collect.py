"""Takes finished runs into the results: JSON, figures, Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from filelock import FileLock

from benchmarks.accuracy.cells import essential, source
from benchmarks.accuracy.plots import plot
from benchmarks.accuracy.report import report
from benchmarks.accuracy.runner import ORIGIN, Job
from benchmarks.accuracy.runs import figures
from benchmarks.accuracy.store import Origin, Store
from benchmarks.accuracy.table import Table
from common.files import write_atomically
from common.settings import parse_settings


class Collector:
    """The results file, and what is made from it.

    Parameters
    ----------
    path
        The JSON file; Markdown and figures lie beside it.
    tables
        All tables that the report may show.
    lock
        A lock file: several programs may add to the results.
    """

    def __init__(self, path: Path, tables: Sequence[Table], lock: Path) -> None:
        self.path = path
        self.tables = tables
        lock.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(lock)

    def add(self, table: Table, finished: Iterable[Job], command: str) -> None:
        """Take in runs of a table and write everything anew.

        Parameters
        ----------
        command
            What was typed to run the table.
        """
        with self._lock:
            store = Store(self.path)
            for job in finished:
                origin = json.loads((job.folder / ORIGIN).read_text())
                store.add(
                    job.cell.key,
                    job.seed,
                    figures(job.folder, parse_settings(job.config), job.cell.targets),
                    settings=essential(job.config),
                    data=source(job.cell, job.config),
                    origin=Origin(command=command, **origin),
                )
            store.replace(f"{table.name}/bars", table.compare(store.entries))
            store.save()
            figure = self.path.with_name(f"{self.path.stem}-{table.name}.svg")
            plot(table, store.entries, figure)
            text = report(self.tables, store.entries, self.path)
            write_atomically(self.path.with_suffix(".md"), text.encode())
