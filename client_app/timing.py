"""How long inference takes, and whether leaving early saves what it promises."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from client_app.inference import EarlyExit, Policy, Predictions, Seen
from common.data import DataSpec
from common.models import Network, count_macs, early_exit_macs

_WARM_UP = 3
Clock = Callable[[], float]


def latencies(
    predict: Callable[[Tensor], Any],
    inputs: Sequence[Tensor],
    clock: Clock = time.perf_counter,
) -> npt.NDArray[np.float64]:
    """Return the seconds that each call of a predictor takes.

    Parameters
    ----------
    predict
        Its results must be on the CPU, so that a call ends when they are there.
    inputs
        One tensor per call, on the device; the first few are run beforehand, too.
    clock
        In seconds.
    """
    for x in inputs[:_WARM_UP]:
        predict(x)
    seconds = []
    for x in inputs:
        start = clock()
        predict(x)
        seconds.append(clock() - start)
    return np.array(seconds)


@dataclass(frozen=True, slots=True)
class Savings:
    """Early-exit inference beside the full model: its blocks and its last exit."""

    batch_size: int
    macs: float
    """Mean multiply-accumulates per sample."""
    full_macs: float
    seconds: float
    """Mean seconds per sample."""
    full_seconds: float

    @property
    def macs_saved(self) -> float:
        """Fraction of the full model's multiply-accumulates."""
        return 1 - self.macs / self.full_macs

    @property
    def time_saved(self) -> float:
        """Fraction of the full model's time."""
        return 1 - self.seconds / self.full_seconds


def savings(
    network: nn.Module,
    spec: DataSpec,
    threshold: float,
    inputs: Tensor,
    *,
    batch_size: int,
    repeats: int = 15,
    policy: str | Policy = "confidence",
    clock: Clock = time.perf_counter,
) -> Savings:
    """Measure what leaving early saves, in multiply-accumulates and in time.

    Passes of both kinds over all samples take turns, and of every call the fastest
    repeat counts: what else the machine does can only add time.

    Parameters
    ----------
    inputs
        Samples as the network reads them, on its device.
    batch_size
        Samples per call.
    repeats
        Passes of each kind.
    clock
        In seconds; ``time.thread_time`` where other programs share the processor and
        PyTorch uses one thread.
    """
    early = EarlyExit(network, threshold, policy)
    costs = np.array(early_exit_macs(network, spec), dtype=np.float64)
    full = _full_model(early.network)
    if inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    batches = list(torch.split(inputs, batch_size))
    exits = torch.cat([early(batch).exits for batch in batches])

    passes = [
        [latencies(predict, batches, clock) for predict in (early, full)]
        for _ in range(repeats)
    ]
    seconds, full_seconds = np.min(passes, axis=0).sum(axis=1) / len(inputs)
    return Savings(
        batch_size=batch_size,
        macs=float(costs[exits.numpy()].mean()),
        full_macs=float(count_macs(network, spec)[-1]),
        seconds=float(seconds),
        full_seconds=float(full_seconds),
    )


def seconds_per_exit(
    network: nn.Module, inputs: Tensor, clock: Clock = time.perf_counter
) -> npt.NDArray[np.float64]:
    """Return the median seconds that one sample takes to leave at each exit, (m,).

    Parameters
    ----------
    inputs
        A few samples on the network's device.
    clock
        In seconds.
    """
    samples = torch.split(inputs, 1)
    medians = [
        np.median(latencies(EarlyExit(network, float(exit_), _depth), samples, clock))
        for exit_ in range(EarlyExit(network, 0.0).num_exits)
    ]
    return np.array(medians)


def _depth(_: Tensor, largest_n: Tensor, __: Tensor, seen: Seen | None) -> Tensor:
    """Return how many exits came before: with threshold j all leave at exit j."""
    return torch.zeros_like(largest_n) if seen is None else seen.scores + 1


def _full_model(network: nn.Module) -> Callable[[Tensor], Predictions]:
    """Return inference by all blocks and the last exit, without any other exit."""

    @torch.inference_mode()
    def predict(x: Tensor) -> Predictions:
        if isinstance(network, Network):
            logits = network(x, [network.num_exits - 1])[-1]
        else:
            logits = network(x)
        assert isinstance(logits, Tensor)
        largest, labels = logits.softmax(dim=1).max(dim=1)
        exits = torch.zeros(len(x), dtype=torch.int64)
        return Predictions(labels.cpu(), largest.cpu(), exits)

    return predict
