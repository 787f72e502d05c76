from __future__ import annotations

import numpy as np
import pytest

from common.state import State
from server_app.vetting import RefusedReply, vet_count, vet_state

TEMPLATE: State = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}


def reply(**changes: np.ndarray) -> State:
    return {**TEMPLATE, **changes}


def test_a_proper_state_passes() -> None:
    vet_state(reply(w=np.full((2, 3), 1e30, np.float32)), TEMPLATE, "shared")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"w": TEMPLATE["w"]}, "missing b"),
        (reply(extra=np.zeros(1)), "unexpected extra"),
        (reply(w=np.zeros((3, 2), np.float32)), r"shape \(3, 2\), expected \(2, 3\)"),
        (reply(b=np.zeros(2)), "dtype float64, expected float32"),
        (reply(b=np.array([0, np.nan], np.float32)), "b holds NaN"),
        (reply(b=np.array([0, -np.inf], np.float32)), "b holds NaN or infinite"),
    ],
)
def test_a_wrong_state_is_refused(state: State, reason: str) -> None:
    with pytest.raises(RefusedReply, match=reason):
        vet_state(state, TEMPLATE, "shared")


def test_counts() -> None:
    assert vet_count({"n": 5}, "n") == 5


@pytest.mark.parametrize("value", [0, -3, 2.5, float("nan"), 2**40, [1], None])
def test_wrong_counts_are_refused(value: object) -> None:
    with pytest.raises(RefusedReply, match="n = "):
        vet_count({"n": value}, "n")
