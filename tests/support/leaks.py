"""Search of what was sent for what must not be in it, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.common import Message, RecordDict

WINDOW = 16
"""Bytes of private data that must not occur anywhere: 4 numbers of a float32 tensor, 16
pixels of an image."""

_TELLING = 6  # distinct bytes of a window that cannot be there by chance

Arrays = Mapping[str, npt.NDArray[Any]]


def wire(sent: Message | RecordDict) -> list[bytes]:
    """Return the objects that Flower sends for a message or its content, as bytes.

    Flower sends a message as a tree of objects (message, records, arrays, pieces of
    arrays of at most 5 MiB), each in a call of its own.
    """
    return list(dict.fromkeys(_objects(sent)))


def _objects(node: Any) -> Iterator[bytes]:
    for child in (node.children or {}).values():
        yield from _objects(child)
    yield node.deflate()


def found_arrays(private: Arrays, sent: Sequence[bytes]) -> list[str]:
    """Return the names of private arrays any part of which occurs in what was sent.

    Windows of an array are looked for at every offset, in the array's own type;
    floating-point numbers in half, single and double precision.
    """
    windows = {
        name: np.concatenate(
            [_windows(form.tobytes(), WINDOW) for form in _forms(array)]
        )
        for name, array in private.items()
    }
    everywhere = _hashes(np.concatenate([_windows(part, 1) for part in sent]))
    common = _common(_hashes(np.concatenate([*windows.values()])), everywhere)
    names = []
    for name, parts in windows.items():
        hits = np.unique(parts[np.isin(_hashes(parts), common)], axis=0)
        telling = (hit.tobytes() for hit in hits if len(set(hit)) >= _TELLING)
        if any(window in part for window in telling for part in sent):
            names.append(name)
    return names


def _forms(array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    if array.dtype.kind != "f":
        return [array]
    return [array.astype(kind) for kind in ("<f2", "<f4", "<f8")]


def _windows(data: bytes, step: int) -> npt.NDArray[np.uint8]:
    """Return the windows that begin at multiples of `step`, shape (n, WINDOW)."""
    values = np.frombuffer(data, np.uint8)
    if len(values) < WINDOW:
        return np.empty((0, WINDOW), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(values, WINDOW)[::step]


def _hashes(windows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    low, high = np.ascontiguousarray(windows).view("<u8").T
    return np.asarray(low * np.uint64(0x9E3779B97F4A7C15) ^ high, np.uint64)


def _common(
    a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Return the hashes in both arrays; sorting millions of them would take long."""
    for _ in range(2):
        a = a[_leading_bits(b)[a >> np.uint64(40)]]
        b = b[_leading_bits(a)[b >> np.uint64(40)]]
    return np.intersect1d(a, b)


def _leading_bits(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    table = np.zeros(2**24, np.bool_)
    table[hashes >> np.uint64(40)] = True
    return table


def found_numbers(secrets: Mapping[str, Sequence[int]], sent: list[bytes]) -> list[str]:
    """Return the names of whole lists of counts that occur in what was sent.

    They are looked for as arrays of every integer and floating-point type, as fractions
    of their sum, as lists in Flower's records and as text.
    """
    return [
        name
        for name, numbers in secrets.items()
        if any(form in part for form in _number_forms(numbers) for part in sent)
    ]


def _number_forms(numbers: Sequence[int]) -> Iterator[bytes]:
    counts = np.asarray(numbers)
    for kind in ("u1", "i2", "i4", "i8", "f2", "f4", "f8"):
        for order in "<>":
            yield counts.astype(f"{order}{kind}").tobytes()
            if kind[0] == "f":
                yield (counts / counts.sum()).astype(f"{order}{kind}").tobytes()
    yield bytes(2 * number for number in numbers)  # zigzag, as lists in MetricRecord
    for separator in (",", ", ", " "):
        yield separator.join(map(str, numbers)).encode()
