"""Tables of X-FED on other data sets, its presets cut down to what a CPU can do."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Final

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.compare import bar
from benchmarks.accuracy.store import Entry
from benchmarks.accuracy.table import Entries, Table
from common.schema import Scalar

_FEW_ROUNDS: Final[dict[str, Scalar]] = {
    "num-samples": 2_000,
    "num-server-rounds": 8,
    "fraction-train": 1.0,
    "local-epochs": 1,
    "batch-size": 16,
    "learning-rate": 0.05,
    "evaluate-every": 1,
}


def _model(
    name: str,
    label: str,
    preset: str,
    data: str,
    changes: Mapping[str, Scalar] | None = None,
) -> Cell:
    return Cell(
        table="models",
        name=name,
        label=label,
        method="xfed",
        num_clients=5,
        data=data,
        preset=preset,
        settings={**_FEW_ROUNDS, **(changes or {})},
    )


def _rises(entries: Entries) -> list[Entry]:
    """Compare the accuracy after the last round with that after the first."""
    found: list[Entry] = []
    for cell in MODELS.cells:
        entry = entries.get(f"{cell.key}/averaged")
        if entry is None:
            continue
        rises = {
            seed: measured["curve"][-1][1] - measured["curve"][0][1]
            for seed, measured in entry["per_seed"].items()
        }
        value = statistics.mean(rises.values())
        keys = ("command", "date", "hardware", "rounds", "data", "seeds")
        found.append(
            {
                "name": f"models/bars/{cell.label}: last over first round",
                "value": value,
                "unit": "points",
                "target": 0.0,
                "met": value > 0,
                **{key: entry[key] for key in keys},
                "what": f"{cell.key}/averaged, after the last round − the first",
                "per_seed": {seed: {"value": rise} for seed, rise in rises.items()},
            }
        )
    return found


MODELS = Table(
    name="models",
    title="The other data sets and networks: X-FED's presets cut short",
    about="5 clients, Dirichlet(0.3) over 2,000 samples, C = 1, T = 8, E = 1, B = 16, "
    "lr 0.05. Shows that they train, not how well they can get. TinyImageNet at 32×32.",
    cells=(
        _model(
            "cifar100-resnet18",
            "CIFAR-100, ResNet-18",
            "xfed-cifar100-dir0.3",
            "cifar100",
        ),
        _model(
            "tinyimagenet-resnet18",
            "TinyImageNet, ResNet-18",
            "xfed-tinyimagenet-dir0.3",
            "tinyimagenet",
            {"image-size": 32},
        ),
        _model(
            "agnews-transformer",
            "AG News, Transformer",
            "xfed-agnews-dir0.3",
            "agnews",
        ),
    ),
    compare=_rises,
)


def _news(entries: Entries) -> list[Entry]:
    return bar(
        "agnews/bars/X-FED over FedPer",
        entries,
        "agnews/xfed/averaged",
        "agnews/fedper/averaged",
    )


AGNEWS = Table(
    name="agnews",
    title="AG News with the Transformer",
    about="10 clients, Dirichlet(0.3) over 6,000 texts, C = 0.5, T = 15, E = 1, B = "
    "16, lr 0.05 × 0.99^(t-1), X-FED with μ = 0.15 and λ = 0.2.",
    cells=tuple(
        Cell(
            table="agnews",
            name=method,
            label=label,
            method=method,
            num_clients=10,
            data="agnews",
            preset="xfed-agnews-dir0.3",
            settings={
                "num-samples": 6_000,
                "num-server-rounds": 15,
                "fraction-train": 0.5,
                "local-epochs": 1,
                "batch-size": 16,
                "learning-rate": 0.05,
                "evaluate-every": 3,
            },
        )
        for method, label in (("fedper", "FedPer"), ("xfed", "X-FED"))
    ),
    reference="fedper",
    compare=_news,
)
