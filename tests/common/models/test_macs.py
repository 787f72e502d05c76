from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from common.data.spec import DataSpec
from common.models import build_network, count_macs, early_exit_macs

CIFAR10 = DataSpec("image", (3, 32, 32), 10)

# Blocks and exits of ConvNet on CIFAR-10; the maps are 15x15, 6x6 and 2x2.
CONV_1 = 30 * 30 * 128 * 3 * 9
CONV_2 = 13 * 13 * 128 * 128 * 9
CONV_3 = 4 * 4 * 128 * 128 * 9
EXIT_1 = 128 * (15 * 15 + 1) + 128 * 10
EXIT_2 = 128 * (6 * 6 + 1) + 128 * 10
EXIT_3 = 128 * (2 * 2 + 1) + 128 * 10


def test_convnet() -> None:
    macs = count_macs(build_network("convnet", CIFAR10, seed=0), CIFAR10)
    assert macs == (
        CONV_1 + EXIT_1,
        CONV_1 + CONV_2 + EXIT_2,
        CONV_1 + CONV_2 + CONV_3 + EXIT_3,
    )
    assert round(macs[-1] / 1e6, 2) == 30.39  # X-FED


def test_early_exit_inference_pays_for_the_exits_on_the_way() -> None:
    macs = early_exit_macs(build_network("convnet", CIFAR10, seed=0), CIFAR10)
    assert macs == (
        CONV_1 + EXIT_1,
        CONV_1 + EXIT_1 + CONV_2 + EXIT_2,
        CONV_1 + EXIT_1 + CONV_2 + EXIT_2 + CONV_3 + EXIT_3,
    )


@pytest.mark.parametrize(
    ("side", "classes", "macs", "paper"),
    [(32, 100, 557_935_104, 557.94), (64, 200, 2_231_636_480, 2231.64)],
)
def test_resnet18(side: int, classes: int, macs: int, paper: float) -> None:
    spec = DataSpec("image", (3, side, side), classes)
    counted = count_macs(build_network("resnet18", spec, seed=0), spec)
    assert len(counted) == 4
    assert counted[-1] == macs
    assert round(macs / 1e6, 2) == paper  # X-FED
    # First stage: the stem, four 3x3 convolutions of 64 channels, five BatchNorms.
    stage = side**2 * (3 * 64 * 9 + 4 * 64 * 64 * 9 + 5 * 4 * 64)
    assert counted[0] == stage + 64 * (side**2 + 1) + 64 * classes


@pytest.mark.parametrize("training", [True, False])
def test_transformer(training: bool) -> None:
    spec = DataSpec("text", (200,), 4, vocabulary=100)
    network = build_network("transformer", spec, seed=0).train(training)
    with torch.no_grad():
        macs = count_macs(network, spec)
    tokens, width, feed_forward = 200, 192, 768
    projections = 4 * tokens * width**2  # query, key, value and output, all heads
    attention = 2 * tokens**2 * width  # scores, and the mean of the values
    linear = 2 * tokens * width * feed_forward
    norms = 2 * 4 * tokens * width
    block = projections + attention + linear + norms
    assert macs == tuple(j * block + width * 4 for j in (1, 2, 3, 4))


def test_cnn() -> None:
    convolutions = 28 * 28 * 16 * 3 * 25 + 10 * 10 * 32 * 16 * 25
    linear = 800 * 2000 + 2000 * 500 + 500 * 10
    network = build_network("cnn-1", CIFAR10, seed=0)
    assert count_macs(network, CIFAR10) == (convolutions + linear,)
    assert early_exit_macs(network, CIFAR10) == (convolutions + linear,)


class Own(nn.Module):
    """Attention over pixels, with a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.scale = torch.ones(2, 1, 1)
        self.encoder = nn.TransformerEncoderLayer(2, 2, 8, batch_first=True)
        self.linear = nn.Linear(2, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = (self.norm(x) * self.scale).flatten(2).transpose(1, 2)
        h = self.encoder(scaled_dot_product_attention(h, h, h))
        logits: Tensor = self.linear(h.mean(1))
        return logits


def test_own_module_on_whatever_device_it_can_be_counted() -> None:
    spec = DataSpec("image", (2, 3, 4), 5)
    network = Own().eval().requires_grad_(False)
    norm = 4 * 2 * 12
    attention = 2 * 12**2 * 2
    encoder = 4 * 12 * 2**2 + attention + 2 * 12 * 2 * 8 + 2 * 4 * 12 * 2
    expected = norm + attention + encoder + 2 * 5
    with torch.no_grad():
        macs = count_macs(network, spec)
    assert macs == early_exit_macs(network, spec) == (expected,)


def test_counting_leaves_no_trace() -> None:
    spec = DataSpec("image", (1, 8, 8), 10)
    network = build_network("resnet18", spec, seed=0)
    network.requires_grad_(False)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    rng = torch.get_rng_state()
    count_macs(network, spec)
    assert network.training
    assert not any(p.requires_grad for p in network.parameters())
    after = network.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert not any(module._forward_hooks for module in network.modules())
