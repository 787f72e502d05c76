from __future__ import annotations

import pytest
import torch

from common.data import DataSpec, add_noise, augment, to_model_input

COLOUR = DataSpec("image", (3, 12, 12), 10)
GREY = DataSpec("image", (1, 12, 12), 10)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(n, channels=3, size=12):
    # Without the value of erased pixels and without black, the value of the border.
    shape = (n, channels, size, size)
    return torch.randint(1, 128, shape, dtype=torch.uint8, generator=generator(1))


def test_unit_range_is_exact(settings):
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    result = to_model_input(images, GREY, settings())
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.ravel(), torch.tensor([-1.0, -0.6, 1.0]))
    assert result.min() == -1
    assert result.max() == 1
    assert images.tolist() == [[[[0, 51, 255]]]]


def test_imagenet_statistics(settings):
    images = torch.tensor([0, 255, 102], dtype=torch.uint8).view(1, 3, 1, 1)
    result = to_model_input(images, COLOUR, settings(normalization="imagenet"))
    expected = [-0.485 / 0.229, (1 - 0.456) / 0.224, (0.4 - 0.406) / 0.225]
    torch.testing.assert_close(result.ravel(), torch.tensor(expected))


def test_imagenet_statistics_of_grey_images_are_the_means(settings):
    images = torch.tensor([255], dtype=torch.uint8).view(1, 1, 1, 1)
    result = to_model_input(images, GREY, settings(normalization="imagenet"))
    assert result.item() == pytest.approx((1 - 0.449) / 0.226, rel=1e-6)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([[2, 5, 7], [2, 0, 0]], [[2, 5, 7], [2, 0, 0]]),
        ([[2, 5, 0, 0], [2, 0, 9, 0]], [[2, 5, 0], [2, 0, 9]]),
        ([[0, 0], [0, 0]], [[0], [0]]),
    ],
)
def test_tokens_pass_as_int64_up_to_the_longest_text(settings, texts, expected):
    tokens = torch.tensor(texts, dtype=torch.int32)
    spec = DataSpec("text", (tokens.shape[1],), 4, 10)
    result = to_model_input(tokens, spec, settings())
    assert result.dtype == torch.int64
    assert result.tolist() == expected


def test_none_changes_nothing():
    images = random_images(3)
    assert torch.equal(augment(images, "none", generator()), images)


@pytest.mark.parametrize("channels", [1, 3])
def test_crop_flip_gives_windows_of_the_padded_image(channels):
    images = random_images(60, channels)
    result = augment(images, "crop-flip", generator())
    assert result.dtype == torch.uint8
    places, flips = set(), 0
    for image, changed in zip(images, result, strict=True):
        padded = torch.zeros(channels, 20, 20, dtype=torch.uint8)
        padded[:, 4:16, 4:16] = image
        matches = [
            (y, x, flipped)
            for y in range(9)
            for x in range(9)
            for flipped in (False, True)
            if torch.equal(
                padded[:, y : y + 12, x : x + 12].flip(2)
                if flipped
                else padded[:, y : y + 12, x : x + 12],
                changed,
            )
        ]
        assert len(matches) == 1
        places.add(matches[0][:2])
        flips += matches[0][2]
    # 60 draws of 81 places hit about 42 different ones.
    assert len(places) > 25
    assert {y for y, _ in places} == {x for _, x in places} == set(range(9))
    assert 15 < flips < 45


def test_erase_overwrites_one_rectangle_in_half_of_the_images():
    images = random_images(400, size=20)
    cropped = augment(images, "crop-flip", generator())
    result = augment(images, "crop-flip-erase", generator())
    erased = result == 128
    assert torch.equal(result[~erased], cropped[~erased])
    areas = []
    for mask in erased:
        assert torch.equal(mask[0], mask[1])
        assert torch.equal(mask[0], mask[2])
        if not mask.any():
            continue
        rows, columns = mask[0].any(dim=1), mask[0].any(dim=0)
        assert torch.equal(mask[0], rows[:, None] & columns[None, :])
        for line in (rows, columns):
            assert (line[1:] != line[:-1]).sum() + line[0] + line[-1] == 2
        areas.append(int(mask[0].sum()))
    assert 160 < len(areas) < 240
    # 2 % to 33 % of 400 pixels, sides rounded to whole pixels.
    assert min(areas) >= 6
    assert max(areas) <= 0.37 * 400
    assert min(areas) < 20
    assert max(areas) > 100


@pytest.mark.parametrize("policy", ["crop-flip", "crop-flip-erase"])
def test_generator_fixes_the_result(policy):
    images = random_images(5)
    first = augment(images, policy, generator(3))
    assert torch.equal(first, augment(images, policy, generator(3)))
    assert not torch.equal(first, augment(images, policy, generator(4)))


@pytest.mark.parametrize("n", [0, 1])
def test_small_batches_keep_their_shape(n):
    images = random_images(n, 1, 8)
    assert augment(images, "crop-flip-erase", generator()).shape == (n, 1, 8, 8)


def test_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="'blur': must be one of none, crop-flip"):
        augment(random_images(1), "blur", generator())


def test_noise_has_the_deviation_asked_for() -> None:
    images = torch.full((4, 3, 32, 32), 128, dtype=torch.uint8)
    noisy = add_noise(images, 0.1, torch.Generator().manual_seed(0))
    assert noisy.dtype == torch.uint8
    difference = noisy.float() - 128
    # 12,288 draws: the mean's standard error is 0.23, the deviation's 0.16.
    assert abs(float(difference.mean())) < 1
    assert abs(float(difference.std()) - 25.5) < 0.7
    again = add_noise(images, 0.1, torch.Generator().manual_seed(0))
    assert torch.equal(noisy, again)


def test_noise_does_not_leave_the_range_of_pixels() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).repeat(500).view(10, 1, 10, 10)
    noisy = add_noise(images, 0.5, torch.Generator().manual_seed(0))
    # Half of the noise points outwards and is cut off.
    for value in (0, 255):
        kept = (noisy[images == value] == value).float().mean()
        assert 0.42 < float(kept) < 0.58
