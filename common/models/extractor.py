"""The shared feature extractor of pFedES (arXiv 2311.06879)."""

from __future__ import annotations

from torch import Tensor, nn


class Extractor(nn.Module):
    """The extractor G(θ): an image in, an "enhanced" image of the same shape out.

    Two 3x3 convolutions with padding ``same``, c→8 and 8→c, a ReLU after each: for
    c = 3 channels 443 parameters, 1,772 bytes of float32.

    Parameters
    ----------
    channels
        Channels c of the images.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding="same"),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, channels, 3, padding="same"),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return enhanced images of the shape of `x`, (N, channels, height, width)."""
        enhanced: Tensor = self.layers(x)
        return enhanced
