"""Losses of the methods, pure functions of tensors and networks, in float32.

Shape suffixes: n samples, c classes, m exits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.models import logits_per_exit


def joint_cross_entropy(logits_nc: Sequence[Tensor], targets_n: Tensor) -> Tensor:
    """Return Σ_j w_j CE_j over all exits with w_j = 1/m: joint training of an EEN.

    For a single exit this is plain cross-entropy, mean over the batch.
    """
    losses = [F.cross_entropy(logits.float(), targets_n) for logits in logits_nc]
    return sum(losses[1:], start=losses[0]) / len(losses)


def network_loss(network: nn.Module, inputs: Tensor, targets_n: Tensor) -> Tensor:
    """Return the joint cross-entropy of a network's exits on `inputs`."""
    return joint_cross_entropy(logits_per_exit(network, inputs), targets_n)


def distillation(student_nc: Tensor, teacher_nc: Tensor, temperature: float) -> Tensor:
    """Return T²·KL(softmax(z_teacher / T) ‖ softmax(z_student / T)), the batch's mean.

    The teacher's logits are detached: no gradient flows into them.
    """
    teacher = F.log_softmax(teacher_nc.detach().float() / temperature, dim=1)
    student = F.log_softmax(student_nc.float() / temperature, dim=1)
    divergence = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return divergence * temperature**2


def xfed_loss(
    logits_nc: Sequence[Tensor | None],
    targets_n: Tensor,
    teacher_nc: Tensor | None,
    students: Sequence[int],
    *,
    kd_weight: float,
    ce_weight: float,
    temperature: float,
) -> Tensor:
    """Return Σ_{j∈S} (w_ce CE_j + w_kd KD_j) with KD_m = 0 (X-FED, Eq. 5).

    Parameters
    ----------
    logits_nc
        Logits per exit; only those of the students are read.
    teacher_nc
        The teacher's logits; None where the last exit is the only student.
    students
        The exits S_i, counted from 1, with the last exit m among them.
    ce_weight, kd_weight
        w_j = 1/m, and λ·w_j (Eq. 5) or λ (the authors' code).
    """
    total = torch.zeros((), device=targets_n.device)
    for exit_ in students:
        logits = logits_nc[exit_ - 1]
        assert logits is not None
        total = total + ce_weight * F.cross_entropy(logits.float(), targets_n)
        if exit_ < len(logits_nc) and teacher_nc is not None:
            total = total + kd_weight * distillation(logits, teacher_nc, temperature)
    return total
