"""Networks of an operator's own."""

from __future__ import annotations

import torch
from torch import nn


def batch_norm_net(
    channels: int, height: int, width: int, num_classes: int
) -> nn.Module:
    """A net with BatchNorm and dropout, the two layers that know train and eval."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(4 * height * width, num_classes),
    )


def without_dropout(
    channels: int, height: int, width: int, num_classes: int
) -> nn.Module:
    """The same net, whose training has no chance in it."""
    net = batch_norm_net(channels, height, width, num_classes)
    return nn.Sequential(*(m for m in net.children() if not isinstance(m, nn.Dropout)))


class Broken(nn.Module):
    """Raises on its first batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")
