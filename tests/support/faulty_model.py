"""A network that fails in training when a file in its node's working folder says so."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

ORDER, SIGN = "fault", "training"
"""File that holds the order, and file that is there while the client trains."""


class Faulty(nn.Module):
    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, num_classes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            Path(SIGN).touch()
            _obey()
        out: torch.Tensor = self.layers(x)
        return out


def net(channels: int, height: int, width: int, num_classes: int) -> nn.Module:
    return Faulty(channels * height * width, num_classes)


def _obey() -> None:
    try:
        order = Path(ORDER).read_text()
        Path(ORDER).unlink()
    except FileNotFoundError:
        return
    if order == "raise":
        raise RuntimeError("CUDA out of memory")
    if order == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if order == "hang":
        time.sleep(3600)
