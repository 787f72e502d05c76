"""Cells of a table, and where their data lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from common.presets import merge
from common.schema import Scalar, SettingsError
from common.settings import completed, parse_settings

T = TypeVar("T")

FEDERATION = "cifar10_20c"
"""Folder of the benchmark federation: one folder per client, ``client-00`` to
``client-19``."""

_DEALT: dict[str, Scalar] = {
    "partition": "dirichlet",
    "dirichlet-alpha": 0.3,
    "num-samples": 12_000,
    "test-fraction": 0.25,
}

_NO_MATTER = {
    "experiment",
    "resume",
    "output-dir",
    "state-dir",
    "cache-dir",
    "checkpoint-every",
    "checkpoints-kept",
    "min-available-nodes",
    "wait-timeout",
    "round-timeout",
}
"""Settings that change no result."""


@dataclass(frozen=True, slots=True)
class DataSets:
    """Where the data sets lie.

    Parameters
    ----------
    folder
        Holds one folder per data set (``cifar10_20c``, ``cifar10``, ``cifar100``,
        ``tinyimagenet``, ``agnews``); None where every data set is to be downloaded.
    """

    folder: Path | None

    def settings(self, name: str) -> dict[str, Scalar]:
        """Return the settings that find a data set; what is missing is downloaded.

        Where the benchmark federation is missing, a like one is dealt from CIFAR-10:
        20 clients, Dirichlet(0.3) over 12,000 images.
        """
        if (path := self._path(name)) is not None:
            return {"data-path": path}
        if name == FEDERATION:
            return _DEALT | {"data-path": self._path("cifar10") or ""}
        return {"data-path": ""}

    def _path(self, name: str) -> str | None:
        if self.folder is None or not (self.folder / name).is_dir():
            return None
        return str((self.folder / name).resolve())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of a table: a method with its settings."""

    table: str
    name: str
    label: str
    method: str
    num_clients: int
    data: str
    """Name of the data set's folder."""
    preset: str | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    targets: tuple[float, ...] = ()
    """Accuracies in % for which the cost of reaching them is counted."""

    @property
    def key(self) -> str:
        """Name of the cell among all tables."""
        return f"{self.table}/{self.name}"

    def config(
        self, seed: int, data: DataSets, overrides: Mapping[str, Scalar]
    ) -> dict[str, Scalar]:
        """Return all settings of the run with a seed.

        Raises
        ------
        SettingsError
            A setting is wrong.
        """
        config: dict[str, Scalar] = {
            **merge(self.preset, []),
            **data.settings(self.data),
            **self.settings,
            **overrides,
            "method": self.method,
            "seed": seed,
            "min-available-nodes": self.num_clients,
        }
        try:
            return parse_settings(config).to_config()
        except SettingsError as error:
            raise SettingsError([f"{self.key}: {p}" for p in error.problems]) from error


def source(cell: Cell, config: Mapping[str, Scalar]) -> str:
    """Say in a few words which data a run of a cell uses."""
    if Path(str(config["data-path"])).name == cell.data:
        return cell.data
    if cell.data == FEDERATION:
        return "dealt from cifar10"
    return f"{cell.data}, downloaded"


def same_settings(stored: Mapping[str, object], asked: Mapping[str, Scalar]) -> bool:
    """Tell whether two runs do the same.

    Folders and waiting times do not matter, of the data's folder only its name does. A
    setting that did not exist yet when a run was stored counts with its default.
    """
    known = completed(stored)
    return all(
        _essence(key, known[key]) == _essence(key, value)
        for key, value in asked.items()
        if key not in _NO_MATTER
    )


def essential(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return what of the settings changes the result, seeds apart."""
    return {
        key: _essence(key, value)
        for key, value in settings.items()
        if key not in _NO_MATTER | {"seed"}
    }


def _essence(key: str, value: T) -> T | str:
    return Path(str(value)).name if key == "data-path" else value
