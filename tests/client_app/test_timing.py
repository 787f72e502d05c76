"""Measurements under a clock that counts the samples each block computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from client_app.timing import latencies, savings, seconds_per_exit
from common.data import DataSpec
from common.models import Network, count_macs, early_exit_macs

SPEC = DataSpec("image", (2, 1, 1), 2)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Block(nn.Module):
    """Takes `cost` seconds per sample."""

    def __init__(self, clock: Clock, cost: float) -> None:
        super().__init__()
        self.clock, self.cost = clock, cost

    def forward(self, x: Tensor) -> Tensor:
        self.clock.now += self.cost * len(x)
        return x


def network(clock: Clock) -> Network:
    blocks = [Block(clock, 1.0), Block(clock, 3.0)]
    exits = [nn.Linear(2, 2, bias=False) for _ in blocks]
    for exit_ in exits:
        nn.init.eye_(exit_.weight)
    return Network(blocks, exits, nn.Flatten())


# Every second sample is sure.
INPUTS = torch.tensor([[8.0, 0.0], [0.1, 0.0]] * 4)[:, :, None, None]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_savings(batch_size: int) -> None:
    clock = Clock()
    net = network(clock)
    found = savings(net, SPEC, 0.9, INPUTS, batch_size=batch_size, clock=clock)
    first, last = early_exit_macs(net, SPEC)
    assert found.macs == (first + last) / 2
    assert found.full_macs == count_macs(net, SPEC)[-1]
    # Half the samples take 1 s, the others 4 s, and 4 s is the full model's.
    assert found.seconds == pytest.approx(2.5)
    assert found.full_seconds == pytest.approx(4)
    assert found.time_saved == pytest.approx(1.5 / 4)
    assert found.macs_saved == pytest.approx(1 - found.macs / found.full_macs)


def test_latencies_leave_out_the_warm_up() -> None:
    clock = Clock()

    def predict(x: Tensor) -> None:
        clock.now += float(x)

    calls = [torch.tensor(float(i)) for i in range(5)]
    np.testing.assert_array_equal(latencies(predict, calls, clock), range(5))


def test_every_exit_is_timed() -> None:
    clock = Clock()
    found = seconds_per_exit(network(clock), INPUTS, clock)
    np.testing.assert_allclose(found, [1, 4])
