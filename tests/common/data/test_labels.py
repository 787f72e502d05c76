from __future__ import annotations

import numpy as np
import pytest

from common.data.labels import class_indices

ANIMALS = ("cat", "dog", "7")


@pytest.mark.parametrize(
    ("labels", "names", "indices"),
    [
        ([2, 0, 2], (), [2, 0, 2]),
        ([1.0, 0.0], (), [1, 0]),
        (["dog", "cat", "dog"], ANIMALS, [1, 0, 1]),
        (["1", "00", "dog"], ANIMALS, [1, 0, 1]),
        (["7"], ANIMALS, [2]),
    ],
)
def test_numbers_and_names(labels, names, indices):
    result = class_indices(labels, names, 3, "here")
    assert result.dtype == np.int64
    assert result.tolist() == indices


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, 3], (), "here: labels 3 lie outside 0 to 2: correct them or num-classes"),
        ([-1], (), "labels -1 lie outside"),
        (["5"], ANIMALS, "labels 5 lie outside"),
        (["cow", "cat"], ANIMALS, "labels 'cow' are neither .*known: cat, dog, 7"),
        (["cow"], (), "known: none.*class-names"),
        ([0.5], (), "labels 0.5 are neither"),
        ([float("nan")], (), "labels nan are neither"),
        ([b"1"], (), "labels b'1' are neither"),
    ],
)
def test_what_is_no_class_is_refused(labels, names, message):
    with pytest.raises(ValueError, match=message):
        class_indices(labels, names, 3, "here")


def test_a_message_lists_few_of_many_labels():
    with pytest.raises(ValueError, match=r"labels 3, 4, .*, 10, \.\.\. \(97\) lie"):
        class_indices(range(100), (), 3, "here")
