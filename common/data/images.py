"""Decode images to one size and one number of channels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image


def decode_images(
    images: Sequence[bytes | Path | npt.NDArray[np.uint8]],
    shape: tuple[int, ...],
    out: npt.NDArray[np.uint8],
    *,
    resize: bool,
    origin: str,
) -> None:
    """Decode images into an array.

    Grey images become colour by repeating the channel three times, colour images become
    grey by ITU-R 601 luma; transparency is dropped. Resizing is bilinear with
    antialiasing and does not keep the proportions.

    Parameters
    ----------
    images
        N images as encoded bytes (PNG, JPEG, ...), as files, or as arrays (H, W) or
        (H, W, 3).
    shape
        (channels, height, width) of the result; 1 or 3 channels.
    out
        Receives the result, (N, channels, height, width).
    resize
        Bring images of another size to the height and width; otherwise refuse them.
    origin
        Where the images come from, for messages.

    Raises
    ------
    ValueError
        If an image cannot be decoded, has more than 8 bits per channel or has a size
        that is refused.
    """
    channels, height, width = shape
    wanted = (height, width) if channels == 1 else (height, width, channels)
    for index, source in enumerate(images):
        if isinstance(source, np.ndarray) and source.shape == wanted:
            assert source.dtype == np.uint8
            pixels = source
        else:
            name = (
                str(source) if isinstance(source, Path) else f"{origin}, image {index}"
            )
            pixels = _decode(source, shape, resize=resize, name=name)
        out[index] = pixels if channels == 1 else pixels.transpose(2, 0, 1)


def _decode(
    source: bytes | Path | npt.NDArray[np.uint8],
    shape: tuple[int, ...],
    *,
    resize: bool,
    name: str,
) -> npt.NDArray[np.uint8]:
    """Return an image (H, W) or (H, W, 3) of the wanted mode and size."""
    from PIL import Image

    channels, height, width = shape
    try:
        image = _open(source)
        image.load()
    except Exception as error:  # Every format has kinds of its own.
        raise ValueError(f"{name} cannot be decoded: {error}") from error
    if image.mode.startswith(("I", "F")):
        raise ValueError(
            f"{name} has more than 8 bits per channel (mode {image.mode}): store "
            "it with 8"
        )
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (width, height):
        if not resize:
            raise ValueError(
                f"{name} has {image.width}x{image.height} pixels, but "
                f"{width}x{height} are expected: set image-size; all images are "
                "then resized to it"
            )
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _open(source: bytes | Path | npt.NDArray[np.uint8]) -> Image:
    from PIL import Image

    if isinstance(source, np.ndarray):
        return Image.fromarray(source)
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
