from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from common.data.spec import DataSpec
from common.models import (
    Network,
    build_extractor,
    build_network,
    logits_per_exit,
    model_name,
)
from common.models.convnet import smallest_side
from common.models.transformer import sinusoidal_positions

DIGITS = DataSpec("image", (1, 8, 8), 10)
CIFAR10 = DataSpec("image", (3, 32, 32), 10)
CIFAR100 = DataSpec("image", (3, 32, 32), 100)
FASHION = DataSpec("image", (1, 28, 28), 10)
TINY_64 = DataSpec("image", (3, 64, 64), 200)
WIDE = DataSpec("image", (3, 12, 40), 7)
ONE_PIXEL = DataSpec("image", (1, 1, 1), 2)
AG_NEWS = DataSpec("text", (200,), 4, vocabulary=32_000)
SHORT_TEXT = DataSpec("text", (12,), 4, vocabulary=50)

CNNS = ["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"]


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def early_exit(name: str, spec: DataSpec, seed: int = 0) -> Network:
    network = build_network(name, spec, seed=seed)
    assert isinstance(network, Network)
    return network


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("cnn-1", 2_621_558),
        ("cnn-2", 1_815_142),
        ("cnn-3", 1_320_558),
        ("cnn-4", 1_060_358),
        ("cnn-5", 670_058),
    ],
)
def test_cnn_has_the_papers_parameters(name: str, count: int) -> None:
    assert parameters(build_network(name, CIFAR10, seed=0)) == count


def test_cnn_is_one_block_and_one_exit() -> None:
    network = early_exit("cnn-1", CIFAR10)
    assert network.num_exits == len(network.blocks) == 1
    assert network.state_dict()["exits.0.weight"].shape == (10, 500)


def test_convnet_parameters() -> None:
    convolutions = (9 * 3 * 128 + 128) + 2 * (9 * 128 * 128 + 128)
    exits = 3 * (128 * 10 + 10)
    assert parameters(early_exit("convnet", CIFAR10)) == convolutions + exits


def test_resnet18_parameters() -> None:
    network = early_exit("resnet18", CIFAR100)
    # 11,220,132 is the well-known ResNet-18 for CIFAR-100, its classifier included.
    shallow_exits = (64 + 128 + 256) * 100 + 3 * 100
    assert parameters(network) == 11_220_132 + shallow_exits
    assert parameters(network.exits[-1]) == 51_300


def test_transformer_parameters() -> None:
    attention = 4 * (192 * 192 + 192)
    feed_forward = (192 * 768 + 768) + (768 * 192 + 192)
    norms = 2 * 2 * 192
    exit_ = 192 * 4 + 4
    expected = 32_000 * 192 + 4 * (attention + feed_forward + norms + exit_)
    network = early_exit("transformer", AG_NEWS)
    assert parameters(network) == expected
    assert sum(value.numel() for value in network.state_dict().values()) == expected


@pytest.mark.parametrize("channels", [1, 3])
def test_extractor_keeps_the_shape(channels: int) -> None:
    extractor = build_extractor(DataSpec("image", (channels, 8, 5), 2), seed=0)
    count = (channels * 9 * 8 + 8) + (8 * 9 * channels + channels)
    assert parameters(extractor) == count
    if channels == 3:
        assert count == 443
    x = torch.randn(2, channels, 8, 5)
    enhanced = extractor(x)
    assert enhanced.shape == x.shape
    assert enhanced.min() >= 0


