"""Teacher matching of X-FED: whose last exits teach a client.

Source: "Federated Personalization of Early-Exit Networks" (CIKM 2026), Sec. 4.3
(matching) and 4.4 (aggregation).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.state import State

Matrix = npt.NDArray[np.float64]


def cosine_similarity(updates: Sequence[npt.NDArray[np.generic] | None]) -> Matrix:
    """Return cos(Δ_i, Δ_j) for the clients' last updates.

    Parameters
    ----------
    updates
        One vector per client, all of one length; None where a client never trained.

    Returns
    -------
    Shape (s, s), symmetric: 1 on the diagonal, 0 where an update is unknown or zero.
    """
    known = [i for i, update in enumerate(updates) if update is not None]
    similarity = np.eye(len(updates))
    if known:
        rows = np.stack([np.asarray(updates[i], dtype=np.float64) for i in known])
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
        similarity[np.ix_(known, known)] = np.clip(rows @ rows.T, -1.0, 1.0)
        np.fill_diagonal(similarity, 1.0)
    return similarity


def project_to_simplex(points: Matrix) -> Matrix:
    """Project each row onto the probability simplex {k : 1ᵀk = 1, k ≥ 0}.

    Exact, by sorting (Held, Wolfe and Crowder 1974): k = max(v − τ, 0), where τ is the
    one threshold with Σk = 1. O(s log s) per row.

    Parameters
    ----------
    points
        Shape (rows, s).
    """
    size = points.shape[-1]
    descending = -np.sort(-points, axis=-1)
    excess = np.cumsum(descending, axis=-1) - 1.0
    positive = descending * np.arange(1, size + 1) > excess
    support = positive.sum(axis=-1, keepdims=True)
    threshold = np.take_along_axis(excess, support - 1, axis=-1) / support
    projected: Matrix = np.maximum(points - threshold, 0.0)
    return projected


def match_teachers(similarity: Matrix, mu: float) -> Matrix:
    """Return the weights k_i of the teachers for every client, one row each.

    k_i = argmax_k kᵀc_i − μ‖k − 1/s‖² over the probability simplex. Completing the
    square, that is the Euclidean projection of 1/s + c_i / (2μ) onto it.

    Parameters
    ----------
    similarity
        c_ij = cos(Δ_j, Δ_i), shape (s, s), 1 on the diagonal.
    mu
        Regularisation μ > 0: large values draw the weights towards 1/s.
    """
    return project_to_simplex(1.0 / len(similarity) + similarity / (2.0 * mu))


def aggregate_teachers(weights: Matrix, exits: Sequence[State]) -> list[State]:
    """Return h̄_i = Σ_j k_ij h_jm for every client.

    Parameters
    ----------
    weights
        k_ij, shape (s, s).
    exits
        The last exits h_jm as stored before this round, in the clients' order.

    Returns
    -------
    One new state per client, dtypes as in `exits`; `exits` stay untouched.
    """
    teachers: list[State] = [{} for _ in exits]
    for key, first in exits[0].items():
        stacked = np.stack([exit_[key].ravel() for exit_ in exits]).astype(np.float64)
        for teacher, row in zip(teachers, weights @ stacked, strict=True):
            teacher[key] = row.reshape(first.shape).astype(first.dtype)
    return teachers


def flatten(exit_: State) -> npt.NDArray[np.float64]:
    """Concatenate an exit's arrays into one vector, in the order of their names."""
    return np.concatenate([exit_[key].ravel() for key in sorted(exit_)]).astype(
        np.float64
    )
