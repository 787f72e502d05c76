from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.batches import Batch, LocalData
from client_app.training import frozen, train
from common.data import DataSpec, Split
from common.settings import DataSettings, TrainingSettings


def data(samples: int = 8) -> LocalData:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (samples, 1, 2, 2), generator=generator)
    split = Split(images.to(torch.uint8), torch.arange(samples) % 2)
    spec = DataSpec("image", (1, 2, 2), 2)
    return LocalData(split, spec, DataSettings(), torch.device("cpu"))


def fit(module: nn.Module, loss: Any, samples: int = 8, **changes: Any) -> Any:
    momentum = changes.pop("momentum_state", {})
    portion = changes.pop("portion", None)
    settings = TrainingSettings(**{"batch_size": 8, "weight_decay": 0.0, **changes})
    return train(
        module,
        data(samples),
        loss,
        settings,
        epochs=1,
        learning_rate=0.5,
        momentum=momentum,
        generator=torch.Generator().manual_seed(0),
        portion=portion,
    )


def weight() -> nn.Linear:
    module = nn.Linear(2, 1, bias=False)
    nn.init.ones_(module.weight)
    return module


def test_one_step_by_hand() -> None:
    module = weight()
    loss, momentum = fit(
        module, lambda _: (module.weight * torch.tensor([2.0, 4])).sum()
    )
    assert loss == 6.0
    np.testing.assert_array_equal(module.weight.detach(), [[0.0, -1.0]])  # 1 - 0.5 g
    np.testing.assert_array_equal(momentum["weight"], [[2.0, 4.0]])


def test_momentum_goes_on() -> None:
    module = weight()
    start = {"weight": np.array([[10.0, 0.0]], np.float32)}
    _, momentum = fit(module, lambda _: module.weight.sum(), momentum_state=start)
    np.testing.assert_allclose(momentum["weight"], [[10.0, 1.0]])  # 0.9 m + g
    np.testing.assert_allclose(module.weight.detach(), [[-4.0, 0.5]])


def test_gradients_are_clipped() -> None:
    module = weight()
    fit(
        module,
        lambda _: (module.weight * torch.tensor([30.0, 40])).sum(),
        max_grad_norm=1,
    )
    np.testing.assert_allclose(module.weight.detach(), [[0.7, 0.6]], rtol=1e-5)


def test_parameters_without_gradient_stay() -> None:
    module = nn.ModuleDict({"used": weight(), "idle": weight()})
    start = {"idle.weight": np.full((1, 2), 7.0, np.float32)}
    used = module["used"]
    assert isinstance(used, nn.Linear)
    _, momentum = fit(
        module,
        lambda _: used.weight.sum(),
        momentum_state=start,
        weight_decay=0.5,
    )
    np.testing.assert_array_equal(module["idle"].weight.detach(), [[1.0, 1.0]])  # type: ignore
    np.testing.assert_array_equal(momentum["idle.weight"], [[7.0, 7.0]])


def test_no_momentum_keeps_none() -> None:
    module = weight()
    assert fit(module, lambda _: module.weight.sum(), momentum=0.0)[1] == {}


def test_loss_is_the_mean_over_samples_not_batches() -> None:
    # Batches of 4, 4 and 2 with losses 1, 2 and 6: (4 + 8 + 12) / 10.
    module = weight()
    values = iter([1.0, 2.0, 6.0])
    loss, _ = fit(
        module, lambda _: module.weight.sum() * 0 + next(values), 10, batch_size=4
    )
    assert loss == pytest.approx(2.4)


def test_batch_norm_survives_a_single_sample() -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def loss(batch: Batch) -> torch.Tensor:
        return nn.functional.cross_entropy(module(batch.inputs), batch.targets)

    module.train()
    fit(module, loss, samples=1)
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.training
    np.testing.assert_array_equal(norm.running_mean, np.zeros(4))  # type: ignore[arg-type]
    fit(module, loss, samples=2)
    assert float(norm.running_mean.abs().sum()) > 0  # type: ignore[union-attr]


def test_frozen_is_undone() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2))
    module[2].requires_grad_(False)
    module.train()
    with frozen(module):
        assert not module.training
        assert not any(p.requires_grad for p in module.parameters())
    assert module.training
    assert [p.requires_grad for p in module.parameters()] == [True, True, False, False]


def test_epochs_differ_and_generators_decide() -> None:
    def order(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return [
            torch.cat([b.rows for b in data(20).shuffled(8, generator)]).tolist()
            for _ in range(2)
        ]

    first, second = order(0)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert order(0) == [first, second]
    assert order(1) != [first, second]


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def fit_net(portion: int | None) -> tuple[nn.Module, float, Any, list[int]]:
    module, sizes = small_net(), []

    def loss(batch: Batch) -> torch.Tensor:
        sizes.append(len(batch.targets))
        return nn.functional.cross_entropy(module(batch.inputs), batch.targets)

    # Batches of 8, 8 and, with the sample that is left over, 9.
    value, momentum = fit(module, loss, samples=25, max_grad_norm=1, portion=portion)
    return module, value, momentum, sizes


def test_a_step_in_portions_is_the_same_step() -> None:
    whole, loss, momentum, _ = fit_net(None)
    split, split_loss, split_momentum, sizes = fit_net(3)
    assert sizes == [3, 3, 2, 3, 3, 2, 3, 3, 3]
    assert split_loss == pytest.approx(loss, rel=1e-6)
    for (name, value), other in zip(
        whole.named_parameters(), split.parameters(), strict=True
    ):
        torch.testing.assert_close(value, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            momentum[name], split_momentum[name], rtol=1e-4, atol=1e-6
        )


def test_gradient_of_portions_by_hand() -> None:
    # The mean of 25 samples' gradients, though the last of 7, 7, 7, 4 weighs less.
    module = weight()
    values = torch.arange(25.0)

    def loss(batch: Batch) -> torch.Tensor:
        return (module.weight.sum() * values[batch.rows]).mean()

    _, momentum = fit(module, loss, samples=25, batch_size=25, portion=7)
    np.testing.assert_allclose(momentum["weight"], [[12.0, 12.0]], rtol=1e-6)


def test_training_leaves_pytorch_s_compiler_unloaded() -> None:
    # It takes seconds to load, and every message to a deployed client is a new process.
    code = """
import sys, torch
from test_training import fit, weight
module = weight()
fit(module, lambda _: module.weight.sum(), max_grad_norm=1, momentum=0.9)
assert float(module.weight.sum()) < 2, "not trained"
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
