"""A network that trains for longer than anybody waits."""

from __future__ import annotations

import time

import torch
from torch import nn


class Slow(nn.Module):
    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(3600)
        out: torch.Tensor = self.layer(x.flatten(1))
        return out


def net(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    return Slow(channels * height * width, num_classes)
