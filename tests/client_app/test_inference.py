"""Early-exit inference on networks whose logits are known, and on real ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from client_app.inference import EarlyExit, Seen, patience, scores_per_exit
from common.data import DataSpec
from common.models import GlobalAveragePool, Network, build_network, logits_per_exit

IMAGES = DataSpec("image", (1, 8, 8), 10)
TEXTS = DataSpec("text", (12,), 4, 50)


class Block(nn.Module):
    """Passes samples on and notes how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return x


class Exit(nn.Module):
    """Gives sample i, whose one value is i, the i-th row of a table."""

    def __init__(self, table: list[list[float]]) -> None:
        super().__init__()
        self.table = torch.tensor(table)

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x[:, 0].long()]


def log(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


# Three exits; four samples of three classes.
FIRST = [
    log(0.9, 0.05, 0.05),
    log(0.3, 0.4, 0.3),
    log(0.2, 0.2, 0.6),
    log(0.4, 0.35, 0.25),
]
SECOND = [
    log(0.1, 0.8, 0.1),
    log(0.1, 0.8, 0.1),
    log(0.5, 0.3, 0.2),
    log(0.3, 0.4, 0.3),
]
THIRD = [log(0.2, 0.2, 0.6), log(0.2, 0.2, 0.6), log(0.7, 0.2, 0.1), log(0.2, 0.6, 0.2)]
SAMPLES = torch.arange(4.0)[:, None]


def network() -> tuple[Network, list[Block]]:
    blocks = [Block() for _ in range(3)]
    exits = [Exit(table) for table in (FIRST, SECOND, THIRD)]
    return Network(blocks, exits, nn.Identity()), blocks  # type: ignore[arg-type]


# Policy, threshold; label and exit of every sample; samples that each block computes.
CASES = [
    ("confidence", 0.6, [0, 1, 2, 1], [0, 1, 0, 2], [4, 2, 1]),
    ("confidence", 0.0, [0, 1, 2, 0], [0, 0, 0, 0], [4]),
    ("confidence", 1.0, [2, 2, 0, 1], [2, 2, 2, 2], [4, 4, 4]),
    # Entropy over ln 3, exits 1 and 2: 0.36, 0.99, 0.86, 0.98; 0.58, 0.58, 0.94, 0.99.
    ("entropy", 0.5, [0, 2, 0, 1], [0, 2, 2, 2], [4, 3, 3]),
    ("entropy", 0.41, [0, 1, 0, 1], [0, 1, 2, 2], [4, 3, 2]),
    # Only sample 1 has the same class at exits 1 and 2.
    ("patience", 1.0, [2, 1, 0, 1], [2, 1, 2, 2], [4, 4, 3]),
]


@pytest.mark.parametrize(("policy", "threshold", "labels", "exits", "computed"), CASES)
def test_by_hand(
    policy: str,
    threshold: float,
    labels: list[int],
    exits: list[int],
    computed: list[int],
) -> None:
    net, blocks = network()
    found = EarlyExit(net, threshold, policy)(SAMPLES)
    assert found.labels.tolist() == labels
    assert found.exits.tolist() == exits
    tables = torch.tensor([FIRST, SECOND, THIRD]).exp()
    rows = torch.arange(4)
    largest = tables[found.exits, rows].amax(dim=1)
    torch.testing.assert_close(found.confidence, largest)
    # Blocks see only the samples that go on.
    assert [size for block in blocks for size in block.sizes] == computed


@pytest.mark.parametrize(("policy", "threshold", "labels", "exits", "_"), CASES)
def test_single_samples_by_hand(
    policy: str, threshold: float, labels: list[int], exits: list[int], _: object
) -> None:
    net, blocks = network()
    early = EarlyExit(net, threshold, policy)
    found = [early(sample) for sample in SAMPLES.split(1)]  # type: ignore[no-untyped-call]
    assert [it.labels.item() for it in found] == labels
    assert [it.exits.item() for it in found] == exits
    deeper = [sum(exit_ >= depth for exit_ in exits) for depth in range(3)]
    assert [len(block.sizes) for block in blocks] == deeper


def test_patience_counts_agreeing_exits_in_a_row() -> None:
    labels, largest = torch.tensor([1, 1, 2]), torch.zeros(3)
    seen = Seen(torch.tensor([1, 0, 2]), torch.tensor([2.0, 5.0, 0.0]))
    assert patience(torch.empty(3, 3), largest, labels, seen).tolist() == [3, 0, 1]


@pytest.mark.parametrize(
    ("model", "spec"),
    [("convnet", IMAGES), ("resnet18", IMAGES), ("transformer", TEXTS)],
)
def test_leaving_early_changes_no_prediction(model: str, spec: DataSpec) -> None:
    net = build_network(model, spec, seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    if spec.kind == "image":
        x = 4 * torch.randn(24, *spec.shape, generator=generator)
    else:
        x = torch.randint(0, 50, (24, *spec.shape), generator=generator)
    with torch.inference_mode():
        outputs = torch.stack(logits_per_exit(net, x)).softmax(dim=2)
    confidence, labels = outputs.max(dim=2)
    # A threshold that keeps some and lets some go, at the first exit and at others.
    threshold = float(confidence[0].median())
    sure = confidence >= threshold
    sure[-1] = True
    exits = sure.int().argmax(dim=0)
    assert len(exits.unique()) > 1
    rows = torch.arange(len(x))
    # Just below, since the rounding of a convolution depends on the batch.
    early = EarlyExit(net, threshold - 1e-6)
    found = early(x)
    assert found.exits.tolist() == exits.tolist()
    assert found.labels.tolist() == labels[exits, rows].tolist()
    torch.testing.assert_close(
        found.confidence, confidence[exits, rows], rtol=1e-4, atol=1e-6
    )
    singles = [early(x[i : i + 1]) for i in range(6)]
    assert [it.exits.item() for it in singles] == exits[:6].tolist()
    assert [it.labels.item() for it in singles] == found.labels[:6].tolist()
    alone = torch.cat([it.confidence for it in singles])
    torch.testing.assert_close(alone, found.confidence[:6], rtol=1e-4, atol=1e-6)


def test_samples_that_go_on_stay_in_channels_last() -> None:
    layouts = []

    class Look(Block):
        def forward(self, x: Tensor) -> Tensor:
            layouts.append(x.is_contiguous(memory_format=torch.channels_last))
            return x

    exits = [nn.Linear(3, 2), nn.Linear(3, 2)]
    x = torch.randn(8, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    x = x.contiguous(memory_format=torch.channels_last)
    net = Network([nn.Identity(), Look()], exits, GlobalAveragePool())
    scores, _ = scores_per_exit(net, x)
    layouts.clear()
    found = EarlyExit(net, float(scores[:, 0].median()))(x)
    assert 0 < int(found.exits.sum()) < 8
    assert layouts == [True]


def test_a_network_of_ones_own_has_one_exit() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    early = EarlyExit(net, 1.0)
    assert early.num_exits == 1
    x = torch.randn(5, 1, 8, 8)
    assert early(x).labels.tolist() == net(x).argmax(dim=1).tolist()
    assert early(x).exits.tolist() == [0] * 5
    assert early(x[:1]).labels.item() == net(x).argmax(dim=1)[0]


def test_threshold_is_met_alike_by_one_and_by_many() -> None:
    # The threshold lies between the score and the next float32.
    tables = [log(0.7, 0.3), log(0.5, 0.5)], [log(0.5, 0.5)] * 2
    exits = [Exit(table) for table in tables]
    net = Network([Block(), Block()], exits, nn.Identity())  # type: ignore[arg-type]
    scores, _ = scores_per_exit(net, SAMPLES[:2])
    early = EarlyExit(net, float(scores[0, 0]) + 1e-10)
    assert early(SAMPLES[:2]).exits.tolist() == [0, 1]
    assert early(SAMPLES[:1]).exits.tolist() == [0]


def test_scores_of_every_exit() -> None:
    scores, labels = scores_per_exit(network()[0], SAMPLES)
    assert labels.tolist() == [[0, 1, 2], [1, 1, 2], [2, 0, 0], [0, 1, 1]]
    torch.testing.assert_close(scores[0], torch.tensor([0.9, 0.8, 0.6]))
    scores, _ = scores_per_exit(network()[0], SAMPLES, "patience")
    assert scores.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]


def test_unknown_policy() -> None:
    with pytest.raises(ValueError, match="'margin': must be one of confidence, ent"):
        EarlyExit(nn.Identity(), 0.5, "margin")
