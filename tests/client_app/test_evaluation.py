"""Early-exit evaluation on a network whose logits are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from client_app.batches import LocalData
from client_app.evaluation import evaluate
from common.data import DataSpec, Split
from common.models import Network
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
    inputs = torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1, 1)
    data = LocalData(
        Split(inputs, TARGETS),
        DataSpec("image", (1, 1, 1), 2),
        DataSettings(),
        torch.device("cpu"),
    )
    metrics = evaluate(network(), data, threshold)
    # First exit: sample 0 ties and argmax takes class 0 (right), 1 wrong, 2 right,
    # 3 ties to class 0 (wrong). Last exit: right, right, right, wrong.
    assert metrics["num-examples"] == 4
    assert metrics["correct"] == [2, 3]
    assert metrics["taken"] == taken
    assert metrics["early-correct"] == early
    first = (2 * math.log(2) + math.log(10) + math.log(10 / 9)) / 4
    last = (3 * math.log(10 / 9) + math.log(10)) / 4
    assert metrics["loss"] == pytest.approx([first, last])
