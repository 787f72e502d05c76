"""The papers' experiments, one table per preset, and the figures that they state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.compare import bar_against
from benchmarks.accuracy.store import Entry
from benchmarks.accuracy.table import Entries, Table
from common.data import data_spec
from common.presets import merge, names
from common.schema import Scalar
from common.settings import HETEROGENEOUS, Settings, parse_settings

XFED_PAPER: Final = {
    "xfed-cifar10-dir0.3": {"standalone": 68.43, "fedper": 71.39, "xfed": 72.67},
    "xfed-cifar10-dir0.1": {"standalone": 81.92, "fedper": 82.58, "xfed": 83.68},
    "xfed-cifar100-dir0.3": {"standalone": 28.55, "fedper": 39.39, "xfed": 50.41},
    "xfed-cifar100-dir0.1": {"standalone": 48.79, "fedper": 59.06, "xfed": 62.83},
    "xfed-tinyimagenet-dir0.3": {"standalone": 22.96, "fedper": 27.55, "xfed": 36.27},
    "xfed-tinyimagenet-dir0.1": {"standalone": 38.28, "fedper": 43.78, "xfed": 48.22},
    "xfed-agnews-dir0.3": {"standalone": 71.91, "fedper": 77.18, "xfed": 78.69},
}
"""Averaged accuracy in % (X-FED, Table 1) by preset and method."""

PFEDES_PAPER: Final = {
    "pfedes-cifar10-n10": (96.53, 96.70, 96.35, 96.68),
    "pfedes-cifar10-n50": (95.14, 95.79, 95.25, 95.74),
    "pfedes-cifar10-n100": (91.97, 92.72, 92.58, 92.89),
    "pfedes-cifar100-n10": (72.53, 73.89, 74.32, 74.42),
    "pfedes-cifar100-n50": (62.71, 64.32, 62.38, 63.55),
    "pfedes-cifar100-n100": (53.04, 54.40, 54.93, 55.15),
}
"""Mean accuracy in % (arXiv 2311.06879): Standalone and pFedES with heterogeneous
networks, then both with homogeneous ones."""

_SIZES: Final = {
    "cifar10": 60_000,
    "cifar100": 60_000,
    "tinyimagenet": 110_000,
    "agnews": 127_600,
}
"""Samples of a data set, training and test together."""

_LABELS: Final = {
    "standalone": "Standalone",
    "fedavg": "FedAvg",
    "fedper": "FedPer",
    "xfed": "X-FED",
    "pfedes": "pFedES",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much smaller than in the paper.

    Parameters
    ----------
    shrink
        Rounds, clients and samples are divided by it; 1 is full scale.
    """

    shrink: float

    def clients(self, settings: Settings) -> int:
        """Return the number of clients, enough for every class to be dealt out."""
        data = settings.data
        fewest = 2
        if data.partition == "pathological":
            classes = data_spec(data).num_classes
            fewest = math.ceil(classes / data.classes_per_client)
        given = settings.run.min_available_nodes  # in a preset: N
        return given if self.shrink == 1 else max(fewest, round(given / self.shrink))

    def changes(self, settings: Settings) -> dict[str, Scalar]:
        """Return the settings that differ from the preset's."""
        if self.shrink == 1:
            return {}
        two_clients = 2 / self.clients(settings)
        return {
            "num-server-rounds": max(
                1, round(settings.run.num_server_rounds / self.shrink)
            ),
            "num-samples": round(_SIZES[settings.data.dataset] / self.shrink),
            "fraction-train": max(settings.run.fraction_train, two_clients),
        }


def tables(shrink: float = 1) -> dict[str, Table]:
    """Return one table per preset of the papers.

    Parameters
    ----------
    shrink
        Makes everything so many times smaller, for a trial; nothing is compared with
        the papers then.
    """
    return {name: _table(name, shrink) for name in names() if name in _published()}


def _published() -> Mapping[str, Mapping[str, float]]:
    """Return the papers' figures by preset and cell."""
    rows = ("standalone", "pfedes", "standalone-cnn-1", "pfedes-cnn-1")
    pfedes = {
        preset: dict(zip(rows, values, strict=True))
        for preset, values in PFEDES_PAPER.items()
    }
    return {**XFED_PAPER, **pfedes}


def _table(preset: str, shrink: float) -> Table:
    settings = parse_settings(merge(preset, []))
    scale = Scale(shrink)
    rows: list[tuple[str, str, dict[str, Scalar]]]
    if settings.method == "pfedes":
        rows = [
            (f"{method}{suffix}", method, {"model": model})
            for suffix, model in (("", HETEROGENEOUS), ("-cnn-1", "cnn-1"))
            for method in ("standalone", "pfedes")
        ]
    else:
        rows = [(m, m, {}) for m in ("standalone", "fedavg", "fedper", "xfed")]
    cells = tuple(
        Cell(
            table=preset,
            name=name,
            label=_LABELS[method] + (", CNN-1" if name.endswith("cnn-1") else ""),
            method=method,
            num_clients=scale.clients(settings),
            data=settings.data.dataset,
            preset=preset,
            settings={**changes, **scale.changes(settings)},
        )
        for name, method, changes in rows
    )
    about = f"Preset `{preset}`, {scale.clients(settings)} clients"
    about += "." if shrink == 1 else f"; everything {shrink:g} times smaller."
    return Table(
        name=preset,
        title=preset,
        about=about,
        cells=cells,
        reference="standalone",
        seeds=(0,),
        compare=partial(_compare, preset, cells if shrink == 1 else ()),
    )


def _compare(preset: str, cells: tuple[Cell, ...], entries: Entries) -> list[Entry]:
    """Compare with the paper's figures, where as many rounds were run."""
    published = _published()[preset]
    rounds = parse_settings(merge(preset, [])).run.num_server_rounds
    return [
        entry
        for cell in cells
        if cell.name in published
        and entries.get(f"{cell.key}/averaged", {}).get("rounds") == rounds
        for entry in bar_against(
            f"{preset}/bars/{cell.label} over the paper's {published[cell.name]:.2f}",
            entries,
            f"{cell.key}/averaged",
            published[cell.name],
            0.0,
        )
    ]
