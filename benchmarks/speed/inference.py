"""Whether leaving early saves as much time as it saves multiply-accumulates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks.inference import figures
from benchmarks.records import Figure
from benchmarks.speed.measure import fresh
from client_app.inference import EarlyExit
from client_app.memory import keep_heap
from client_app.timing import savings
from common.data import data_spec
from common.models import build_network, early_exit_macs
from common.settings import parse_settings

_BATCH_SIZES = (1, 64)
_SAMPLES = 512
_SHARE = 0.5
"""Of the multiply-accumulates to save."""
_SCALE = 20.0
"""Factor of the exits' weights: untrained, all of them are equally unsure."""


def early_exit() -> list[Figure]:
    """Measure a ConvNet for 32x32 images on one core, saving half of its MACs."""
    return fresh(_early_exit)


def _early_exit() -> list[Figure]:
    torch.set_num_threads(1)
    keep_heap()
    spec = data_spec(parse_settings({"dataset": "cifar10"}).data)
    network = build_network("convnet", spec, seed=0).eval()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.weight *= _SCALE
    inputs = torch.randn(
        (_SAMPLES, *spec.shape), generator=torch.Generator().manual_seed(0)
    )
    costs = np.array(early_exit_macs(network, spec), dtype=np.float64)
    threshold = _threshold(network, inputs, costs)
    return [
        replace(figure, name=f"inference/ConvNet/{figure.name}")
        for size in _BATCH_SIZES
        for figure in figures(
            savings(network, spec, threshold, inputs, batch_size=size)
        )
    ]


def _threshold(
    network: nn.Module, inputs: Tensor, costs: npt.NDArray[np.float64]
) -> float:
    """Return the ε with which the samples save half of the last exit's cost."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        exits = EarlyExit(network, middle)(inputs).exits.numpy()
        if costs[exits].mean() < (1 - _SHARE) * costs[-1]:
            low = middle
        else:
            high = middle
    return high
