"""Weighted mean of client updates in little memory, summed in a fixed order."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from common.state import State, num_bytes

_PIECE: Final = 2**16
"""Elements added at a time: 512 KiB of float64."""


class OrderedMean:
    """The mean Σ n_k x_k / Σ n_k of states that arrive in any order.

    Floating-point sums depend on their order, so states are summed (in float64) in the
    order given at the start, whatever the order of arrival: the result is the same, bit
    for bit, however fast each client was. States that come before their turn wait; what
    waits beyond `waiting_bytes` is kept in temporary files, so memory stays at about
    the sum and two states, however many clients there are.

    Parameters
    ----------
    order
        Names of the clients that may contribute.
    waiting_bytes
        Waiting states are held in memory up to this size.
    """

    def __init__(self, order: Sequence[str], waiting_bytes: int = 64 * 2**20) -> None:
        self._order = list(order)
        self._next = 0
        self._waiting: dict[str, tuple[State | Path, int]] = {}
        self._absent: set[str] = set()
        self._room = waiting_bytes
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._sum: dict[str, npt.NDArray[np.float64]] = {}
        self._dtypes: dict[str, np.dtype[np.generic]] = {}
        self._weight = 0

    def add(self, name: str, state: State, weight: int) -> None:
        """Contribute the state of one client with weight n_k."""
        size = num_bytes(state)
        if name == self._order[self._next] or size <= self._room:
            self._room -= size
            self._waiting[name] = (state, weight)
        else:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="average-")
            path = Path(self._folder.name) / f"{self._order.index(name)}.safetensors"
            contiguous = {k: np.asarray(v, order="C") for k, v in state.items()}
            save_file(contiguous, path)
            self._waiting[name] = (path, weight)
        self._advance()

    def drop(self, name: str) -> None:
        """Say that a client will not contribute, so that nothing waits for it."""
        self._absent.add(name)
        self._advance()

    def result(self) -> State | None:
        """Return the mean, dtypes as they came; None where nothing was contributed.

        To be called once, at the end: the sums are given up on the way.
        """
        self._absent.update(set(self._order[self._next :]) - set(self._waiting))
        self._advance()
        if self._folder is not None:
            self._folder.cleanup()
        if self._weight == 0:
            return None
        mean: State = {}
        for key in list(self._sum):
            total = self._sum.pop(key)
            total /= self._weight
            mean[key] = total.astype(self._dtypes[key])
        return mean

    def _advance(self) -> None:
        while self._next < len(self._order):
            name = self._order[self._next]
            if name in self._waiting:
                self._accumulate(*self._waiting.pop(name))
            elif name not in self._absent:
                return
            self._next += 1

    def _accumulate(self, source: State | Path, weight: int) -> None:
        if isinstance(source, Path):
            state = load_file(source)
            source.unlink()
        else:
            state = source
            self._room += num_bytes(state)
        if not self._sum:
            self._sum = {k: np.zeros(v.shape, np.float64) for k, v in state.items()}
            self._dtypes = {k: v.dtype for k, v in state.items()}
        for key, total in self._sum.items():
            _add_weighted(total, state[key], weight)
        self._weight += weight


def _add_weighted(
    total: npt.NDArray[np.float64], value: npt.NDArray[Any], weight: int
) -> None:
    """Add `value` times `weight`, in pieces whose products stay in the CPU's cache."""
    flat_total, flat_value = total.reshape(-1), value.reshape(-1)
    product = np.empty(min(_PIECE, total.size), np.float64)
    for start in range(0, total.size, _PIECE):
        piece = flat_total[start : start + _PIECE]
        part = product[: piece.size]
        np.multiply(
            flat_value[start : start + _PIECE], weight, out=part, dtype=np.float64
        )
        piece += part
