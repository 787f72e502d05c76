"""Local SGD: the loop that every method's training is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from client_app.batches import Batch, LocalData
from common.models import BATCH_NORM
from common.settings import TrainingSettings
from common.state import State


def train(
    module: nn.Module,
    data: LocalData,
    loss: Callable[[Batch], Tensor],
    settings: TrainingSettings,
    *,
    epochs: int,
    learning_rate: float,
    momentum: State,
    generator: torch.Generator,
) -> tuple[float, State]:
    """Train the parameters of `module` that ask for gradients, with SGD.

    Parameters
    ----------
    module
        Its parameters are optimized; the loss may involve other, frozen modules.
    data
        The local training data.
    loss
        Maps a batch to the scalar loss.
    momentum
        Momentum buffers by parameter name to start from; missing ones start at zero.
    generator
        Source of the batch order and the augmentation.

    Returns
    -------
    Mean loss over the samples of all epochs, and the momentum buffers afterwards.
    Parameters without a gradient keep their value and their momentum.
    """
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(
        parameters.values(),
        lr=learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=next(iter(parameters.values())).device.type in ("cpu", "cuda"),
    )
    if settings.momentum:
        _restore(optimizer, parameters, momentum)
    losses, samples = [], []
    for _ in range(epochs):
        for batch in data.shuffled(settings.batch_size, generator):
            optimizer.zero_grad(set_to_none=True)
            with _single_sample(module, len(batch.targets)):
                value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            if settings.max_grad_norm > 0:
                nn.utils.clip_grad_norm_(parameters.values(), settings.max_grad_norm)
            optimizer.step()
            losses.append(value.detach())  # not read yet: that would wait for a GPU
            samples.append(len(batch.targets))
    if settings.momentum:
        momentum = {**momentum, **_buffers(optimizer, parameters)}
    optimizer.zero_grad(set_to_none=True)
    mean_loss = np.average(torch.stack(losses).cpu().double().numpy(), weights=samples)
    return float(mean_loss), momentum


def _restore(
    optimizer: torch.optim.SGD, parameters: Mapping[str, Tensor], momentum: State
) -> None:
    """Set every momentum buffer; zeros give the same first step as none at all.

    The fused optimizer wants all buffers or none, but exits join one after another.
    """
    for name, parameter in parameters.items():
        buffer = torch.zeros_like(parameter)  # keeps the channels-last layout
        if name in momentum:
            buffer.copy_(torch.tensor(momentum[name]))
        optimizer.state[parameter]["momentum_buffer"] = buffer


def _buffers(optimizer: torch.optim.SGD, parameters: Mapping[str, Tensor]) -> State:
    return {
        name: optimizer.state[parameter]["momentum_buffer"].cpu().numpy().copy()
        for name, parameter in parameters.items()
        if parameter.grad is not None
    }


@contextmanager
def _single_sample(module: nn.Module, samples: int) -> Iterator[None]:
    """Let BatchNorm use its running statistics for a batch of one sample."""
    layers = []
    if samples == 1:
        layers = [
            m for m in module.modules() if isinstance(m, BATCH_NORM) and m.training
        ]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Freeze a module: no gradients, no dropout, no change of running statistics."""
    training = module.training
    asked = [p for p in module.parameters() if p.requires_grad]
    module.eval().requires_grad_(False)
    try:
        yield
    finally:
        module.train(training)
        for parameter in asked:
            parameter.requires_grad_(True)
