"""Named arrays: the form in which parameters travel and are averaged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

State = dict[str, npt.NDArray[np.generic]]
"""Name of a ``state_dict`` entry to its value."""


def read_state(module: nn.Module, keys: Iterable[str]) -> State:
    """Copy the entries `keys` of the module's ``state_dict`` to the host."""
    entries = module.state_dict()
    return {key: entries[key].detach().cpu().numpy().copy() for key in keys}


@torch.no_grad()
def write_state(
    module: nn.Module, state: Mapping[str, npt.NDArray[np.generic]]
) -> None:
    """Set entries of the module's ``state_dict``; others keep their value.

    Raises
    ------
    ValueError
        An entry is unknown to the module or has another shape.
    """
    entries = module.state_dict()
    for key, value in state.items():
        if key not in entries:
            raise ValueError(
                f"received {key!r}, which the network {type(module).__name__} does not "
                "have: server and client use different models or versions"
            )
        if entries[key].shape != value.shape:
            raise ValueError(
                f"received {key!r} of shape {tuple(value.shape)}, but the network has "
                f"{tuple(entries[key].shape)}: server and client disagree on the "
                "model, the number of classes or the image size"
            )
        entries[key].copy_(torch.tensor(value))


def check_keys(state: State, expected: Collection[str], what: str) -> None:
    """Raise ``ValueError`` where a state has not just the expected names."""
    if state.keys() != set(expected):
        missing, surplus = set(expected) - state.keys(), state.keys() - set(expected)
        raise ValueError(
            f"{what} lack {sorted(missing)[:3]} and have {sorted(surplus)[:3]} too "
            "much: server and client use different methods, models or versions"
        )


def num_bytes(state: Mapping[str, npt.NDArray[np.generic]]) -> int:
    """Return the size of all arrays in bytes."""
    return sum(array.nbytes for array in state.values())
