"""Labels as they stand in files to class indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def class_indices(
    labels: Sequence[Any],
    class_names: tuple[str, ...],
    num_classes: int,
    origin: str,
) -> npt.NDArray[np.int64]:
    """Return the index of every label's class.

    A text is looked up in `class_names`; one that is not there but is a whole number
    counts as that number.

    Parameters
    ----------
    labels
        N whole numbers or texts.
    class_names
        Names in the order of the indices; may be empty.
    num_classes
        Indices must lie below it.
    origin
        Where the labels come from, for messages.

    Returns
    -------
    (N,) int64, each in [0, ``num_classes``).

    Raises
    ------
    ValueError
        Names the labels that are no class.
    """
    index_of = {name: index for index, name in enumerate(class_names)}
    translation = {label: _index(label, index_of) for label in dict.fromkeys(labels)}
    unknown = sorted(repr(label) for label, i in translation.items() if i is None)
    if unknown:
        names = _shorten(class_names) if class_names else "none"
        raise ValueError(
            f"{origin}: labels {_shorten(unknown)} are neither class names (known: "
            f"{names}) nor whole numbers: name all classes in order in class-names, "
            "alike for every client"
        )
    indices = {label: i for label, i in translation.items() if i is not None}
    outside = sorted({i for i in indices.values() if not 0 <= i < num_classes})
    if outside:
        raise ValueError(
            f"{origin}: labels {_shorten(outside)} lie outside 0 to {num_classes - 1}: "
            f"correct them or num-classes = {num_classes}"
        )
    return np.fromiter((indices[label] for label in labels), np.int64, len(labels))


def _index(label: Any, index_of: dict[str, int]) -> int | None:
    if isinstance(label, str) and label in index_of:
        return index_of[label]
    try:
        index = int(label)
    except (TypeError, ValueError, OverflowError):
        return None
    return index if isinstance(label, str) or index == label else None


def _shorten(values: Sequence[object]) -> str:
    """List up to eight values."""
    listed = ", ".join(map(str, values[:8]))
    return listed if len(values) <= 8 else f"{listed}, ... ({len(values)})"
