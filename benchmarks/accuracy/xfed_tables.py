"""Tables of X-FED on the benchmark federation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.accuracy.cells import FEDERATION, Cell
from benchmarks.accuracy.compare import bar, bar_against
from benchmarks.accuracy.store import Entry
from benchmarks.accuracy.table import Entries, Table
from common.schema import Scalar

PROTOCOL: Final[dict[str, Scalar]] = {
    "dataset": "cifar10",
    "model": "convnet",
    "num-server-rounds": 40,
    "fraction-train": 0.5,
    "local-epochs": 1,
    "batch-size": 64,
    "learning-rate": 0.1,
    "learning-rate-decay": 0.99,
    "momentum": 0.9,
    "weight-decay": 0.0001,
    "evaluate-every": 5,
    "normalization": "unit",
    "augmentation": "none",
}
"""Of every table on the benchmark federation: 20 clients, Dirichlet(0.3), ConvNet."""

AUTHORS_XFED: Final = {
    "averaged": 44.90,
    "exit-1": 47.12,
    "exit-2": 43.81,
    "exit-3": 43.76,
}
"""Accuracy in % of X-FED's authors' code under the same protocol, after 40 rounds."""

AUTHORS_FEDPER: Final = 60.81
"""Averaged accuracy in % of FedPer in the same code."""

_PAPER: Final[dict[str, Scalar]] = {"xfed.lambda": 1.0, "xfed.schedule": "linear"}
"""The paper's weight of distillation and schedule; the defaults distil less, and train
all exits from the first round."""

_PLACE = (
    "Benchmark federation: 20 clients, Dirichlet(0.3) over 12,000 CIFAR-10 images "
    "(8,994 for training), ConvNet with three exits, C = 0.5, B = 64, lr 0.1 × "
    "0.99^(t-1), momentum 0.9, weight decay 1e-4, no augmentation. "
)
_SHORT = _PLACE + "T = 40, E = 1. "
_AS_PAPER = _SHORT + "λ = 1 and R(t) = min(2t/T, 1) where a row says nothing else. "
_LABELS: Final = {
    "standalone": "Standalone",
    "fedavg": "FedAvg",
    "fedper": "FedPer",
    "xfed": "X-FED",
}


def _cell(
    table: str,
    name: str,
    label: str,
    changes: Mapping[str, Scalar] | None = None,
    method: str = "xfed",
) -> Cell:
    return Cell(
        table=table,
        name=name,
        label=label,
        method=method,
        num_clients=20,
        data=FEDERATION,
        settings={**PROTOCOL, **(changes or {})},
    )


def _federation_bars(entries: Entries) -> list[Entry]:
    found: list[Entry] = []
    xfed, fedper = "federation/xfed", "federation/fedper"
    averaged = entries.get(f"{xfed}/averaged", entries.get(f"{fedper}/averaged"))
    same_protocol = (
        averaged is not None
        and averaged["data"] == FEDERATION
        and averaged["rounds"] == PROTOCOL["num-server-rounds"]
    )
    if same_protocol:
        for figure, authors in AUTHORS_XFED.items():
            found += bar_against(
                f"federation/bars/a: X-FED over its authors' code, {figure}",
                entries,
                f"{xfed}/{figure}",
                authors,
                8.0 if figure == "averaged" else 0.0,
            )
        found += bar_against(
            "federation/bars/b: FedPer over that of X-FED's authors, averaged",
            entries,
            f"{fedper}/averaged",
            AUTHORS_FEDPER,
            -1.5,
        )
    for figure in AUTHORS_XFED:
        found += bar(
            f"federation/bars/c: X-FED over FedPer, {figure}",
            entries,
            f"{xfed}/{figure}",
            f"{fedper}/{figure}",
            0.0 if figure == "averaged" else -1.0,
        )
    return found


FEDERATION_TABLE = Table(
    name="federation",
    title="The methods on the benchmark federation",
    about=_SHORT,
    cells=tuple(
        _cell("federation", method, label, method=method)
        for method, label in _LABELS.items()
    ),
    reference="fedper",
    seeds=(0, 1, 2),
    compare=_federation_bars,
)


def _regime_bars(entries: Entries) -> list[Entry]:
    pairs = (("xfed-paper", "fedper"), ("xfed", "fedper"), ("fedper", "standalone"))
    labels = {cell.name: cell.label for cell in REGIME.cells}
    return [
        entry
        for better, worse in pairs
        for entry in bar(
            f"regime/bars/{labels[better]} over {labels[worse]}, averaged",
            entries,
            f"regime/{better}/averaged",
            f"regime/{worse}/averaged",
            0.0,
        )
    ]


def _trained_longer(
    method: str,
    name: str = "",
    label: str = "",
    changes: Mapping[str, Scalar] | None = None,
) -> Cell:
    return _cell(
        "regime",
        name or method,
        label or _LABELS[method],
        {"local-epochs": 5, **(changes or {})},
        method,
    )


REGIME = Table(
    name="regime",
    title="The paper's five local epochs",
    about=_PLACE + "T = 40, E = 5. X-FED: λ = 0.1, R(t) = 1; growing: R(t) = "
    "min(2t/T, 1).",
    cells=(
        _trained_longer("xfed"),
        _trained_longer("xfed", "xfed-paper", "X-FED, λ = 1, growing", _PAPER),
        _trained_longer("fedper"),
        _trained_longer("standalone"),
    ),
    reference="fedper",
    compare=_regime_bars,
)


_NO_KD: Final[dict[str, Scalar]] = {"xfed.lambda": 0.0}
_NO_TM: Final[dict[str, Scalar]] = {"xfed.matching": "own"}
_NO_SS: Final[dict[str, Scalar]] = {"xfed.schedule": "constant"}


def _part(name: str, label: str, changes: Mapping[str, Scalar] | None = None) -> Cell:
    """Return X-FED with all its parts, the `changes` apart."""
    parts: dict[str, Scalar] = {
        **_PAPER,
        "xfed.matching": "similarity",
        "xfed.selection": "conflict",
    }
    return _cell("ablation", name, label, {**parts, **(changes or {})})


ABLATION = Table(
    name="ablation",
    title="Ablation of X-FED (as in Table 5)",
    about=_AS_PAPER + "KD: distillation, TM: teacher matching, SS: student selection, "
    "switched off one at a time; then none, and one after another on: KD alone, KD and "
    "TM (the row without SS), all.",
    cells=(
        _part("full", "KD, TM, SS"),
        _part("no-kd", "without KD (λ = 0)", _NO_KD),
        _part("tm-own", "without TM: own last exit", _NO_TM),
        _part("tm-average", "without TM: equal weights", {"xfed.matching": "average"}),
        _part("ss-all", "without SS: all exits always", _NO_SS),
        _part("ss-random", "without SS: random clients", {"xfed.selection": "random"}),
        _part("none", "none", {**_NO_KD, **_NO_TM, **_NO_SS}),
        _part("kd", "KD alone", {**_NO_TM, **_NO_SS}),
    ),
    reference="full",
)

SCHEDULES = Table(
    name="schedules",
    title="Schedules R(t) of the student budget (Sec. 5.4.3)",
    about=_AS_PAPER,
    cells=tuple(
        _cell("schedules", name, name, {**_PAPER, "xfed.schedule": name})
        for name in ("linear", "constant", "quadratic", "logarithmic", "step")
    ),
    reference="linear",
)

MU = Table(
    name="mu",
    title="μ of teacher matching (Sec. 5.4.4)",
    about=_AS_PAPER,
    cells=tuple(
        _cell("mu", f"{mu:g}", f"μ = {mu:g}", {**_PAPER, "xfed.mu": mu})
        for mu in (0.3, 0.6, 0.9)
    ),
    reference="0.6",
)

LAMBDA = Table(
    name="lambda",
    title="λ, the weight of distillation (Sec. 5.4.4)",
    about=_AS_PAPER,
    cells=tuple(
        _cell(
            "lambda",
            f"{weight:g}",
            f"λ = {weight:g}",
            {**_PAPER, "xfed.lambda": weight},
        )
        for weight in (0.4, 1.0, 1.6)
    ),
    reference="1",
)

DEFAULTS = Table(
    name="defaults",
    title="How the defaults were chosen: λ, and when the shallow exits begin",
    about=_SHORT + "All exits: R(t) = 1, every exit is a student in every round; "
    "growing: R(t) = min(2t/T, 1).",
    cells=tuple(
        _cell(
            "defaults",
            f"{schedule}-{weight:g}",
            f"{label}, λ = {weight:g}",
            {"xfed.schedule": schedule, "xfed.lambda": weight},
        )
        for schedule, label in (("constant", "all exits"), ("linear", "growing"))
        for weight in (0.1, 0.3, 1.0)
    ),
    reference="constant-0.1",
)


def _variant(
    name: str, label: str, changes: Mapping[str, Scalar] | None = None
) -> Cell:
    """Return X-FED with the defaults' choices, the `changes` apart."""
    choices: dict[str, Scalar] = {
        **_PAPER,
        "xfed.teacher": "frozen",
        "xfed.last-exit": "own",
        "xfed.kd-weight": "paper",
        "xfed.evaluate-exit": "own",
        "optimizer-state": "personal",
    }
    return _cell("variants", name, label, {**choices, **(changes or {})})