@pytest.mark.parametrize("spec", [DIGITS, CIFAR10, FASHION, TINY_64, WIDE, ONE_PIXEL])
@pytest.mark.parametrize("name", ["convnet", "resnet18", "cnn-2", "cnn-5"])
def test_every_image_network_trains_on_every_image(name: str, spec: DataSpec) -> None:
    network = early_exit(name, spec)
    x = torch.rand(2, *spec.shape)
    logits = logits_per_exit(network, x)
    exits = {"convnet": 3, "resnet18": 4}.get(name, 1)
    assert [tuple(z.shape) for z in logits] == [(2, spec.num_classes)] * exits
    loss = sum(z.square().mean() for z in logits)
    assert isinstance(loss, Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


def test_gradients_are_those_of_a_network_without_in_place_relu() -> None:
    x = torch.rand(3, *DIGITS.shape)
    gradients = []
    for inplace in (True, False):
        network = early_exit("resnet18", DIGITS)
        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = inplace
        loss = torch.stack(logits_per_exit(network, x)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients.append([p.grad for p in network.parameters()])
    for with_, without in zip(*gradients, strict=True):
        torch.testing.assert_close(with_, without)


def test_smallest_side_without_padding() -> None:
    # 22 -conv-> 20 -pool-> 10 -> 8 -> 4 -> 2 -> 1 and 16 -> 12 -> 6 -> 2 -> 1
    assert smallest_side(kernel=3, num_blocks=3) == 22
    assert smallest_side(kernel=5, num_blocks=2) == 16


@pytest.mark.parametrize(
    ("name", "sides", "maps"),
    [
        ("convnet", (22, 30), [(10, 14), (4, 6), (1, 2)]),
        ("convnet", (21, 30), [(10, 15), (5, 7), (2, 3)]),
        ("convnet", (8, 8), [(4, 4), (2, 2), (1, 1)]),
        ("convnet", (4, 4), [(2, 2), (1, 1), (1, 1)]),
    ],
)
def test_smaller_side_decides_on_padding_and_pooling(
    name: str, sides: tuple[int, int], maps: list[tuple[int, int]]
) -> None:
    network = early_exit(name, DataSpec("image", (1, *sides), 2))
    hidden = torch.zeros(1, 1, *sides)
    seen = []
    for block in network.blocks:
        hidden = block(hidden)
        seen.append(tuple(hidden.shape[2:]))
    assert seen == maps


@pytest.mark.parametrize(
    ("side", "features"), [(16, 32 * 1 * 1), (15, 32 * 3 * 3), (8, 32 * 2 * 2)]
)
def test_cnn_pads_small_images(side: int, features: int) -> None:
    network = early_exit("cnn-5", DataSpec("image", (1, side, side), 2))
    linear = next(m for m in network.blocks.modules() if isinstance(m, nn.Linear))
    assert linear.in_features == features


def test_transformer_trains() -> None:
    network = early_exit("transformer", SHORT_TEXT)
    logits = logits_per_exit(network, torch.randint(0, 50, (3, 12)))
    assert [tuple(z.shape) for z in logits] == [(3, 4)] * 4
    torch.stack(logits).square().mean().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("no_grad", [True, False])
def test_transformer_does_not_see_padding(no_grad: bool) -> None:
    network = early_exit("transformer", SHORT_TEXT).eval()
    text = torch.tensor([[7, 8, 9]])
    padded = torch.tensor([[7, 8, 9, 0, 0, 0, 0]])
    other = torch.tensor([[7, 8, 3]])
    with torch.set_grad_enabled(not no_grad):
        for short, long, different in zip(
            *(logits_per_exit(network, x) for x in (text, padded, other)), strict=True
        ):
            torch.testing.assert_close(short, long)
            assert not torch.allclose(short, different)


def test_transformer_reads_the_order_of_the_tokens() -> None:
    network = early_exit("transformer", SHORT_TEXT).eval()
    one, two = (network(torch.tensor([t]))[-1] for t in ([7, 8, 9], [7, 9, 8]))
    assert not torch.allclose(one, two)


def test_text_without_tokens_gives_finite_logits() -> None:
    network = early_exit("transformer", SHORT_TEXT)
    for training in (True, False):
        network.train(training)
        with torch.set_grad_enabled(training):
            logits = logits_per_exit(network, torch.zeros(2, 12, dtype=torch.long))
        assert all(z.isfinite().all() for z in logits)


def test_transformer_leaves_its_input_alone() -> None:
    x = torch.tensor([[0, 5, 0]])
    early_exit("transformer", SHORT_TEXT)(x)
    assert x.tolist() == [[0, 5, 0]]


def test_sinusoidal_positions() -> None:
    positions = sinusoidal_positions(3, 4)
    expected = [
        [math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)]
        for p in range(3)
    ]
    torch.testing.assert_close(positions, torch.tensor(expected))


@pytest.mark.parametrize(
    ("name", "spec"),
    [("convnet", DIGITS), ("resnet18", DIGITS), ("transformer", SHORT_TEXT)]
    + [(name, DIGITS) for name in CNNS],
)
def test_seed_fixes_the_weights_whatever_the_global_state(
    name: str, spec: DataSpec
) -> None:
    torch.manual_seed(1)
    one = build_network(name, spec, seed=5).state_dict()
    torch.manual_seed(2)
    two = build_network(name, spec, seed=5).state_dict()
    other = build_network(name, spec, seed=6).state_dict()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


def test_seed_fixes_the_extractor() -> None:
    states = [build_extractor(DIGITS, seed=s).state_dict() for s in (5, 5, 6)]
    weights = [state["layers.0.weight"] for state in states]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_building_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    build_network("cnn-5", DIGITS, seed=3)
    build_extractor(DIGITS, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_networks_come_in_training_mode() -> None:
    assert all(m.training for m in early_exit("resnet18", DIGITS).modules())


def test_model_name() -> None:
    names = [model_name("heterogeneous", i) for i in range(6)]
    assert names == [*CNNS, "cnn-1"]
    assert model_name("convnet", 3) == "convnet"
    assert model_name("my_models:net", 3) == "my_models:net"


def test_unknown_network_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'cnn-6': no such network; .*cnn-1.*own"):
        build_network("cnn-6", DIGITS, seed=0)


def test_networks_refuse_the_wrong_kind_of_data() -> None:
    with pytest.raises(ValueError, match=r"'transformer' does not read image data"):
        build_network("transformer", DIGITS, seed=0)
    with pytest.raises(ValueError, match=r"'cnn-1' does not read text .*transformer"):
        build_network("cnn-1", SHORT_TEXT, seed=0)
    with pytest.raises(ValueError, match=r"'text': the extractor .* reads images"):
        build_extractor(SHORT_TEXT, seed=0)
