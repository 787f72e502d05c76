"""The memory that local training takes, and what of it a device can hold.

Estimated before the first step: the network takes two empty samples, and what it keeps
for the backward pass is counted. Where a whole batch does not fit, a step goes through
it in portions and adds up their gradients, which gives the same step; see
:func:`client_app.training.train`. Reckoned in float32; training in
bfloat16 takes less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from client_app.batches import Batch
from common.data import DataSpec
from common.models import BATCH_NORM
from common.schema import SettingsError

SHARE: Final = 0.8
"""Part of the free memory that training plans with: libraries and other programs take
the rest."""

COPIES: Final = 9
"""Copies of the weights that a round holds at once at most: weights, gradients,
momentum, what came from the server or a frozen teacher, and weights and momentum again
as they were and as they are written."""

COPIES_LEFT: Final = 6
"""Those of them that are still to come once the network is there."""

RUNTIME: Final = 192 * 2**20
"""Bytes that PyTorch takes when it trains first, for code and work space."""

LEAST_PORTION: Final = 8
"""Samples that a network chosen by memory must take at once: with fewer a device spends
its time on overhead."""

_INPUT_COPIES = 3  # as stored, as float, in the layout that the network reads
_SAMPLES = 2  # BatchNorm cannot train on one


@dataclass(frozen=True, slots=True)
class Footprint:
    """What training one network takes, in bytes."""

    weights: int
    """Parameters and buffers."""
    sample: int
    """A sample on its way through a step: all that the backward pass needs of it."""
    prepared: int
    """A sample of a batch that waits for its turn."""
    splits: bool
    """Whether a step is the same in portions: not with BatchNorm, whose statistics are
    those of the batch."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a client trains within its memory."""

    model: str
    """Name of the network."""
    needs: Footprint
    free: int
    """Free memory in bytes."""
    batch: int
    """Samples of a batch."""
    copies: int = COPIES_LEFT
    """Copies of the weights that are still to come."""

    @property
    def portion(self) -> int:
        """How many samples of a batch fit at once; 0 where none does."""
        left = int(SHARE * self.free) - self.needed(0)
        return max(0, min(self.batch, left // self.needs.sample))

    @property
    def whole(self) -> bool:
        """Whether a whole batch fits."""
        return self.portion == self.batch

    def needed(self, samples: int) -> int:
        """Return the bytes that a step takes, so many samples of its batch at once."""
        needs = self.needs
        fixed = RUNTIME + self.copies * needs.weights
        return fixed + self.batch * needs.prepared + samples * needs.sample

    def check(self) -> None:
        """Raise :class:`SettingsError` where the client cannot train so.

        Not even one sample fits, or a whole batch does not and the network has
        BatchNorm.
        """
        portion = self.portion
        if self.whole or (portion and self.needs.splits):
            return
        limit = f"of {_text(self.free)} free memory {SHARE:.0%} may be used"
        if portion:
            problem = (
                f"model = {self.model!r} trains with BatchNorm, whose statistics are "
                f"those of the whole batch, and {self.batch} samples need "
                f"{_text(self.needed(self.batch))}, but {limit}: lower batch-size to "
                f"at most {portion}, choose a network without BatchNorm, or free memory"
            )
        else:
            problem = (
                f"model = {self.model!r} needs {_text(self.needed(1))} to train, one "
                f"sample at a time, but {limit}: end other programs, choose a smaller "
                "model or image-size, or raise this client's memory limit"
            )
        raise SettingsError([problem])

    def __str__(self) -> str:
        """Describe the plan in one line."""
        portion = self.portion
        how = "at once" if self.whole else f"{portion} samples at a time"
        return (
            f"{self.model}, {_text(self.free)} of memory free: batches of "
            f"{self.batch}, {how}, need {_text(self.needed(portion))}"
        )


def footprint(
    network: nn.Module,
    loss: Callable[[Batch], Tensor],
    spec: DataSpec,
    device: torch.device,
) -> Footprint:
    """Estimate what training a network takes.

    Running statistics stay as they are; random numbers are drawn.

    Parameters
    ----------
    network
        On `device`, in the mode that counts.
    loss
        A loss of the network that keeps as much for the backward pass as training does.
    """
    dtype = torch.float32 if spec.kind == "image" else torch.int64
    inputs = torch.zeros((_SAMPLES, *spec.shape), dtype=dtype, device=device)
    if inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    rows = torch.arange(_SAMPLES, device=device)
    with _buffers_kept(network):
        saved = _saved_bytes(loss, Batch(inputs, torch.zeros_like(rows), rows), network)
    return Footprint(
        weights=sum(_storage(t).nbytes() for t in _own(network)),
        # On its way back a gradient as large as a layer's input meets one as large as
        # its output.
        sample=(sum(saved) + 2 * max(saved, default=0)) // _SAMPLES + 1,
        prepared=_INPUT_COPIES * _storage(inputs).nbytes() // _SAMPLES,
        splits=not any(isinstance(m, BATCH_NORM) for m in network.modules()),
    )


def _saved_bytes(
    loss: Callable[[Batch], Tensor], batch: Batch, network: nn.Module
) -> list[int]:
    """Return the sizes of what a loss keeps for the backward pass, in bytes."""
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        storages[id(storage)] = storage
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        loss(batch)
    own = {id(_storage(tensor)) for tensor in _own(network)}
    return [s.nbytes() for key, s in storages.items() if key not in own]


@contextmanager
def _buffers_kept(network: nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _own(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _text(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
