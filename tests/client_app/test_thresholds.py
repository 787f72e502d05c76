from __future__ import annotations

import numpy as np
import pytest

from client_app.thresholds import cheapest, curve, most_accurate

# Four samples, two exits. Sure and right, sure and wrong, unsure and wrong, unsure and
# right at exit 1; the last exit is right but for the last sample.
SCORES = np.array([[0.9, 1.0], [0.8, 0.6], [0.4, 0.7], [0.3, 0.9]], np.float32)
RIGHT = np.array([[1, 1], [0, 1], [0, 1], [1, 0]], bool)
COSTS = np.array([10.0, 30.0])


def test_curve_by_hand() -> None:
    found = curve(SCORES, RIGHT, COSTS)
    np.testing.assert_allclose(found.thresholds_e, [0.299, 0.35, 0.6, 0.85, np.inf])
    # All leave at exit 1; then, one after the other, samples 4, 3, 2 and 1 go on.
    np.testing.assert_allclose(found.accuracy_e, [0.5, 0.25, 0.5, 0.75, 0.75])
    np.testing.assert_allclose(found.cost_e, [10, 15, 20, 25, 30])
    assert found.full_accuracy == 0.75


def test_targets_by_hand() -> None:
    found = curve(SCORES, RIGHT, COSTS)
    choice = cheapest(found, 0.0)
    assert choice.threshold == pytest.approx(0.85)
    assert (choice.accuracy, choice.cost) == (0.75, 25)
    assert cheapest(found, 0.25).cost == 10
    assert most_accurate(found, 24.0).cost == 10  # as accurate as at 20
    assert most_accurate(found, 30.0).cost == 25
    with pytest.raises(ValueError, match=r"budget of 9 .* already costs 10"):
        most_accurate(found, 9)


def test_agrees_with_leaving_one_by_one() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 8, (60, 4)) / 8  # with ties
    right = rng.random((60, 4)) < 0.5
    costs = np.array([1.0, 2.5, 7.0, 8.0])
    found = curve(scores, right, costs)
    for threshold, accuracy, cost in zip(
        found.thresholds_e, found.accuracy_e, found.cost_e, strict=True
    ):
        hits, spent = [], []
        for score, correct in zip(scores, right, strict=True):
            sure = [j for j in range(3) if score[j] >= threshold]
            exit_ = sure[0] if sure else 3
            hits.append(correct[exit_])
            spent.append(costs[exit_])
        assert accuracy == pytest.approx(np.mean(hits))
        assert cost == pytest.approx(np.mean(spent))


def test_a_single_exit_has_nothing_to_choose() -> None:
    found = curve(
        np.array([[0.5], [0.6]]), np.array([[True], [False]]), np.array([7.0])
    )
    assert (found.accuracy_e.tolist(), found.cost_e.tolist()) == ([0.5], [7.0])
    assert cheapest(found, 0.0).threshold == np.inf
