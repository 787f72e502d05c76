from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from client_app.batches import Batch
from client_app.footprint import (
    COPIES,
    COPIES_LEFT,
    RUNTIME,
    SHARE,
    Footprint,
    Plan,
    footprint,
)
from common.data import DataSpec
from common.schema import SettingsError

SPEC = DataSpec("image", (1, 4, 4), 3)
CPU = torch.device("cpu")
MIB = 2**20


def measure(network: nn.Module) -> Footprint:
    def loss(batch: Batch) -> Tensor:
        total: Tensor = network(batch.inputs).sum()
        return total

    return footprint(network, loss, SPEC, CPU)


def test_bytes_by_hand() -> None:
    # Flatten is a view of the input: 16 floats. The linear layer keeps its input, the
    # square its own, 5 floats; the weights do not count. The largest is the input.
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x.flatten(1))
            return y**2

    found = measure(Square())
    assert found.weights == 4 * (16 * 5 + 5)
    assert found.sample == 4 * (16 + 5) + 2 * 4 * 16 + 1
    assert found.prepared == 3 * 4 * 16
    assert found.splits


def test_what_two_layers_keep_is_counted_once() -> None:
    # Both layers read the same 16 values.
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 2), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.first(x.flatten(1)) + self.second(x.flatten(1))
            return y

    assert measure(Twice()).sample == 3 * 4 * 16 + 1


def test_batch_norm_is_told_and_keeps_its_statistics() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    before = {k: v.clone() for k, v in network.state_dict().items()}
    assert not measure(network).splits
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key])


def plan(free: int, batch: int = 16, **changes: object) -> Plan:
    needs = Footprint(weights=MIB, sample=2 * MIB, prepared=MIB // 16, splits=True)
    return Plan("net", replace(needs, **changes), free, batch)  # type: ignore[arg-type]


# 6 copies of 1 MiB and 16 waiting samples of 1/16 MiB, beside PyTorch.
FIXED = RUNTIME + 7 * MIB


def free_for(samples: int) -> int:
    return int((FIXED + 2 * MIB * samples) / SHARE) + 16


def test_as_many_samples_as_fit() -> None:
    assert plan(free_for(16)).whole
    assert plan(free_for(99)).portion == 16
    assert plan(free_for(5)).portion == 5
    assert not plan(free_for(5)).whole
    assert plan(free_for(5) - MIB).portion == 4
    assert plan(0).portion == 0
    assert plan(free_for(5)).needed(5) == FIXED + 10 * MIB


def test_before_the_network_is_there_more_copies_are_to_come() -> None:
    early = replace(plan(free_for(16)), copies=COPIES)
    assert early.needed(1) - plan(0).needed(1) == (COPIES - COPIES_LEFT) * MIB


def test_a_plan_that_works_is_told() -> None:
    split, whole = plan(free_for(5)), plan(free_for(16))
    split.check()
    whole.check()
    assert str(split) == (
        "net, 261 MiB of memory free: batches of 16, 5 samples at a time, need 209 MiB"
    )
    assert "batches of 16, at once, need 231 MiB" in str(whole)


def test_too_little_for_one_sample() -> None:
    with pytest.raises(SettingsError) as error:
        plan(free_for(0)).check()
    text = str(error.value)
    assert "'net' needs 201 MiB to train, one sample at a time" in text
    assert "of 249 MiB free memory 80% may be used" in text
    assert "choose a smaller model" in text


def test_batch_norm_is_not_split() -> None:
    plan(free_for(16), splits=False).check()
    with pytest.raises(SettingsError) as error:
        plan(free_for(5), splits=False).check()
    assert "16 samples need 231 MiB" in str(error.value)
    assert "lower batch-size to at most 5" in str(error.value)
