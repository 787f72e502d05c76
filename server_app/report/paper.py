"""Figures that the two papers report, to stand beside measured ones.

pFedES: "Model Heterogeneous Personalized Federated Learning with Feature Extractor
Sharing", arXiv 2311.06879. X-FED: "Federated Personalization of Early-Exit Networks",
CIKM 2026; its Local-EE and FedPer-EE are ``standalone`` and ``fedper`` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from server_app.report.runs import Run

PFEDES: Final = "pFedES, arXiv 2311.06879"
XFED: Final = "X-FED, CIKM 2026"

_PFEDES_CLIENTS: Final = (10, 50, 100)
_PFEDES: Final[Mapping[tuple[str, str, str], tuple[float, float, float]]] = {
    ("cifar10", "heterogeneous", "standalone"): (96.53, 95.14, 91.97),
    ("cifar10", "heterogeneous", "pfedes"): (96.70, 95.79, 92.72),
    ("cifar10", "cnn-1", "standalone"): (96.35, 95.25, 92.58),
    ("cifar10", "cnn-1", "pfedes"): (96.68, 95.74, 92.89),
    ("cifar100", "heterogeneous", "standalone"): (72.53, 62.71, 53.04),
    ("cifar100", "heterogeneous", "pfedes"): (73.89, 64.32, 54.40),
    ("cifar100", "cnn-1", "standalone"): (74.32, 62.38, 54.93),
    ("cifar100", "cnn-1", "pfedes"): (74.42, 63.55, 55.15),
}
"""Mean accuracy over clients in %, by data set, networks and method, for 10, 50 and 100
clients; pathological split with 2 (CIFAR-10) or 10 (CIFAR-100) classes per client."""

_XFED: Final[Mapping[tuple[str, float], Mapping[str, float]]] = {
    ("cifar10", 0.3): {"xfed": 72.67, "standalone": 68.43, "fedper": 71.39},
    ("cifar10", 0.1): {"xfed": 83.68, "standalone": 81.92, "fedper": 82.58},
    ("cifar100", 0.3): {"xfed": 50.41, "standalone": 28.55, "fedper": 39.39},
    ("cifar100", 0.1): {"xfed": 62.83, "standalone": 48.79, "fedper": 59.06},
    ("tinyimagenet", 0.3): {"xfed": 36.27, "standalone": 22.96, "fedper": 27.55},
    ("tinyimagenet", 0.1): {"xfed": 48.22, "standalone": 38.28, "fedper": 43.78},
    ("agnews", 0.3): {"xfed": 78.69, "standalone": 71.91, "fedper": 77.18},
}
"""Accuracy in %, averaged over exits and clients, by data set and α of the Dirichlet
split between 100 clients."""

_XFED_MODELS: Final = {
    "cifar10": "convnet",
    "cifar100": "resnet18",
    "tinyimagenet": "resnet18",
    "agnews": "transformer",
}


@dataclass(frozen=True, slots=True)
class Published:
    """A figure of a paper.

    Attributes
    ----------
    quantity
        What it is, with its unit.
    value
        As printed.
    clients, fraction_train
        The paper's setting: number of clients N and fraction C.
    rounds
        Rounds T, where the paper has one number for it.
    """

    quantity: str
    value: float
    source: str
    clients: int
    fraction_train: float
    rounds: int | None = None

    def deviations(self, run: Run) -> list[str]:
        """Say in what a run's setting is not the paper's, beyond the data's seed."""
        samples = run.settings["num-samples"]
        custom = run.settings["data-path"] != ""
        xfed = run.method == "xfed"
        weight = 0.2 if run.settings["dataset"] == "agnews" else 1.0
        schedule = run.settings["xfed.schedule"]
        compared = [
            ("N", run.num_clients, self.clients),
            ("C", run.settings["fraction-train"], self.fraction_train),
            ("T", run.settings["num-server-rounds"], self.rounds),
            ("λ", run.settings["xfed.lambda"], weight if xfed else None),
        ]
        found = [
            f"{name} = {here:g}, paper {paper:g}"
            for name, here, paper in compared
            if paper is not None and here != paper
        ]
        if xfed and schedule != "linear":
            found += [f"schedule {schedule}, paper linear"]
        found += [f"a part of {samples:,} samples"] if samples else []
        found += ["data from a folder of the user's"] if custom else []
        return found


def published(run: Run) -> Published | None:
    """Return the papers' accuracy for a run's data, networks and method, if any.

    Where a paper has several numbers of clients, the nearest is taken.
    """
    return _pfedes(run, run.settings) or _xfed(run, run.settings)


def _pfedes(run: Run, settings: Mapping[str, Any]) -> Published | None:
    dataset = settings["dataset"]
    classes = {"cifar10": 2, "cifar100": 10}.get(dataset)
    row = _PFEDES.get((dataset, settings["model"], run.method))
    split = (settings["partition"], settings["classes-per-client"])
    if row is None or split != ("pathological", classes):
        return None
    nearest = min(_PFEDES_CLIENTS, key=lambda count: abs(count - run.num_clients))
    index = _PFEDES_CLIENTS.index(nearest)
    fraction = (1.0, 0.2, 0.1)[index]
    return Published("accuracy, %", row[index], PFEDES, nearest, fraction)


def _xfed(run: Run, settings: Mapping[str, Any]) -> Published | None:
    dataset = settings["dataset"]
    row = _XFED.get((dataset, settings["dirichlet-alpha"]), {})
    value = row.get(run.method)
    if (
        value is None
        or settings["partition"] != "dirichlet"
        or settings["model"] != _XFED_MODELS[dataset]
    ):
        return None
    rounds = 100 if dataset == "agnews" else 300
    name = "accuracy averaged over exits, %"
    return Published(name, value, XFED, 100, 0.1, rounds)
