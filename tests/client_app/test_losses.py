"""Losses against numbers worked out by hand and against plain formulas."""

from __future__ import annotations

import math

import pytest
import torch

from client_app.losses import distillation, joint_cross_entropy, xfed_loss

LOGITS = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])
TARGETS = torch.tensor([0, 1])
# CE per sample: ln 2 and -ln(1/4) = ln 4; mean 1.5 ln 2.
CE = 1.5 * math.log(2)


def test_joint_cross_entropy_by_hand() -> None:
    certain = torch.tensor([[100.0, 0.0], [0.0, 100.0]])
    assert joint_cross_entropy([LOGITS], TARGETS).item() == pytest.approx(CE)
    both = joint_cross_entropy([LOGITS, certain], TARGETS)
    assert both.item() == pytest.approx(CE / 2)


def test_distillation_by_hand() -> None:
    # T = 2: teacher logits 2 ln 3 and 0 give softmax (3/4, 1/4), the student's
    # (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2), times T^2.
    teacher = torch.tensor([[2 * math.log(3.0), 0.0]])
    student = torch.zeros(1, 2)
    expected = 4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert distillation(student, teacher, 2.0).item() == pytest.approx(expected)
    assert distillation(teacher, teacher, 2.0).item() == pytest.approx(0, abs=1e-7)


def test_no_gradient_flows_into_the_teacher() -> None:
    teacher = torch.randn(3, 4, requires_grad=True)
    student = torch.randn(3, 4, requires_grad=True)
    distillation(student, teacher, 2.0).backward()
    assert teacher.grad is None
    assert student.grad is not None


def test_xfed_loss_is_the_sum_over_students() -> None:
    shallow, last, teacher = (torch.randn(2, 2) for _ in range(3))
    value = xfed_loss(
        [shallow, None, last],
        TARGETS,
        teacher,
        [1, 3],
        ce_weight=1 / 3,
        kd_weight=0.7,
        temperature=2.0,
    )
    cross_entropy = torch.nn.functional.cross_entropy
    expected = (
        cross_entropy(shallow, TARGETS) / 3
        + 0.7 * distillation(shallow, teacher, 2.0)
        + cross_entropy(last, TARGETS) / 3  # the last exit has no distillation
    )
    assert value.item() == pytest.approx(expected.item())


def test_second_deepest_exit_learns_from_labels() -> None:
    logits = [torch.randn(2, 2, requires_grad=True) for _ in range(3)]
    xfed_loss(
        logits,
        TARGETS,
        None,
        [1, 2, 3],
        ce_weight=1 / 3,
        kd_weight=1.0,
        temperature=2.0,
    ).backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in logits)


def test_mean_of_teachers_is_the_mean_of_their_logits() -> None:
    # Sec. 4.4: for linear exits, the exit Σ k_j h_j gives the logits Σ k_j z_j, so
    # distilling from one is distilling from the other; not so for a sum of KL terms.
    features = torch.randn(5, 6, dtype=torch.float64)
    exits = [torch.nn.Linear(6, 3).double() for _ in range(3)]
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    teacher = torch.nn.Linear(6, 3).double()
    with torch.no_grad():
        for name in ("weight", "bias"):
            stacked = torch.stack([getattr(e, name) for e in exits])
            mean = torch.tensordot(weights, stacked, dims=1)
            getattr(teacher, name).copy_(mean)
    student = torch.randn(5, 3, dtype=torch.float64)
    mixed = sum(k * e(features) for k, e in zip(weights, exits, strict=True))
    one = distillation(student, teacher(features), 2.0)
    torch.testing.assert_close(one, distillation(student, mixed, 2.0))
    separate = sum(
        k * distillation(student, e(features), 2.0)
        for k, e in zip(weights, exits, strict=True)
    )
    assert abs(separate.item() - one.item()) > 1e-4
