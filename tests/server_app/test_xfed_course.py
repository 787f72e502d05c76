"""How X-FED behaves over a run: weights of teachers, numbers of students."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from client_app.losses import distillation
from common.data.spec import DataSpec
from common.models import Network, build_network, last_exit_keys
from common.settings import parse_settings
from common.state import read_state, write_state
from server_app.matching import aggregate_teachers, cosine_similarity, match_teachers
from server_app.methods.xfed import XFed

CLIENTS = [f"client-{i}" for i in range(10)]


def xfed(num_rounds: int = 20, **changes: Any) -> XFed:
    config = {f"xfed.{key}": value for key, value in changes.items()}
    settings = parse_settings(
        {"method": "xfed", "num-server-rounds": num_rounds, **config}
    )
    return XFed(settings, initial_exit={"w": np.zeros(2, np.float32)}, num_exits=3)


def own_weight(updates: np.ndarray) -> float:
    strategy = xfed(mu=0.6)
    strategy.updates = dict(zip(CLIENTS, updates, strict=True))
    strategy.instruct_training(1, CLIENTS)
    return float(strategy.round_report()["self_weight_mean"])


def test_weight_of_oneself_among_unrelated_clients() -> None:
    # Fig. 8 shows about 0.8. Closed form with cosines c to all 9 others, mu = 0.6:
    # 1/10 + (1 - (1 + 9 c) / 10) / 1.2 = 0.85 - 0.75 c.
    assert own_weight(np.eye(10)) == pytest.approx(0.85)
    related = np.sqrt(14 / 15) * np.eye(11)[1:] + np.sqrt(1 / 15) * np.eye(11)[0]
    assert own_weight(related) == pytest.approx(0.8)
    # Unrelated, as updates of 1,290 parameters are: cosines of about ± 0.03.
    random = np.random.default_rng(0).normal(size=(10, 1290))
    assert own_weight(random) == pytest.approx(0.85, abs=0.02)


@pytest.mark.parametrize(
    ("schedule", "budgets"),
    [
        # Of 2 shallow exits * 10 clients, in rounds 1, 5, 10 and 20 of 20.
        ("linear", (2, 10, 20, 20)),
        ("constant", (20, 20, 20, 20)),
        ("quadratic", (0, 5, 20, 20)),  # 20 * 0.01 = 0.2, 20 * 0.25
        ("logarithmic", (3, 12, 20, 20)),  # 20 ln 1.1718 = 3.17, 20 ln 1.8591 = 12.40
        ("step", (2, 10, 20, 20)),
    ],
)
def test_student_counts_follow_the_schedule(
    schedule: str, budgets: tuple[int, ...]
) -> None:
    strategy = xfed(schedule=schedule)
    for server_round, budget in zip((1, 5, 10, 20), budgets, strict=True):
        strategy.instruct_training(server_round, CLIENTS)
        counts = strategy.round_report()["students_per_exit"]
        assert counts == [min(budget, 10), max(budget - 10, 0), 10]


def test_the_teacher_sent_gives_the_mixed_logits() -> None:
    """Server's h̄_i in the client's network: loss and gradients of Σ_j k_ij z_j."""
    network = build_network("convnet", DataSpec("image", (1, 8, 8), 10), seed=0)
    assert isinstance(network, Network)
    keys = last_exit_keys(network)
    initial = read_state(network, keys)
    rng = np.random.default_rng(0)
    steps = [
        {k: rng.normal(size=v.shape).astype(np.float32) for k, v in initial.items()}
        for _ in range(4)
    ]
    exits = [{k: initial[k] + step[k] for k in keys} for step in steps]
    vectors = [np.concatenate([step[k].ravel() for k in keys]) for step in steps]
    weights = match_teachers(cosine_similarity(vectors), mu=0.6)
    images = torch.from_numpy(rng.normal(size=(6, 1, 8, 8)).astype(np.float32))

    def last_logits(exit_: Any) -> torch.Tensor:
        write_state(network, exit_)
        with torch.no_grad():
            logits = network(images, [2])[-1]
        assert logits is not None
        return logits

    logits = torch.stack([last_logits(exit_) for exit_ in exits])
    for row, teacher in zip(weights, aggregate_teachers(weights, exits), strict=True):
        mixed = torch.tensordot(torch.tensor(row, dtype=torch.float32), logits, dims=1)
        outcomes = []
        for target in (last_logits(teacher), mixed):
            student = torch.zeros(6, 10, requires_grad=True)
            loss = distillation(student, target, 2.0)
            (gradient,) = torch.autograd.grad(loss, student)
            outcomes.append((loss.detach(), gradient))
        torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-6)
