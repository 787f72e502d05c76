"""Runs cells one after another: finished ones are kept, cut-off ones resumed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy.cells import Cell, DataSets, same_settings
from benchmarks.accuracy.runs import is_finished, stored_settings
from benchmarks.records import hardware
from common.files import STATE_FOLDER
from common.schema import Scalar
from server_app.simulate import simulate
from server_app.units import duration

ORIGIN = "benchmark.json"
"""Beside a run's results: where and when it was measured."""

ATTEMPTS = 2
"""Times that a run is started before the others go on; it resumes where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A cell with a seed."""

    cell: Cell
    seed: int
    folder: Path
    config: Mapping[str, Scalar]
    """All settings; where results go is the runner's affair."""

    @property
    def rounds(self) -> int:
        """Number of rounds T."""
        return int(self.config["num-server-rounds"])

    @property
    def work(self) -> float:
        """Rough measure of the time that the run takes."""
        epochs = float(self.config["local-epochs"])
        return self.rounds * epochs * float(self.config["fraction-train"])

    def finished(self) -> bool:
        """Tell whether the folder holds this run, complete."""
        return self.matches(self.folder) and is_finished(self.folder, self.rounds)

    def matches(self, folder: Path) -> bool:
        """Tell whether a folder holds a run with the same settings."""
        stored = stored_settings(folder)
        return stored is not None and same_settings(stored, self.config)


def jobs(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    runs: Path,
    data: DataSets,
    overrides: Mapping[str, Scalar],
) -> list[Job]:
    """Return the jobs of a table, seed by seed, so that cells can be compared early.

    Raises
    ------
    SettingsError
        A setting is wrong.
    """
    return [
        Job(
            cell=cell,
            seed=seed,
            folder=runs / cell.table / f"{cell.name}-seed{seed}",
            config=cell.config(seed, data, overrides),
        )
        for seed in seeds
        for cell in cells
    ]


class Runner:
    """Does jobs.

    Parameters
    ----------
    runs
        Folder of all runs, ``<table>/<cell>-seed<k>``.
    elsewhere
        Further folders with runs that may serve.
    cpus, gpus
        Resources of one client; as many clients run at once as fit.
    """

    def __init__(
        self, runs: Path, elsewhere: Sequence[Path], *, cpus: float, gpus: float
    ) -> None:
        self.runs = runs
        self.elsewhere = elsewhere
        self.cpus = cpus
        self.gpus = gpus
        self.failed: list[Job] = []

    def adopt(self, todo: Sequence[Job]) -> None:
        """Give each job that was done under another name, or elsewhere, a copy."""
        finished = [
            path.parent
            for root in (self.runs, *self.elsewhere)
            for path in sorted(root.glob("**/settings.json"))
        ]
        for job in todo:
            if job.finished():
                continue
            same = (
                folder
                for folder in finished
                if job.matches(folder) and is_finished(folder, job.rounds)
            )
            if (folder := next(same, None)) is not None:
                self._put_aside(job.folder)
                shutil.copytree(
                    folder,
                    job.folder,
                    ignore=shutil.ignore_patterns("checkpoints", STATE_FOLDER, ".*"),
                )
                if not (job.folder / ORIGIN).exists():
                    _write_origin(job.folder, self.gpus > 0)

    def run(self, waiting: Sequence[Job]) -> Iterator[Job]:
        """Do jobs; yield each as soon as its results are there.

        A run that fails is noted in :attr:`failed`, and the others go on.
        """
        start, done = time.monotonic(), 0.0
        total = sum(job.work for job in waiting)
        for index, job in enumerate(waiting, start=1):
            elapsed = time.monotonic() - start
            title = f"run {index} of {len(waiting)}: {job.cell.key}, seed {job.seed}"
            if done:
                title += f", {duration(elapsed / done * (total - done))} left"
            print(f"\n=== {title} ===", flush=True)
            self.adopt([job])  # an earlier one of these may have been the same
            attempts = 0
            while not job.finished() and attempts < ATTEMPTS:
                self._simulate(job)
                attempts += 1
            if job.finished():
                yield job
            else:
                print(f"{job.folder} is not finished: see above", flush=True)
                self.failed.append(job)
            done += job.work

    def _simulate(self, job: Job) -> None:
        resume = job.matches(job.folder)
        if not resume:
            self._put_aside(job.folder)
        state = job.folder / STATE_FOLDER
        config = {
            **job.config,
            "output-dir": str(job.folder.parent.resolve()),
            "experiment": job.folder.name,
            "state-dir": str(state.resolve()),
            "resume": resume,
        }
        try:
            simulate(
                config,
                num_supernodes=job.cell.num_clients,
                cpus=self.cpus,
                gpus=self.gpus,
            )
        except subprocess.CalledProcessError as error:
            print(f"flower-simulation ended with status {error.returncode}", flush=True)
        if job.finished():
            _write_origin(job.folder, self.gpus > 0)
            shutil.rmtree(state, ignore_errors=True)
            shutil.rmtree(job.folder / "checkpoints", ignore_errors=True)

    def _put_aside(self, folder: Path) -> None:
        """Move a run with other settings out of the way; it may serve again."""
        if not folder.exists():
            return
        aside = self.runs / "replaced" / f"{folder.parent.name}-{folder.name}"
        aside.mkdir(parents=True, exist_ok=True)
        target = aside / str(len(list(aside.iterdir())) + 1)
        folder.rename(target)
        print(f"{folder} holds a run with other settings; it is now {target}")


def _write_origin(folder: Path, gpu: bool) -> None:
    origin = {"hardware": hardware(gpu), "date": _date(folder)}
    (folder / ORIGIN).write_text(json.dumps(origin) + "\n")


def _date(folder: Path) -> str:
    started = json.loads((folder / "settings.json").read_text())["started"]
    return str(started)[:10]
