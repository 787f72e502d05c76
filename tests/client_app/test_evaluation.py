"""Early-exit evaluation on a network whose logits are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from client_app.batches import LocalData
from client_app.evaluation import evaluate, latency
from common.data import DataSpec, Split
from common.models import Network
from common.protocol import EPSILONS
from common.settings import DataSettings

# Four samples, the class is the row. Confidence of the first exit: 0.5, 0.9, 0.9, 0.5.
SURE, UNSURE = math.log(9.0), 0.0
FIRST = torch.tensor([[UNSURE, 0], [SURE, 0], [0, SURE], [0, UNSURE]])
LAST = torch.tensor([[SURE, 0], [0, SURE], [0, SURE], [SURE, 0]])
TARGETS = torch.tensor([0, 1, 1, 1])


class Lookup(nn.Module):
    """Gives each sample, numbered by its one pixel, its row of a table."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = ((x.reshape(len(x), -1)[:, 0] + 1) * 127.5).round().long()
        return self.table[number]


def local_data() -> LocalData:
    inputs = torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1, 1)
    return LocalData(
        Split(inputs, TARGETS),
        DataSpec("image", (1, 1, 1), 2),
        DataSettings(),
        torch.device("cpu"),
    )


def network() -> nn.Module:
    return Network(
        blocks=[nn.Identity(), nn.Identity()],
        exits=[Lookup(FIRST), Lookup(LAST)],  # type: ignore[list-item]
        pool=nn.Identity(),
    )


@pytest.mark.parametrize(
    ("threshold", "taken", "early"),
    [
        # Samples 1 and 2 leave at the first exit (wrong, right); 0 and 3 go on (right,
        # wrong).
        (0.8, [2, 2], 2),
        # Exactly the confidence is enough.
        (0.5, [4, 0], 2),
        # Nobody is ever sure: everybody ends at the last exit.
        (1.0, [0, 4], 3),
    ],
)
def test_by_hand(threshold: float, taken: list[int], early: int) -> None:
    metrics = evaluate(network(), local_data(), threshold)
    # First exit: sample 0 ties and argmax takes class 0 (right), 1 wrong, 2 right,
    # 3 ties to class 0 (wrong). Last exit: right, right, right, wrong.
    assert metrics["num-examples"] == 4
    assert metrics["correct"] == [2, 3]
    assert metrics["taken"] == taken
    assert metrics["early-correct"] == early
    first = (2 * math.log(2) + math.log(10) + math.log(10 / 9)) / 4
    last = (3 * math.log(10 / 9) + math.log(10)) / 4
    assert metrics["loss"] == pytest.approx([first, last])


def test_every_threshold_of_the_grid() -> None:
    metrics = evaluate(network(), local_data(), 0.8)
    taken = np.array(metrics["epsilon-taken"]).reshape(len(EPSILONS), 2).tolist()
    # Confidences at exit 1 are 0.5 and 0.9, both twice: up to ε = 0.5 all leave there,
    # up to 0.9 the sure ones do, then nobody.
    expected = {eps: 4 if eps <= 0.5 else 2 if eps <= 0.9 else 0 for eps in EPSILONS}
    assert taken == [[n, 4 - n] for n in expected.values()]
    right = {4: 2, 2: 2, 0: 3}
    assert metrics["epsilon-correct"] == [right[n] for n in expected.values()]
    assert not [key for key in metrics if key.startswith("noisy")]


def test_noise_is_evaluated_beside_the_clean_images() -> None:
    clean = evaluate(network(), local_data(), 0.8)
    data = local_data()
    data._inputs[:] = 1  # every pixel is sample 1, which noise turns into 0 to 3
    table = torch.arange(256).clamp(max=3)
    net = network()
    for exit_ in net.exits:  # type: ignore[union-attr]
        exit_.table = exit_.table[table]
    found = evaluate(net, data, 0.8, noise=0.01, seed=3)
    noisy = torch.cat([b.inputs for b in data.ordered(64, noise=0.01, seed=3)])
    pixels = ((noisy.flatten() + 1) * 127.5).round().long().clamp(max=3)
    assert len(pixels.unique()) > 1
    assert found["noisy-correct"] == [
        int((t[pixels].argmax(dim=1) == TARGETS).sum()) for t in (FIRST, LAST)
    ]
    assert found["correct"] == [
        int((t[1].argmax() == TARGETS).sum()) for t in (FIRST, LAST)
    ]
    assert sum(found["noisy-taken"]) == 4  # type: ignore[arg-type]
    assert set(found) - set(clean) == {
        "noisy-correct",
        "noisy-taken",
        "noisy-early-correct",
    }


def test_latency_is_that_of_single_samples() -> None:
    sizes = []

    class Watch(nn.Identity):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return x

    net = network()
    net.blocks[0] = Watch()  # type: ignore[operator, index]
    median, late = latency(net, local_data(), 0.8)
    assert 0 < median <= late
    assert set(sizes) == {1}
