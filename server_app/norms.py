"""Norms of updates: how far a client moved what it got, and who moved it oddly far.

Sources: norm clipping against poisoned updates, Sun et al., "Can You Really Backdoor
Federated Learning?" (2019, arXiv 1911.07963), Sec. 4; outliers by the modified z-score,
Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from common.state import State

Z_LIMIT = 3.5
"""Modified z-scores beyond it mark outliers (Iglewicz and Hoaglin)."""

MIN_NORMS = 5
"""Fewer norms say nothing about what is usual."""

_BLOCK = 2**16  # elements in float64 at a time: stays in the cache


def squared_distance(state: State, start: State) -> float:
    """Return ‖state − start‖² over all floating-point arrays, summed in float64."""
    total, steps = 0.0, np.empty(_BLOCK)
    for key, value in state.items():
        if np.issubdtype(value.dtype, np.floating):
            there, here = value.reshape(-1), start[key].reshape(-1)
            for i in range(0, value.size, _BLOCK):
                block = slice(i, min(i + _BLOCK, value.size))
                step = steps[: block.stop - i]
                np.subtract(there[block], here[block], out=step, dtype=np.float64)
                # Not by BLAS: starting its threads costs more than they save here.
                total += float(np.einsum("i,i->", step, step))
    return total


def scaled(state: State, start: State, factor: float) -> State:
    """Return start + factor·(state − start), in the dtypes of `state`.

    Arrays that are not of floating point stay as they are.
    """
    return {
        key: _moved(value, start[key], factor)
        if np.issubdtype(value.dtype, np.floating)
        else value
        for key, value in state.items()
    }


def _moved(
    value: npt.NDArray[np.generic], start: npt.NDArray[np.generic], factor: float
) -> npt.NDArray[np.generic]:
    step = factor * np.subtract(value, start, dtype=np.float64)
    return np.asarray(np.add(start, step, dtype=np.float64)).astype(value.dtype)


def outliers(norms: Mapping[str, float]) -> dict[str, float]:
    """Return the clients whose norm lies far from the others', with its z-score.

    z = 0.6745·(x − median)/MAD, MAD being the median absolute deviation. Where more
    than half of the norms are equal, MAD is 0 and the mean absolute deviation stands in
    for it: z = (x − median)/(1.2533·mean).
    """
    if len(norms) < MIN_NORMS:
        return {}
    values = np.array(list(norms.values()))
    deviations = values - np.median(values)
    spread = np.median(np.abs(deviations)) / 0.6745
    if spread == 0:
        spread = np.mean(np.abs(deviations)) * math.sqrt(math.pi / 2)
    if spread == 0:
        return {}
    scores = dict(zip(norms, (deviations / spread).tolist(), strict=True))
    return {name: z for name, z in scores.items() if abs(z) > Z_LIMIT}
