"""From stored examples to the network's input, and random changes of images."""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from common.data.spec import PADDING_ID, DataSpec
from common.settings import DataSettings

_COLOUR: Final = {
    "unit": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and standard deviation of pixels in [0, 1], per channel."""

_GREY: Final = {name: (sum(m) / 3, sum(s) / 3) for name, (m, s) in _COLOUR.items()}

PADDING: Final = 4
"""Pixels of black border before a random crop."""

ERASED: Final = 128
"""Value of erased pixels: close to zero after either normalisation."""


def to_model_input(inputs: Tensor, spec: DataSpec, settings: DataSettings) -> Tensor:
    """Convert stored examples to what the network takes.

    Parameters
    ----------
    inputs
        Images (N, channels, height, width) uint8, or tokens (N, L) of whole numbers.
    spec
        Of the data set.
    settings
        ``normalization``: ``unit`` maps 0 to 255 to -1 to 1; ``imagenet`` subtracts
        ImageNet's mean and divides by its standard deviation, averaged over the
        channels for grey images.

    Returns
    -------
    float32 images of the same shape, or int64 tokens (N, l): l ≤ L is the length of the
    longest text. What fills up all of them would change no result and take most of the
    time.
    """
    if spec.kind == "text":
        return _without_common_padding(inputs.long())
    assert inputs.dtype == torch.uint8
    if spec.shape[0] == 1:
        grey_mean, grey_std = _GREY[settings.normalization]
        mean, std = [grey_mean], [grey_std]
    else:
        mean, std = map(list, _COLOUR[settings.normalization])
    column = (-1, 1, 1)
    mean_c11 = torch.tensor(mean, device=inputs.device).view(column)
    std_c11 = torch.tensor(std, device=inputs.device).view(column)
    return inputs.float().div_(255).sub_(mean_c11).div_(std_c11)


def _without_common_padding(tokens: Tensor) -> Tensor:
    used = (tokens != PADDING_ID).any(dim=0).nonzero()
    length = int(used[-1]) + 1 if len(used) else 1
    return tokens[:, :length]


def add_noise(images: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise to images, as a camera would deliver them.

    Parameters
    ----------
    images
        (N, channels, height, width) uint8.
    sigma
        Standard deviation, where pixels count from 0 to 1. Values beyond that are cut
        off.
    generator
        On the CPU; makes the result reproducible, also between devices.

    Returns
    -------
    uint8 of the same shape.
    """
    noise = torch.randn(images.shape, generator=generator).to(images.device)
    noisy = images.float().add_(noise, alpha=255 * sigma)
    return noisy.round_().clamp_(0, 255).to(torch.uint8)


def augment(images: Tensor, policy: str, generator: torch.Generator) -> Tensor:
    """Change training images at random, each on its own.

    ``crop-flip`` pads by 4 black pixels, crops to the old size at a random place, and
    mirrors every second image; ``crop-flip-erase`` also overwrites, in every second
    image, a rectangle of 2 % to 33 % of the area (Random Erasing, arXiv 1708.04896).

    Parameters
    ----------
    images
        (N, channels, height, width) uint8.
    policy
        ``none``, ``crop-flip`` or ``crop-flip-erase``.
    generator
        On the CPU; makes the result reproducible, also between devices.

    Returns
    -------
    uint8 of the same shape.

    Raises
    ------
    ValueError
        If the policy is unknown.
    """
    if policy == "none":
        return images
    if policy not in ("crop-flip", "crop-flip-erase"):
        raise ValueError(
            f"augmentation = {policy!r}: must be one of none, crop-flip, "
            "crop-flip-erase"
        )
    images = _crop_and_flip(images, generator)
    return _erase(images, generator) if policy == "crop-flip-erase" else images


def _crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    n, channels, height, width = images.shape
    top, left = torch.randint(2 * PADDING + 1, (2, n), generator=generator)
    flipped = torch.rand(n, generator=generator) < 0.5
    padded = F.pad(images, (PADDING,) * 4)
    x = torch.arange(width)
    columns = left[:, None] + torch.where(flipped[:, None], x.flip(0), x)
    rows = top[:, None] + torch.arange(height)
    places = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
    places_n1p = places.flatten(1).to(images.device)[:, None]
    pixels_ncp = padded.flatten(2).gather(2, places_n1p.expand(-1, channels, -1))
    return pixels_ncp.view_as(images)


def _erase(images: Tensor, generator: torch.Generator) -> Tensor:
    n, _, height, width = images.shape
    uniform = torch.rand(5, n, generator=generator)
    chosen = uniform[0] < 0.5
    area = (0.02 + (0.33 - 0.02) * uniform[1]) * height * width
    aspect = torch.exp(math.log(0.3) + (math.log(3.3) - math.log(0.3)) * uniform[2])
    tall = (area * aspect).sqrt().round().clamp(1, height)
    wide = (area / aspect).sqrt().round().clamp(1, width)
    top = (uniform[3] * (height - tall + 1)).floor()
    left = (uniform[4] * (width - wide + 1)).floor()
    y = torch.arange(height).view(1, -1)
    x = torch.arange(width).view(1, -1)
    rows = (y >= top[:, None]) & (y < (top + tall)[:, None]) & chosen[:, None]
    columns = (x >= left[:, None]) & (x < (left + wide)[:, None])
    erased = rows[:, None, :, None] & columns[:, None, None, :]
    return images.masked_fill(erased.to(images.device), ERASED)
