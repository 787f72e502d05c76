"""Evaluation of a personal network on the client's test data."""

from __future__ import annotations

from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.batches import LocalData
from client_app.inference import EarlyExit
from client_app.timing import latencies
from common.models import logits_per_exit
from common.protocol import EPSILONS, NUM_EXAMPLES, Numbers

LATENCY_SAMPLES = 20
"""Single samples whose latency is measured."""

BATCH_SIZE = 64
"""Samples that go through the network at once."""


@torch.inference_mode()
def evaluate(
    network: nn.Module,
    data: LocalData,
    threshold: float,
    *,
    noise: float = 0.0,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Numbers]:
    """Return the metrics of every exit and of early-exit inference.

    Every sample passes all exits once; what leaving early gives follows from that.

    Parameters
    ----------
    threshold
        Inference leaves at the first exit whose max softmax is at least this.
    noise
        Standard deviation of Gaussian noise on the images, see
        :meth:`LocalData.ordered`; above 0, a second pass measures what it does.
    seed
        Of the noise.
    batch_size
        Samples that go through the network at once; the metrics do not depend on it.

    Returns
    -------
    ``num-examples``; per exit ``correct`` (samples), ``loss`` (mean cross-entropy) and
    ``taken`` (samples that leave there); ``early-correct``, the samples that are right
    at the exit where they leave; with noise the same but ``loss`` under ``noisy-...``.
    For each threshold of :data:`~common.protocol.EPSILONS`, ``epsilon-correct``
    (samples right at the exit taken) and ``epsilon-taken`` (samples per exit, one
    threshold's exits after the other's).
    """
    network.eval()
    right_nm, confidence_nm, loss = _all_exits(network, data, batch_size)
    exits, correct = _leave(right_nm, confidence_nm, torch.tensor(EPSILONS))
    metrics: dict[str, Numbers] = {
        NUM_EXAMPLES: len(data),
        **_outcome(right_nm, confidence_nm, threshold),
        "loss": loss,
        "epsilon-correct": correct,
        "epsilon-taken": [count for row in exits for count in row],
    }
    if noise > 0:
        right_nm, confidence_nm, _ = _all_exits(network, data, batch_size, noise, seed)
        noisy = _outcome(right_nm, confidence_nm, threshold)
        metrics |= {f"noisy-{key}": value for key, value in noisy.items()}
    return metrics


def latency(network: nn.Module, data: LocalData, threshold: float) -> list[float]:
    """Return median and 95th percentile of the seconds one sample takes, by itself.

    The first few test samples go one by one through early-exit inference on the
    client's device; loading and preparing them is not counted.
    """
    batches = islice(data.ordered(1), LATENCY_SAMPLES)
    inputs = [batch.inputs for batch in batches]
    seconds = latencies(EarlyExit(network, threshold), inputs)
    return [float(value) for value in np.percentile(seconds, [50, 95])]


def _all_exits(
    network: nn.Module,
    data: LocalData,
    batch_size: int,
    noise: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor, list[float]]:
    """Return right (n, m), max softmax (n, m), and the mean loss of every exit."""
    right: list[Tensor] = []
    confidence: list[Tensor] = []
    loss: list[float] = []
    for batch in data.ordered(batch_size, noise=noise, seed=seed):
        outputs = logits_per_exit(network, batch.inputs)
        loss = loss or [0.0] * len(outputs)
        for index, logits in enumerate(outputs):
            summed = F.cross_entropy(logits, batch.targets, reduction="sum")
            loss[index] += float(summed)
        logits_mnc = torch.stack(outputs)
        right.append((logits_mnc.argmax(dim=2) == batch.targets).T.cpu())
        confidence.append(logits_mnc.softmax(dim=2).amax(dim=2).T.cpu())
    mean_loss = [value / len(data) for value in loss]
    return torch.cat(right), torch.cat(confidence), mean_loss


def _outcome(
    right_nm: Tensor, confidence_nm: Tensor, threshold: float
) -> dict[str, Numbers]:
    exits, correct = _leave(right_nm, confidence_nm, torch.tensor([threshold]))
    return {
        "correct": right_nm.sum(dim=0).tolist(),
        "taken": exits[0],
        "early-correct": correct[0],
    }


def _leave(
    right_nm: Tensor, confidence_nm: Tensor, thresholds_e: Tensor
) -> tuple[list[list[int]], list[int]]:
    """Return samples per threshold and exit, and right samples per threshold."""
    num_exits = right_nm.shape[1]
    sure_nme = confidence_nm[:, :, None] >= thresholds_e
    sure_nme[:, -1] = True
    exit_ne = sure_nme.int().argmax(dim=1)  # the first that is sure
    taken_em = F.one_hot(exit_ne, num_exits).sum(dim=0)
    correct_e = right_nm.gather(1, exit_ne).sum(dim=0)
    return taken_em.tolist(), correct_e.tolist()
