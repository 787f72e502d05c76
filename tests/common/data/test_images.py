from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from common.data.images import decode_images


def decode(images, shape, resize=False):
    out = np.zeros((len(images), *shape), np.uint8)
    decode_images(images, shape, out, resize=resize, origin="here")
    return out


def test_bytes_files_and_arrays_give_the_same(tmp_path, encode):
    image = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    file = tmp_path / "a.png"
    file.write_bytes(encode(image))
    out = decode([encode(image), file, image], (3, 4, 5))
    for decoded in out:
        np.testing.assert_array_equal(decoded, image.transpose(2, 0, 1))


def test_grey_to_colour_repeats_the_channel(encode):
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    out = decode([encode(grey), grey], (3, 3, 4))
    np.testing.assert_array_equal(out, np.broadcast_to(grey, (2, 3, 3, 4)))


def test_grey_arrays_stay_as_they_are(encode):
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    out = decode([encode(grey), grey], (1, 3, 4))
    np.testing.assert_array_equal(out, np.broadcast_to(grey, (2, 1, 3, 4)))


def test_colour_to_grey_is_luma(encode):
    # ITU-R 601: 0.299 R + 0.587 G + 0.114 B.
    pixels = [[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]]
    image = np.array(pixels, np.uint8)
    assert decode([encode(image)], (1, 1, 4)).tolist() == [[[[76, 150, 29, 255]]]]


def test_transparency_is_dropped(encode):
    image = np.full((2, 2, 4), (10, 20, 30, 0), np.uint8)
    assert decode([encode(image)], (3, 2, 2))[0, :, 0, 0].tolist() == [10, 20, 30]


def test_palette_becomes_colour(tmp_path):
    palette = Image.new("P", (1, 1), 0)
    palette.putpalette([10, 20, 30])
    palette.save(tmp_path / "a.png")
    assert decode([tmp_path / "a.png"], (3, 1, 1)).ravel().tolist() == [10, 20, 30]


def test_other_sizes_are_refused_or_resized(encode):
    halves = np.zeros((4, 8), np.uint8)
    halves[:, 4:] = 200
    with pytest.raises(ValueError, match=r"image 0 has 8x4 .* 2x2 .* set image-size"):
        decode([encode(halves)], (1, 2, 2))
    # Each result pixel is a weighted mean over a neighbourhood of its half, mostly.
    out = decode([encode(halves)], (1, 2, 2), resize=True)[0, 0]
    assert (out[:, 0] < 50).all()
    assert (out[:, 1] > 150).all()
    assert decode([np.full((9, 7), 33, np.uint8)], (1, 4, 4), resize=True).min() == 33


def test_more_than_eight_bits_are_refused(encode):
    deep = np.zeros((2, 2), np.uint16)
    with pytest.raises(ValueError, match="image 0 has more than 8 bits"):
        decode([encode(deep)], (1, 2, 2))


@pytest.mark.parametrize("keep", [0, 20, 80])
def test_broken_image_is_named(encode, keep):
    good = encode(np.random.default_rng(0).integers(0, 256, (9, 9), dtype=np.uint8))
    with pytest.raises(ValueError, match="here, image 1 cannot be decoded"):
        decode([good, good[:keep]], (1, 9, 9))
