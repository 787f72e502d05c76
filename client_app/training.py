"""Local SGD: the loop that every method's training is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

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
    portion: int | None = None,
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
    portion
        Samples that a step takes at once, for want of memory; None: a whole batch. The
        gradients of a batch's portions are added up, each weighted with its part of the
        batch, which is the gradient of the batch except for rounding, for a loss that
        is a mean over samples; dropout draws other masks. Not for BatchNorm.

    Returns
    -------
    Mean loss over the samples of all epochs, and the momentum buffers afterwards.
    Parameters without a gradient keep their value and their momentum.
    """
    if settings.precision == "bfloat16":
        loss = _in_bfloat16(loss, module)
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    buffers = _momentum_buffers(parameters, momentum) if settings.momentum else {}
    losses, samples = [], []
    for _ in range(epochs):
        for batch in data.shuffled(settings.batch_size, generator):
            module.zero_grad(set_to_none=True)
            if portion is None:
                with _single_sample(module, len(batch.targets)):
                    value = loss(batch)
                value.backward()  # type: ignore[no-untyped-call]
            else:
                value = _accumulate(loss, batch, portion)
            if settings.max_grad_norm > 0:
                nn.utils.clip_grad_norm_(parameters.values(), settings.max_grad_norm)
            _step(parameters, buffers, settings, learning_rate)
            losses.append(value.detach())  # not read yet: that would wait for a GPU
            samples.append(len(batch.targets))
    trained = {
        name: buffer.cpu().numpy().copy()
        for name, buffer in buffers.items()
        if parameters[name].grad is not None
    }
    module.zero_grad(set_to_none=True)
    mean_loss = np.average(torch.stack(losses).cpu().double().numpy(), weights=samples)
    return float(mean_loss), {**momentum, **trained}


def _in_bfloat16(
    loss: Callable[[Batch], Tensor], module: nn.Module
) -> Callable[[Batch], Tensor]:
    """Return the loss under autocast; parameters and gradients stay float32."""
    device = next(module.parameters()).device.type

    def cast(batch: Batch) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return loss(batch)

    return cast


def _accumulate(loss: Callable[[Batch], Tensor], batch: Batch, portion: int) -> Tensor:
    """Add up the gradients of a batch's portions; return the batch's loss."""
    values = []
    for part in batch.split(portion):
        value = loss(part) * (len(part.targets) / len(batch.targets))
        value.backward()  # type: ignore[no-untyped-call]
        values.append(value.detach())
    return torch.stack(values).sum()


def _momentum_buffers(
    parameters: Mapping[str, Tensor], momentum: State
) -> dict[str, Tensor]:
    """Make every momentum buffer; zeros give the same first step as none at all."""
    buffers = {}
    for name, parameter in parameters.items():
        buffers[name] = torch.zeros_like(parameter)  # keeps the channels-last layout
        if name in momentum:
            buffers[name].copy_(torch.tensor(momentum[name]))
    return buffers


@torch.no_grad()
def _step(
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    settings: TrainingSettings,
    learning_rate: float,
) -> None:
    """Take a step of SGD for those that have a gradient.

    By PyTorch's functional form: the class ``torch.optim.SGD`` loads the compiler, two
    seconds in the new process that a deployed client starts for each message.
    """
    trained = {n: p for n, p in parameters.items() if p.grad is not None}
    sgd(
        list(trained.values()),
        [p.grad for p in trained.values() if p.grad is not None],
        [buffers.get(name) for name in trained],
        fused=next(iter(parameters.values())).device.type in ("cpu", "cuda"),
        lr=learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )


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
