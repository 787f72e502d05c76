from __future__ import annotations

import numpy as np
import pytest

from common.state import State
from server_app.norms import outliers, scaled, squared_distance

START: State = {
    "w": np.array([[1, 2], [3, 4]], np.float32),
    "b": np.array(0.5, np.float64),
    "num_batches_tracked": np.array(3),
}
STATE: State = {
    "w": np.array([[1, 2], [3, 7]], np.float32),
    "b": np.array(4.5, np.float64),
    "num_batches_tracked": np.array(90),
}


def test_distance_by_hand() -> None:
    assert squared_distance(STATE, START) == 3**2 + 4**2
    assert squared_distance(START, START) == 0
    assert squared_distance({}, {}) == 0


def test_scaled_update_by_hand() -> None:
    halved = scaled(STATE, START, 0.5)
    np.testing.assert_array_equal(halved["w"], np.float32([[1, 2], [3, 5.5]]))
    assert halved["b"] == 2.5
    assert halved["num_batches_tracked"] == 90
    assert {k: v.dtype for k, v in halved.items()} == {
        k: v.dtype for k, v in STATE.items()
    }
    assert squared_distance(halved, START) == pytest.approx(25 / 4)


def test_outliers_by_hand() -> None:
    # Median 3, absolute deviations 2 1 0 1 97: MAD 1, z = 0.6745 * 97.
    norms = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 100.0}
    assert outliers(norms) == {"e": pytest.approx(0.6745 * 97)}
    # Median 10, absolute deviations 1 0 1 2 10: MAD 1, z = -0.6745 * 10.
    norms = {"a": 9.0, "b": 10.0, "c": 11.0, "d": 12.0, "e": 0.0}
    assert outliers(norms) == {"e": pytest.approx(-6.745)}


def test_outliers_among_equals() -> None:
    # MAD 0; mean absolute deviation 6 / 6 = 1, z = 6 / (1 * sqrt(pi / 2)).
    norms = {**dict.fromkeys("abcde", 1.0), "f": 7.0}
    assert outliers(norms) == {"f": pytest.approx(6 / 1.2533, rel=1e-4)}
    assert outliers(dict.fromkeys("abcdef", 1.0)) == {}


def test_few_norms_say_nothing() -> None:
    assert outliers({"a": 1.0, "b": 1.1, "c": 0.9, "d": 1000.0}) == {}
    assert outliers({}) == {}
