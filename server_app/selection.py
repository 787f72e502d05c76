"""Student selection of X-FED: which exits learn from the last one in a round.

Source: "Federated Personalization of Early-Exit Networks" (CIKM 2026), Sec. 4.2 and,
for the schedules, Sec. 5.4.3. Notation: m exits, s sampled clients, round t of T.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_TOLERANCE = 1e-9  # R(t) is a quotient of floats: 3 * (1/3) must count as 1

SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda x: min(2 * x, 1.0),
    "constant": lambda x: 1.0,
    "quadratic": lambda x: min((2 * x) ** 2, 1.0),
    "logarithmic": lambda x: min(math.log(2 * (math.e - 1) * x + 1), 1.0),
    "step": lambda x: min(math.floor(20 * x + _TOLERANCE) / 10, 1.0),
}
"""R(t) as a function of t / T."""


def student_budget(
    schedule: str, server_round: int, num_rounds: int, num_exits: int, num_clients: int
) -> tuple[int, int]:
    """Return (L, K): exits 1..L of all clients are students, exit L + 1 of K clients.

    The budget of student exits is (m-1)·s·R(t), rounded to the nearest whole number
    (halves up), and L = ⌊(m-1)·R(t)⌋; K is the rest of the budget.
    """
    share = (num_exits - 1) * SCHEDULES[schedule](server_round / num_rounds)
    depth = math.floor(share + _TOLERANCE)
    budget = math.floor(share * num_clients + 0.5 + _TOLERANCE)
    return depth, max(budget - num_clients * depth, 0)


def least_conflicting(
    similarity: npt.NDArray[np.float64], keep: int
) -> npt.NDArray[np.intp]:
    """Choose the clients whose next exit becomes a student, by conflict.

    Starting from all clients, the one with the most negative Σ_i δ_ie over the
    remaining clients is removed until `keep` remain, δ_ij = min(0, cos(Δ_i, Δ_j)).
    Ties are broken by client order. O(s²).

    Parameters
    ----------
    similarity
        Cosines of the clients' last updates, shape (s, s), 0 where unknown.
    keep
        Number K of clients to keep.

    Returns
    -------
    Sorted indices of the kept clients, shape (keep,).
    """
    # Whole multiples of 2**-40 add and subtract exactly, so equal sums stay equal and
    # the running sums never drift.
    conflict = np.rint(np.minimum(similarity, 0.0) * 2.0**40).astype(np.int64)
    np.fill_diagonal(conflict, 0)
    total = conflict.sum(axis=0)
    remaining = np.ones(len(conflict), dtype=bool)
    removed = np.iinfo(np.int64).max
    for _ in range(len(conflict) - keep):
        worst = int(np.argmin(total))
        remaining[worst] = False
        total -= conflict[worst]
        total[~remaining] = removed
    return np.flatnonzero(remaining)


def select_students(
    schedule: str,
    server_round: int,
    num_rounds: int,
    num_exits: int,
    similarity: npt.NDArray[np.float64],
    generator: np.random.Generator | None = None,
) -> list[tuple[int, ...]]:
    """Return each sampled client's set S_i of exits to train, counted from 1.

    S_i = {1..L} ∪ {m}, and {L + 1} for the K clients that conflict least; with a
    `generator` for K random ones.
    """
    num_clients = len(similarity)
    depth, extra = student_budget(
        schedule, server_round, num_rounds, num_exits, num_clients
    )
    if generator is None:
        chosen = least_conflicting(similarity, extra)
    else:
        chosen = generator.choice(num_clients, size=extra, replace=False)
    deeper = set(chosen.tolist())
    return [
        (*range(1, depth + (i in deeper) + 1), num_exits) for i in range(num_clients)
    ]
