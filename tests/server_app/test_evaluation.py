"""Figures of an evaluation over clients, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.protocol import EPSILONS, Reply
from server_app.evaluation import Evaluation
from server_app.vetting import RefusedReply

MACS = [10, 30]
STEPS = len(EPSILONS)


def reply(early: int, examples: int = 10, **changes: Any) -> Reply:
    """`early` of the samples are right at the exit taken; at exit 1 two, at exit 2 six.

    Up to ε = 0.50 all leave at exit 1, then all but one go on.
    """
    metrics: dict[str, Any] = {
        "num-examples": examples,
        "correct": [2, 6],
        "loss": [1.0, 0.5],
        "taken": [4, examples - 4],
        "early-correct": early,
        "epsilon-correct": [2] * 11 + [6] * 10,
        "epsilon-taken": [examples, 0] * 11 + [1, examples - 1] * 10,
    }
    return Reply(metrics={**metrics, **changes})


def summary(replies: dict[str, Reply], trained: Any = ()) -> dict[str, Any]:
    for it in replies.values():
        Evaluation.vet(it, MACS)
    return Evaluation(replies, dict.fromkeys(replies, MACS), trained).summary()


def test_seen_and_never_sampled_clients_apart() -> None:
    replies = {"a": reply(2), "b": reply(6), "c": reply(10, correct=[2, 2])}
    found = summary(replies, trained={"b", "c", "somebody else"})
    assert (found["seen-clients"], found["unseen-clients"]) == (2, 1)
    assert found["seen-accuracy-mean"] == pytest.approx((0.4 + 0.2) / 2)
    assert found["unseen-accuracy-mean"] == pytest.approx(0.4)
    assert found["seen-early-accuracy-mean"] == pytest.approx(0.8)
    assert found["unseen-early-accuracy-mean"] == pytest.approx(0.2)
    everybody = summary(replies, trained=set(replies))
    assert everybody["unseen-clients"] == 0
    assert "unseen-accuracy-mean" not in everybody


def test_curve_over_the_threshold() -> None:
    other = reply(5, 20, **{"epsilon-correct": [2] * STEPS})
    found = summary({"a": reply(5), "b": other})
    assert found["epsilon"] == list(EPSILONS)
    assert found["epsilon"][:2] + found["epsilon"][-1:] == [0, 0.05, 1]
    low, high = (0.2 + 0.1) / 2, (0.6 + 0.1) / 2
    assert found["epsilon-accuracy-mean"] == pytest.approx([low] * 11 + [high] * 10)
    cost = (0.1 * 10 + 0.9 * 30 + 0.05 * 10 + 0.95 * 30) / 2
    assert found["epsilon-macs-mean"] == pytest.approx([10] * 11 + [cost] * 10)


NOISY = {"noisy-correct": [1, 3], "noisy-taken": [0, 10], "noisy-early-correct": 3}


def test_noisy_images_beside_the_clean_ones() -> None:
    found = summary({"a": reply(5, **NOISY), "b": reply(5, **NOISY)})
    assert found["accuracy-mean"] == pytest.approx(0.4)
    assert found["noisy-accuracy-mean"] == pytest.approx(0.2)
    assert found["noisy-early-accuracy-mean"] == pytest.approx(0.3)
    assert found["noisy-exit-accuracy-mean"] == pytest.approx([0.1, 0.3])
    assert found["noisy-early-macs-mean"] == 30
    assert "noisy-accuracy-mean" not in summary({"a": reply(5)})


def test_latency_is_averaged_over_clients() -> None:
    replies = {"a": reply(5, latency=[0.1, 0.2]), "b": reply(5, latency=[0.3, 0.6])}
    found = summary(replies)
    assert found["latency-median"] == pytest.approx(0.2)
    assert found["latency-p95"] == pytest.approx(0.4)


def test_rows_hold_nothing_that_was_timed() -> None:
    replies = {"a": reply(5, **NOISY, latency=[0.1, 0.2])}
    rows = list(Evaluation(replies, {"a": MACS}).rows(7))
    assert rows == [
        (7, "a", "1", 0.2, 1.0, 10, 10),
        (7, "a", "2", 0.6, 0.5, 10, 30),
        (7, "a", "early", 0.5, "", 10, 22.0),
        (7, "a", "noisy-1", 0.1, "", 10, 10),
        (7, "a", "noisy-2", 0.3, "", 10, 30),
        (7, "a", "noisy-early", 0.3, "", 10, 30.0),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epsilon-correct": [2] * (STEPS - 1)}, "lack epsilon-correct with 21"),
        ({"epsilon-correct": [2.0] * STEPS}, "epsilon-correct holds counts outside"),
        ({"epsilon-correct": [3] * STEPS}, "epsilon-correct starts with 3, not 2"),
        ({"epsilon-correct": [2] * 20 + [11]}, "epsilon-correct holds counts outside"),
        ({"epsilon-taken": [10, 0] * 20 + [9, 0]}, "epsilon-taken: 9 of 10"),
        ({"epsilon-taken": [10, 0] * 20}, "lack epsilon-taken with 42"),
        ({"epsilon-taken": [11, -1] * STEPS}, "epsilon-taken holds counts outside"),
        ({"noisy-correct": [1, 3]}, "lack noisy-taken with 2"),
        ({**NOISY, "noisy-taken": [3, 8]}, "noisy-taken: 11 of 10"),
        ({**NOISY, "noisy-early-correct": 11}, "noisy-early-correct = 11"),
        ({"latency": [0.1]}, "lack latency with 2"),
        ({"latency": [0.1, float("inf")]}, "latency is negative or not finite"),
        ({"latency": [-0.1, 0.1]}, "latency is negative or not finite"),
    ],
)
def test_impossible_figures_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedReply, match=reason):
        Evaluation.vet(reply(5, **changes), MACS)


def test_different_numbers_of_exits() -> None:
    single = Reply(
        metrics={
            "num-examples": 10,
            "correct": [7],
            "loss": [0.3],
            "taken": [10],
            "early-correct": 7,
            "epsilon-correct": [7] * STEPS,
            "epsilon-taken": [10] * STEPS,
        }
    )
    Evaluation.vet(single, [50])
    both = Evaluation({"a": reply(5), "b": single}, {"a": MACS, "b": [50]}).summary()
    assert both["accuracy-mean"] == pytest.approx((0.4 + 0.7) / 2)
    assert "exit-accuracy-mean" not in both
    costs = np.asarray(both["epsilon-macs-mean"])
    assert costs[0] == pytest.approx((10 + 50) / 2)
