from __future__ import annotations

import itertools

import numpy as np
import pytest

from common.state import State
from server_app.averaging import OrderedMean


def states(count: int, seed: int = 0) -> dict[str, State]:
    rng = np.random.default_rng(seed)
    return {
        f"c{i}": {
            "w": rng.normal(size=(3, 4)).astype(np.float32),
            "b": (1e4 * rng.normal(size=5)).astype(np.float32),
        }
        for i in range(count)
    }


def test_mean_by_hand() -> None:
    mean = OrderedMean(["a", "b"])
    mean.add("a", {"x": np.array([1.0, 2.0], np.float32)}, 1)
    mean.add("b", {"x": np.array([5.0, 4.0], np.float32)}, 3)
    result = mean.result()
    assert result is not None
    np.testing.assert_array_equal(result["x"], [4.0, 3.5])
    assert result["x"].dtype == np.float32


@pytest.mark.parametrize("waiting_bytes", [0, 100, 10**6])
def test_same_bits_in_every_order_of_arrival(waiting_bytes: int) -> None:
    updates = states(4)
    weights = {"c0": 7, "c1": 1, "c2": 1000, "c3": 13}
    expected: State | None = None
    for order in itertools.permutations(updates):
        mean = OrderedMean(list(updates), waiting_bytes)
        for name in order:
            mean.add(name, updates[name], weights[name])
        result = mean.result()
        assert result is not None
        if expected is None:
            expected = result
        for key, value in expected.items():
            np.testing.assert_array_equal(result[key], value)


def test_order_of_summation_matters_at_all() -> None:
    # Otherwise the test above could not fail.
    tiny, huge = np.float64(1.0), np.float64(1e16)
    assert (tiny + huge) - huge != tiny + (huge - huge)


def test_absent_clients_do_not_count() -> None:
    updates = states(4)
    with_absent = OrderedMean(list(updates))
    with_absent.drop("c0")
    with_absent.add("c3", updates["c3"], 2)
    with_absent.add("c1", updates["c1"], 1)  # c2 never comes
    plain = OrderedMean(["c1", "c3"])
    plain.add("c1", updates["c1"], 1)
    plain.add("c3", updates["c3"], 2)
    a, b = with_absent.result(), plain.result()
    assert a is not None
    assert b is not None
    np.testing.assert_array_equal(a["w"], b["w"])


def test_nothing_contributed() -> None:
    mean = OrderedMean(["a"])
    mean.drop("a")
    assert mean.result() is None


def test_nothing_shared_is_still_a_contribution() -> None:
    mean = OrderedMean(["a"])
    mean.add("a", {}, 5)
    assert mean.result() == {}


def test_mean_of_equal_states_is_that_state() -> None:
    state = states(1)["c0"]
    mean = OrderedMean([str(i) for i in range(50)])
    for i in range(50):
        mean.add(str(i), state, 37 + i)
    result = mean.result()
    assert result is not None
    np.testing.assert_array_equal(result["b"], state["b"])


@pytest.mark.parametrize("waiting_bytes", [0, 100])
def test_scalars_keep_their_shape(waiting_bytes: int) -> None:
    mean = OrderedMean(["a", "b"], waiting_bytes)
    mean.add("b", {"x": np.array(3.0)}, 1)
    mean.add("a", {"x": np.array(1.0)}, 1)
    result = mean.result()
    assert result is not None
    assert result["x"].shape == ()
    assert result["x"] == 2.0


def test_arrays_of_any_size_and_layout() -> None:
    rng = np.random.default_rng(0)
    shapes = [(), (0,), (3, 5, 7), (2**14,), (2**14 + 1,), (3, 2**14)]
    values = [
        [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        for _ in range(2)
    ]
    mean = OrderedMean(["a", "b"])
    for name, arrays, weight in zip("ab", values, (2, 5), strict=True):
        state: State = {str(i): np.asfortranarray(x) for i, x in enumerate(arrays)}
        mean.add(name, state, weight)
    result = mean.result()
    assert result is not None
    for index, (a, b) in enumerate(zip(*values, strict=True)):
        expected = (2 * a.astype(np.float64) + 5 * b.astype(np.float64)) / 7
        np.testing.assert_array_equal(
            result[str(index)], np.asarray(expected, np.float32)
        )
