"""The choice of the threshold ε, from what every exit says of validation data.

Every threshold's outcome follows from one pass over all exits. A sample goes on behind
exit j where ε is above the largest of its scores up to there, M_j; so the outcome
changes at the values M_j alone. One ε below all of them, one in the middle of each gap
between them and one above them are looked at: a score computed again, in another batch
or on another device, differs by rounding, and should fall on the same side.

Shape suffixes: n samples, m exits, e thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


_BELOW: Final = 1e-3
"""How far the lowest threshold lies below all scores."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Outcome of every threshold that makes a difference, ascending."""

    thresholds_e: Floats
    """The last one is above all scores: every sample goes to the last exit."""
    accuracy_e: Floats
    """Accuracy at the exit taken, fraction."""
    cost_e: Floats
    """Mean cost per sample, in the unit of the costs given."""

    @property
    def full_accuracy(self) -> float:
        """Accuracy of the last exit alone."""
        return float(self.accuracy_e[-1])


@dataclass(frozen=True, slots=True)
class Choice:
    """A threshold with what it gave on the validation data."""

    threshold: float
    accuracy: float
    cost: float


def curve(
    scores_nm: npt.NDArray[np.floating],
    right_nm: npt.NDArray[np.bool_],
    costs_m: Floats,
) -> Curve:
    """Return accuracy and mean cost of every threshold.

    Parameters
    ----------
    scores_nm
        Score of each sample at each exit.
    right_nm
        Whether the exit's prediction is right.
    costs_m
        Cost of leaving at each exit, in any unit.
    """
    running = np.maximum.accumulate(scores_nm[:, :-1].astype(np.float64), axis=1)
    values = np.unique(running)
    between = (values[1:] + values[:-1]) / 2
    thresholds = np.concatenate([values[:1] - _BELOW, between, [np.inf]])
    right = right_nm.astype(np.float64)
    gain = np.diff(right, axis=1)  # of going on from exit j to exit j + 1
    price = np.broadcast_to(np.diff(costs_m), gain.shape)
    order = np.argsort(running, axis=None)
    behind = np.searchsorted(running.ravel()[order], thresholds)  # scores below ε

    def total(start: float, steps: npt.NDArray[np.floating]) -> Floats:
        sums = np.concatenate([[0.0], np.cumsum(steps.ravel()[order])])
        mean: Floats = (start + sums[behind]) / len(scores_nm)
        return mean

    return Curve(
        thresholds,
        total(right[:, 0].sum(), gain),
        total(costs_m[0] * len(scores_nm), price),
    )


def cheapest(curve: Curve, accuracy_loss: float) -> Choice:
    """Return the cheapest threshold that loses no more accuracy than given.

    Parameters
    ----------
    accuracy_loss
        Fraction by which accuracy may fall below the last exit's.

    Raises
    ------
    ValueError
        The loss is negative.
    """
    if not accuracy_loss >= 0:
        raise ValueError(f"accuracy loss {accuracy_loss:g}: must be at least 0")
    fits = curve.accuracy_e >= curve.full_accuracy - accuracy_loss - 1e-9
    return _choice(curve, np.where(fits, curve.cost_e, np.inf).argmin())


def most_accurate(curve: Curve, budget: float) -> Choice:
    """Return the most accurate threshold within a budget; of equals, the cheapest.

    Parameters
    ----------
    budget
        Largest mean cost per sample.

    Raises
    ------
    ValueError
        Leaving at the first exit costs more than the budget.
    """
    if curve.cost_e[0] > budget:
        raise ValueError(
            f"a budget of {budget:g} per sample cannot be kept: leaving at the first "
            f"exit already costs {curve.cost_e[0]:g}"
        )
    fits = curve.cost_e <= budget
    return _choice(curve, np.where(fits, curve.accuracy_e, -1.0).argmax())


def _choice(curve: Curve, index: np.intp) -> Choice:
    return Choice(
        threshold=float(curve.thresholds_e[index]),
        accuracy=float(curve.accuracy_e[index]),
        cost=float(curve.cost_e[index]),
    )