_FRESH: Final[dict[str, Scalar]] = {"optimizer-state": "fresh"}
_AGGREGATED: Final[dict[str, Scalar]] = {"xfed.last-exit": "aggregated"}
_LIVE: Final[dict[str, Scalar]] = {**_AGGREGATED, "xfed.teacher": "live"}
_UNDIVIDED: Final[dict[str, Scalar]] = {"xfed.kd-weight": "reference"}

VARIANTS = Table(
    name="variants",
    title="Where the paper and its authors' code leave a choice",
    about=_AS_PAPER + "Default choices: frozen teacher, the last exit starts from the "
    "client's own, λ/m for each exit, every client keeps its momentum. Live: the last "
    "exit is the teacher while it trains.",
    cells=(
        _variant("own", "default choices"),
        _variant("own-reference", "λ undivided", _UNDIVIDED),
        _variant("own-fresh", "fresh momentum", _FRESH),
        _variant("aggregated", "last exit from the teacher", _AGGREGATED),
        _variant(
            "paper",
            "last exit from the teacher, fresh momentum",
            {**_AGGREGATED, **_FRESH},
        ),
        _variant(
            "aggregated-reference",
            "last exit from the teacher, λ undivided",
            {**_AGGREGATED, **_UNDIVIDED},
        ),
        _variant("live", "live last exit from the teacher", _LIVE),
        _variant(
            "authors",
            "live last exit from the teacher, λ undivided (authors' code)",
            {**_LIVE, **_UNDIVIDED},
        ),
        _variant(
            "evaluate-teacher",
            "evaluated with the teacher",
            {"xfed.evaluate-exit": "aggregated"},
        ),
        _cell("variants", "fedper-fresh", "FedPer, fresh momentum", _FRESH, "fedper"),
    ),
    reference="own",
)


LEARNING_RATE = Table(
    name="learning-rate",
    title="Half the learning rate",
    about=_SHORT + "In this table lr starts from 0.05.",
    cells=tuple(
        _cell(
            "learning-rate",
            f"{method}-0.05",
            f"{_LABELS[method]}, lr 0.05",
            {"learning-rate": 0.05},
            method,
        )
        for method in ("xfed", "fedper")
    ),
    reference="fedper-0.05",
)
