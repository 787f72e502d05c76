"""Evaluation of a personal network on the client's test data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from client_app.batches import LocalData
from common.models import logits_per_exit
from common.protocol import NUM_EXAMPLES, Numbers

_BATCH_SIZE = 256


@torch.inference_mode()
def evaluate(
    network: nn.Module, data: LocalData, threshold: float, macs: tuple[int, ...]
) -> dict[str, Numbers]:
    """Return the metrics of every exit and of early-exit inference.

    Parameters
    ----------
    threshold
        Inference leaves at the first exit whose max softmax is at least this.
    macs
        Multiply-accumulates per sample up to each exit, earlier exits included.

    Returns
    -------
    ``num-examples``; per exit ``correct`` (samples), ``loss`` (mean cross-entropy),
    ``macs`` and ``taken`` (samples that leave there); ``early-correct``, the samples
    that are right at the exit where they leave.
    """
    network.eval()
    exits = len(macs)
    correct, taken = [0] * exits, [0] * exits
    loss = [0.0] * exits
    early_correct = 0
    for batch in data.ordered(_BATCH_SIZE):
        inside = torch.ones_like(batch.targets, dtype=torch.bool)
        for index, logits in enumerate(logits_per_exit(network, batch.inputs)):
            right = logits.argmax(dim=1) == batch.targets
            correct[index] += int(right.sum())
            loss[index] += float(F.cross_entropy(logits, batch.targets, reduction="sum"))
            leaves = inside.clone()
            if index < exits - 1:
                leaves &= logits.softmax(dim=1).amax(dim=1) >= threshold
            taken[index] += int(leaves.sum())
            early_correct += int((right & leaves).sum())
            inside &= ~leaves
    return {
        NUM_EXAMPLES: len(data),
        "correct": correct,
        "loss": [value / len(data) for value in loss],
        "macs": list(macs),
        "taken": taken,
        "early-correct": early_correct,
    }
