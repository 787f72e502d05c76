"""Evaluation of a personal network on the client's test data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from client_app.batches import LocalData
from common.models import logits_per_exit
from common.protocol import NUM_EXAMPLES, Numbers

_BATCH_SIZE = 64


@torch.inference_mode()
def evaluate(
    network: nn.Module, data: LocalData, threshold: float
) -> dict[str, Numbers]:
    """Return the metrics of every exit and of early-exit inference.

    Parameters
    ----------
    threshold
        Inference leaves at the first exit whose max softmax is at least this.

    Returns
    -------
    ``num-examples``; per exit ``correct`` (samples), ``loss`` (mean cross-entropy) and
    ``taken`` (samples that leave there); ``early-correct``, the samples that are right
    at the exit where they leave.
    """
    network.eval()
    correct: list[int] = []
    taken: list[int] = []
    loss: list[float] = []
    early_correct = 0
    for batch in data.ordered(_BATCH_SIZE):
        inside = torch.ones_like(batch.targets, dtype=torch.bool)
        outputs = logits_per_exit(network, batch.inputs)
        if not correct:
            correct, taken = [0] * len(outputs), [0] * len(outputs)
            loss = [0.0] * len(outputs)
        for index, logits in enumerate(outputs):
            right = logits.argmax(dim=1) == batch.targets
            correct[index] += int(right.sum())
            loss[index] += float(
                F.cross_entropy(logits, batch.targets, reduction="sum")
            )
            leaves = inside.clone()
            if index < len(outputs) - 1:
                leaves &= logits.softmax(dim=1).amax(dim=1) >= threshold
            taken[index] += int(leaves.sum())
            early_correct += int((right & leaves).sum())
            inside &= ~leaves
    return {
        NUM_EXAMPLES: len(data),
        "correct": correct,
        "loss": [value / len(data) for value in loss],
        "taken": taken,
        "early-correct": early_correct,
    }
