"""Teacher matching against hand-solved problems and SciPy's general solver."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from server_app.matching import (
    aggregate_teachers,
    cosine_similarity,
    flatten,
    match_teachers,
    project_to_simplex,
)


def slsqp(cosines: np.ndarray, mu: float) -> np.ndarray:
    """argmax k·c − μ‖k − 1/s‖² on the simplex, by a general solver."""
    size = len(cosines)
    result = minimize(
        lambda k: -(k @ cosines) + mu * np.sum((k - 1 / size) ** 2),
        np.full(size, 1 / size),
        jac=lambda k: -cosines + 2 * mu * (k - 1 / size),
        bounds=[(0, 1)] * size,
        constraints={"type": "eq", "fun": lambda k: k.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert result.success
    return np.asarray(result.x)


@pytest.mark.parametrize("size", [1, 2, 5, 20])
@pytest.mark.parametrize("mu", [0.15, 0.6, 3.0])
def test_equals_a_general_solver(size: int, mu: float) -> None:
    rng = np.random.default_rng(size)
    vectors = rng.normal(size=(size, 8))
    similarity = cosine_similarity(list(vectors))
    weights = match_teachers(similarity, mu)
    for row, cosines in zip(weights, similarity, strict=True):
        np.testing.assert_allclose(row, slsqp(cosines, mu), atol=1e-6)


def test_two_clients_by_hand() -> None:
    # c = (1, c): k_1 = 1/2 + (1 - c) / (4 mu) while that is below 1.
    similarity = np.array([[1.0, 0.4], [0.4, 1.0]])
    weights = match_teachers(similarity, mu=0.6)
    assert weights[0, 0] == pytest.approx(0.5 + 0.6 / 2.4)
    assert weights[0, 1] == pytest.approx(0.5 - 0.6 / 2.4)
    np.testing.assert_allclose(weights, weights.T)
    # mu = 0.25 and c = -1: 1/2 + 2 = 2.5 is cut at the corner.
    corner = match_teachers(np.array([[1.0, -1.0], [-1.0, 1.0]]), mu=0.25)
    np.testing.assert_allclose(corner, np.eye(2))


def test_own_weight_with_unrelated_others() -> None:
    # s = 10, mu = 0.6, c_j = 0: k_i = 1/10 + (1 - 1/10) / 1.2 = 0.85, others 1/60.
    weights = match_teachers(np.eye(10), mu=0.6)
    np.testing.assert_allclose(np.diag(weights), 0.85)
    np.testing.assert_allclose(weights[0, 1:], 0.1 - 0.1 / 1.2)


def test_projection_by_hand() -> None:
    # (0.9, 0.5, -1): threshold (0.9 + 0.5 - 1) / 2 = 0.2.
    points = np.array([[0.9, 0.5, -1.0], [0.2, 0.3, 0.5], [-5.0, -5.0, -5.0]])
    expected = [[0.7, 0.3, 0.0], [0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(project_to_simplex(points), expected)


def test_projection_satisfies_the_optimality_conditions() -> None:
    points = np.random.default_rng(3).normal(scale=2, size=(200, 30))
    result = project_to_simplex(points)
    assert (result >= 0).all()
    np.testing.assert_allclose(result.sum(axis=1), 1)
    for point, projected in zip(points, result, strict=True):
        inside = projected > 0
        distance = (point - projected)[inside]
        assert np.ptp(distance) < 1e-12  # one multiplier for the whole support
        assert (point[~inside] <= distance[0] + 1e-12).all()


def test_cosines_of_unknown_and_zero_updates() -> None:
    similarity = cosine_similarity(
        [np.array([3.0, 0.0]), None, np.array([1.0, 1.0]), np.zeros(2)]
    )
    root = 1 / np.sqrt(2)
    expected = [[1, 0, root, 0], [0, 1, 0, 0], [root, 0, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(similarity, expected)


def test_nobody_known() -> None:
    np.testing.assert_array_equal(cosine_similarity([None, None]), np.eye(2))


def test_teachers_are_means_of_the_stored_exits() -> None:
    exits = [
        {"w": np.array([[1.0, 2.0]], np.float32), "b": np.array([0.0], np.float32)},
        {"w": np.array([[5.0, 6.0]], np.float32), "b": np.array([8.0], np.float32)},
    ]
    before = [{k: v.copy() for k, v in e.items()} for e in exits]
    teachers = aggregate_teachers(np.array([[0.75, 0.25], [0.25, 0.75]]), exits)
    np.testing.assert_array_equal(teachers[0]["w"], [[2.0, 3.0]])
    # From the stored exits: had client 0's been overwritten by its teacher first, this
    # would be 0.25 * 2 + 0.75 * 5 = 4.25.
    np.testing.assert_array_equal(teachers[1]["w"], [[4.0, 5.0]])
    np.testing.assert_array_equal(teachers[1]["b"], [6.0])
    assert teachers[0]["w"].dtype == np.float32
    for exit_, copy in zip(exits, before, strict=True):
        for key, value in copy.items():
            np.testing.assert_array_equal(exit_[key], value)


def test_flatten_goes_by_name() -> None:
    exit_ = {"w": np.array([[1.0, 2.0]]), "b": np.array([9.0])}
    np.testing.assert_array_equal(flatten(exit_), [9.0, 1.0, 2.0])
