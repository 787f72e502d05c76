"""Student selection: budgets by hand and the greedy removal against a naive one."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from server_app.selection import (
    SCHEDULES,
    least_conflicting,
    select_students,
    student_budget,
)


def naive(similarity: np.ndarray, keep: int) -> list[int]:
    """The paper's greedy removal, every sum computed afresh."""
    conflict = np.minimum(similarity, 0.0)
    remaining = list(range(len(similarity)))
    while len(remaining) > keep:
        sums = [
            math.fsum(conflict[i, e] for i in remaining if i != e) for e in remaining
        ]
        remaining.pop(int(np.argmin(sums)))
    return remaining


def test_linear_budget_of_every_round() -> None:
    # m = 4 exits, s = 10 clients, T = 30: share = 3 * min(2t/30, 1) = min(t/5, 3).
    for t in range(1, 31):
        share = min(Fraction(t, 5), Fraction(3))
        depth, extra = student_budget("linear", t, 30, 4, 10)
        assert depth == math.floor(share)
        assert depth * 10 + extra == round(share * 10)


def test_budget_at_known_rounds() -> None:
    assert student_budget("linear", 1, 40, 3, 10) == (0, 1)
    assert student_budget("linear", 10, 40, 3, 10) == (1, 0)
    assert student_budget("linear", 13, 40, 3, 10) == (1, 3)
    assert student_budget("linear", 20, 40, 3, 10) == (2, 0)
    assert student_budget("linear", 40, 40, 3, 10) == (2, 0)
    # A third of three exits is exactly one, in floats as on paper.
    assert student_budget("linear", 50, 300, 4, 10) == (1, 0)
    # Half a student rounds up.
    assert student_budget("linear", 1, 40, 3, 5) == (0, 1)


def test_schedules() -> None:
    assert [SCHEDULES["constant"](x) for x in (0.01, 1)] == [1, 1]
    assert SCHEDULES["quadratic"](0.25) == pytest.approx(0.25)
    assert SCHEDULES["quadratic"](0.7) == 1
    assert SCHEDULES["logarithmic"](0.5) == pytest.approx(1)
    assert SCHEDULES["logarithmic"](0.25) == pytest.approx(math.log(math.e / 2 + 0.5))
    # +0.1 every T/20 rounds: rounds 1..14 of 300 have 0, 15..29 have 0.1.
    assert [SCHEDULES["step"](t / 300) for t in (14, 15, 29, 30, 150, 300)] == [
        0,
        0.1,
        0.1,
        0.2,
        1,
        1,
    ]


@pytest.mark.parametrize("seed", range(20))
def test_greedy_equals_naive(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(15, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors @ vectors.T
    similarity[rng.random(15) < 0.2] = 0  # some clients unknown
    similarity = np.minimum(similarity, similarity.T)
    for keep in (0, 1, 7, 14, 15):
        assert least_conflicting(similarity, keep).tolist() == naive(similarity, keep)


def test_removes_the_most_conflicting_by_hand() -> None:
    # Sums: client 0: -0.9, 1: -0.5, 2: -0.4; without 0 nobody conflicts, so the tie
    # between 1 and 2 goes to the first of them.
    similarity = np.array([[1, -0.5, -0.4], [-0.5, 1, 0.3], [-0.4, 0.3, 1]])
    assert least_conflicting(similarity, 2).tolist() == [1, 2]
    assert least_conflicting(similarity, 1).tolist() == [2]


def test_ties_survive_rounding() -> None:
    # After client 2 is gone all sums are 0 on paper, -0.1-0.2+0.1+0.2 in floats.
    similarity = np.eye(4)
    similarity[2, :2] = similarity[:2, 2] = [-0.1, -0.2]
    assert least_conflicting(similarity, 2).tolist() == [1, 3]


def test_students_of_a_round() -> None:
    similarity = np.eye(4)
    similarity[0, 1] = similarity[1, 0] = -1.0
    similarity[0, 2] = similarity[2, 0] = -0.5
    # m = 3, T = 8, t = 1: share 0.5, so 2 of 4 clients train exit 1; client 0 conflicts
    # most; then 1, 2, 3 tie at 0 and the first goes.
    chosen = select_students("linear", 1, 8, 3, similarity)
    assert chosen == [(3,), (3,), (1, 3), (1, 3)]
    assert select_students("linear", 2, 8, 3, similarity) == [(1, 3)] * 4
    assert select_students("linear", 3, 8, 3, similarity) == [
        (1, 3),
        (1, 3),
        (1, 2, 3),
        (1, 2, 3),
    ]
    assert select_students("linear", 8, 8, 3, similarity) == [(1, 2, 3)] * 4


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("num_exits", [2, 3, 4])
def test_budget_is_spent_and_last_exit_always_trains(
    schedule: str, num_exits: int
) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(7, 3))
    similarity = np.sign(vectors @ vectors.T) * 0.5
    for t in range(1, 41):
        chosen = select_students(schedule, t, 40, num_exits, similarity)
        share = (num_exits - 1) * SCHEDULES[schedule](t / 40)
        shallow = [exits[:-1] for exits in chosen]
        assert sum(map(len, shallow)) == math.floor(share * 7 + 0.5 + 1e-9)
        assert all(exits[-1] == num_exits for exits in chosen)
        assert all(e == tuple(range(1, len(e) + 1)) for e in shallow)
        assert max(map(len, shallow)) - min(map(len, shallow)) <= 1
