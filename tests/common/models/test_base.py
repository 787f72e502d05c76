from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from common.data.spec import DataSpec
from common.models import (
    Extractor,
    GlobalAveragePool,
    Network,
    build_network,
    last_exit_keys,
    logits_per_exit,
    shared_keys,
)

SPEC = DataSpec("image", (1, 8, 8), 3)


def network_of(name: str) -> Network:
    network = build_network(name, SPEC, seed=0)
    assert isinstance(network, Network)
    return network


def record_calls(network: Network) -> list[str]:
    calls: list[str] = []

    def record(name: str) -> Any:
        return lambda *_: calls.append(name)

    for index in range(network.num_exits):
        network.blocks[index].register_forward_hook(record(f"block {index}"))
        network.exits[index].register_forward_hook(record(f"exit {index}"))
    return calls


@pytest.mark.parametrize(
    "layout", [torch.channels_last, torch.contiguous_format], ids=str
)
def test_average_pool_is_the_mean_of_pixels_in_either_layout(
    layout: torch.memory_format,
) -> None:
    x = torch.rand(2, 5, 3, 4).to(memory_format=layout)
    pool = GlobalAveragePool()
    means = pool(x)
    expected = torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
    assert torch.equal(means, expected)
    trained = pool(x.requires_grad_(True))
    assert torch.equal(trained, means)
    (gradient,) = torch.autograd.grad(trained, x, torch.full((2, 5), 12.0))
    assert torch.equal(gradient, torch.ones(2, 5, 3, 4))
    # So that it is added to other gradients of channels-last networks without a copy.
    assert gradient.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("exits", "expected"),
    [
        (None, ["block 0", "exit 0", "block 1", "exit 1", "block 2", "exit 2"]),
        ([1], ["block 0", "block 1", "exit 1"]),
        ({2, 0}, ["block 0", "exit 0", "block 1", "block 2", "exit 2"]),
        ((0,), ["block 0", "exit 0"]),
        ([], []),
    ],
)
def test_forward_computes_only_what_is_asked_for(
    exits: Collection[int] | None, expected: list[str]
) -> None:
    network = network_of("convnet")
    x = torch.rand(2, *SPEC.shape)
    everything = network(x)
    calls = record_calls(network)
    logits = network(x, exits)
    assert calls == expected
    wanted = range(3) if exits is None else exits
    for index in range(3):
        if index in wanted:
            assert torch.equal(logits[index], everything[index])
        else:
            assert logits[index] is None


@pytest.mark.parametrize("exits", [[3], [-1]])
def test_forward_refuses_exits_that_do_not_exist(exits: list[int]) -> None:
    with pytest.raises(ValueError, match=r"exits = \[-?\d\]: .* exits 0 to 2"):
        network_of("convnet")(torch.zeros(1, *SPEC.shape), exits)


def test_scope_all_is_everything_but_integers() -> None:
    network = network_of("resnet18")
    keys = shared_keys(network, "all")
    left_out = [key for key in network.state_dict() if key not in keys]
    assert len(left_out) == 20  # BatchNorm layers of ResNet-18
    assert all(key.endswith("num_batches_tracked") for key in left_out)
    assert "exits.0.weight" in keys
    assert "blocks.0.1.running_mean" in keys


def test_scope_backbone_leaves_the_exits_out() -> None:
    network = network_of("resnet18")
    everything = shared_keys(network, "all")
    backbone = shared_keys(network, "backbone")
    assert [key for key in everything if key not in backbone] == [
        f"exits.{j}.{kind}" for j in range(4) for kind in ("weight", "bias")
    ]


def test_scope_none_is_nothing() -> None:
    assert shared_keys(network_of("convnet"), "none") == ()


@pytest.mark.parametrize("scope", ["all", "backbone"])
def test_local_batch_norm_stays(scope: Any) -> None:
    network = network_of("resnet18")
    shared = set(shared_keys(network, scope))
    local = set(shared_keys(network, scope, batch_norm="local"))
    # The stem's BatchNorm, one of a residual branch and one of a shortcut, and so on.
    layers = [
        "blocks.0.1",
        *(f"blocks.{b}.{i}.residual.{j}" for b, i, j in [(0, 3, 1), (0, 3, 4)]),
        *(f"blocks.{b}.{i}.residual.{j}" for b, i, j in [(0, 4, 1), (0, 4, 4)]),
        *(
            f"blocks.{b}.{i}.residual.{j}"
            for b in (1, 2, 3)
            for i in (0, 1)
            for j in (1, 4)
        ),
        *(f"blocks.{b}.0.shortcut.1" for b in (1, 2, 3)),
    ]
    kinds = ("weight", "bias", "running_mean", "running_var")
    assert shared - local == {f"{layer}.{kind}" for layer in layers for kind in kinds}


def test_batch_norm_of_a_module_that_is_used_twice_stays() -> None:
    norm = nn.BatchNorm1d(2)
    network = nn.Sequential(nn.Linear(2, 2), norm, nn.Linear(2, 2), norm)
    assert shared_keys(network, "all", batch_norm="local") == (
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    )


def test_batch_norm_itself_can_be_local() -> None:
    assert shared_keys(nn.Sequential(nn.BatchNorm2d(3)), "all", "local") == ()


def test_scope_extractor() -> None:
    assert shared_keys(Extractor(3), "extractor") == (
        "layers.0.weight",
        "layers.0.bias",
        "layers.2.weight",
        "layers.2.bias",
    )


def test_a_private_network_is_never_taken_for_an_extractor() -> None:
    with pytest.raises(ValueError, match="Network is no extractor"):
        shared_keys(network_of("cnn-1"), "extractor")


def test_scope_backbone_needs_exits() -> None:
    with pytest.raises(ValueError, match=r"Linear has no exits .*models\.Network"):
        shared_keys(nn.Linear(2, 2), "backbone")


def test_unknown_batch_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="'own': must be 'shared' or 'local'"):
        shared_keys(network_of("convnet"), "all", batch_norm="own")


def test_last_exit_keys() -> None:
    assert last_exit_keys(network_of("convnet")) == ("exits.2.weight", "exits.2.bias")
    assert last_exit_keys(network_of("cnn-1")) == ("exits.0.weight", "exits.0.bias")


def test_last_exit_is_not_mistaken_for_one_with_a_longer_number() -> None:
    blocks = [nn.Identity() for _ in range(11)]
    network = Network(blocks, [nn.Linear(2, 2) for _ in blocks], nn.Identity())
    assert last_exit_keys(network) == ("exits.10.weight", "exits.10.bias")


def test_logits_per_exit_takes_an_own_module() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    x = torch.rand(2, *SPEC.shape)
    (logits,) = logits_per_exit(network, x)
    assert torch.equal(logits, network(x))


class Returns(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([torch.zeros(2, 3)], "Returns returned list: forward must return one tensor"),
        (torch.zeros(2, 3, 1), r"shape \(2, 3, 1\) for 2 samples"),
        (torch.zeros(1, 3), r"shape \(1, 3\) for 2 samples"),
        (torch.zeros(2), r"shape \(2,\) for 2 samples"),
        (torch.zeros(2, 3, dtype=torch.long), "returned torch.int64"),
    ],
)
def test_logits_per_exit_refuses_what_are_no_logits(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        logits_per_exit(Returns(value), torch.zeros(2, *SPEC.shape))
