"""Tables of pFedES."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.compare import bar
from benchmarks.accuracy.store import Entry
from benchmarks.accuracy.table import Entries, Table
from common.schema import Scalar

TARGETS: Final = (75.0, 80.0, 85.0)
"""Accuracies in % whose cost is counted."""

_PLACE = (
    "12,000 CIFAR-10 images, 10 clients, C = 1, two classes per client, 8:2 inside "
    "each, E = 1, B = 64, lr 0.01, momentum 0.9, weight decay 1e-3, no augmentation. "
)
_FIVE = "CNN-1 to CNN-5, client i has CNN-((i mod 5)+1). "
_LONG, _SHORT = 60, 20


def _cell(
    table: str,
    name: str,
    label: str,
    changes: Mapping[str, Scalar] | None = None,
    method: str = "pfedes",
    targets: tuple[float, ...] = TARGETS,
) -> Cell:
    return Cell(
        table=table,
        name=name,
        label=label,
        method=method,
        num_clients=10,
        data="cifar10",
        preset="pfedes-cifar10-n10",
        settings={
            "num-samples": 12_000,
            "num-server-rounds": _SHORT,
            "local-epochs": 1,
            "batch-size": 64,
            "augmentation": "none",
            "evaluate-every": 1,
            **(changes or {}),
        },
        targets=targets,
    )


def _gain(entries: Entries) -> list[Entry]:
    return bar(
        "pfedes/bars/pFedES over Standalone",
        entries,
        "pfedes/pfedes/averaged",
        "pfedes/standalone/averaged",
        0.0,
    )


PFEDES = Table(
    name="pfedes",
    title="pFedES beside Standalone",
    about=_PLACE + _FIVE + f"T = {_LONG}.",
    cells=tuple(
        _cell("pfedes", method, label, {"num-server-rounds": _LONG}, method)
        for method, label in (("standalone", "Standalone"), ("pfedes", "pFedES"))
    ),
    reference="standalone",
    seeds=(0, 1, 2),
    compare=_gain,
)


def _swept(epochs: int, mu: float) -> Cell:
    return _cell(
        "pfedes-sweep",
        f"e-fe-{epochs}-mu-{mu:g}",
        f"pFedES, E_fe = {epochs}, μ = {mu:g}",
        {"pfedes.extractor-epochs": epochs, "pfedes.mu": mu},
        targets=(),
    )


SWEEP = Table(
    name="pfedes-sweep",
    title="Epochs E_fe of the extractor, and μ of pFedES",
    about=_PLACE + _FIVE + f"T = {_SHORT}.",
    cells=(
        _cell(
            "pfedes-sweep", "standalone", "Standalone", method="standalone", targets=()
        ),
        *(_swept(epochs, 0.5) for epochs in (1, 2, 5, 10)),
        *(_swept(1, mu) for mu in (0.1, 0.3)),
    ),
    reference="standalone",
)

COST = Table(
    name="cost",
    title="Cost of reaching an accuracy",
    about=_PLACE
    + f"T = {_SHORT}. CNN-1 everywhere, so that FedAvg can take part. Multiply-adds "
    "are those of training; `benchmarks/accuracy/cost.py` says how they are counted.",
    cells=tuple(
        _cell("cost", method, label, {"model": "cnn-1"}, method)
        for method, label in (
            ("standalone", "Standalone"),
            ("fedavg", "FedAvg"),
            ("pfedes", "pFedES"),
        )
    ),
    reference="standalone",
)
