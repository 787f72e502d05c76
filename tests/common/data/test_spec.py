from __future__ import annotations

import pytest

from common.data import DataSpec, data_spec
from common.data.class_names import CLASS_NAMES
from common.data.spec import KNOWN


@pytest.mark.parametrize(
    ("dataset", "spec"),
    [
        ("digits", DataSpec("image", (1, 8, 8), 10)),
        ("cifar10", DataSpec("image", (3, 32, 32), 10)),
        ("cifar100", DataSpec("image", (3, 32, 32), 100)),
        ("fashion-mnist", DataSpec("image", (1, 28, 28), 10)),
        ("tinyimagenet", DataSpec("image", (3, 64, 64), 200)),
        ("agnews", DataSpec("text", (200,), 4, 32_000)),
    ],
)
def test_known_data_sets(settings, dataset, spec):
    assert data_spec(settings(dataset=dataset)) == spec
    assert len(set(CLASS_NAMES[dataset])) == spec.num_classes


def test_every_choice_is_described(settings):
    field = type(settings()).__dataclass_fields__["dataset"]
    assert set(field.metadata["choices"]) == set(KNOWN) == set(CLASS_NAMES)


def test_settings_go_first(settings):
    given = settings(dataset="cifar10", image_size=16, channels=1, num_classes=4)
    assert data_spec(given) == DataSpec("image", (1, 16, 16), 4)


def test_class_names_count_the_classes(settings):
    given = settings(dataset="digits", class_names="even, odd")
    assert data_spec(given).num_classes == 2


def test_custom_is_what_the_settings_say(settings):
    given = settings(dataset="custom", image_size=20, channels=3, num_classes=7)
    assert data_spec(given) == DataSpec("image", (3, 20, 20), 7)


def test_incomplete_custom_is_refused(settings):
    with pytest.raises(ValueError, match=r"channels = 0"):
        data_spec(settings(dataset="custom", image_size=20, num_classes=7))


def test_text_has_no_pixels(settings):
    with pytest.raises(ValueError, match=r"image-size = 32 .* leave both at 0"):
        data_spec(settings(dataset="agnews", image_size=32))
