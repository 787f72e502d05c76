"""Plain convolutional networks: ConvNet of X-FED and CNN-1 to CNN-5 of pFedES."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import nn

from common.data.spec import DataSpec
from common.models.base import GlobalAveragePool, Network

CNN_WIDTHS: Final[dict[str, tuple[int, int, int, int]]] = {
    "cnn-1": (16, 32, 2000, 500),
    "cnn-2": (16, 16, 2000, 500),
    "cnn-3": (16, 32, 1000, 500),
    "cnn-4": (16, 32, 800, 500),
    "cnn-5": (16, 32, 500, 500),
}
"""Channels of the two convolutions and units of the two hidden linear layers."""


def smallest_side(kernel: int, num_blocks: int) -> int:
    """Return the smallest image side that unpadded blocks can take.

    A block is a convolution without padding and a 2x2 max-pool. The last pool needs a
    side of 2, so its convolution one of ``2 + kernel - 1``, and so on back to the
    image: 22 pixels for three blocks of 3x3, 16 for two of 5x5.
    """
    side = 1
    for _ in range(num_blocks):
        side = 2 * side + kernel - 1
    return side


def _conv_blocks(
    spec: DataSpec, widths: Sequence[int], kernel: int
) -> tuple[list[nn.Sequential], int]:
    """Return blocks of convolution, ReLU and 2x2 max-pool, and what the last one emits.

    Convolutions have no padding. Where the image's smaller side is below
    :func:`smallest_side`, all of them get padding ``same`` instead, and a block whose
    map has a side of 1 has no pool.

    Returns
    -------
    tuple
        The blocks, and the number of values of the last map, channels included.
    """
    channels, height, width = spec.shape
    padded = min(height, width) < smallest_side(kernel, len(widths))
    blocks = []
    for out_channels in widths:
        layers: list[nn.Module] = [
            nn.Conv2d(channels, out_channels, kernel, padding="same" if padded else 0),
        ]
        if not padded:
            height, width = height - kernel + 1, width - kernel + 1
        if min(height, width) >= 2:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        # The largest of four values, then ReLU: the same as the other way round, at a
        # quarter of the work.
        layers.append(nn.ReLU(inplace=True))
        blocks.append(nn.Sequential(*layers))
        channels = out_channels
    return blocks, channels * height * width


def convnet(spec: DataSpec) -> Network:
    """Build the ConvNet of X-FED (Sec. 5), for CIFAR-10: 3 exits, 30.39 M MACs.

    Three blocks of a 3x3 convolution (128 channels, no padding), ReLU and 2x2 max-pool;
    an exit is global average pooling and a linear layer. Images with a side below 22
    get padding ``same`` in every convolution, and no pool once the side is 1.
    """
    blocks, _ = _conv_blocks(spec, (128, 128, 128), kernel=3)
    exits = [nn.Linear(128, spec.num_classes) for _ in blocks]
    return Network(blocks, exits, GlobalAveragePool())


def cnn(name: str, spec: DataSpec) -> Network:
    """Build one of the private models of pFedES, a network with a single exit.

    Two blocks of a 5x5 convolution (no padding), ReLU and 2x2 max-pool, then two hidden
    linear layers with ReLU; the exit is the linear classifier. Images with a side below
    16 get padding ``same`` in both convolutions, and no pool once the side is 1.

    Parameters
    ----------
    name
        ``"cnn-1"`` to ``"cnn-5"``, see :data:`CNN_WIDTHS`.
    spec
        Data that the network reads.
    """
    *widths, hidden, features = CNN_WIDTHS[name]
    blocks, flat = _conv_blocks(spec, widths, kernel=5)
    block = nn.Sequential(
        *blocks,
        nn.Flatten(),
        nn.Linear(flat, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, features),
        nn.ReLU(inplace=True),
    )
    return Network([block], [nn.Linear(features, spec.num_classes)], nn.Identity())
