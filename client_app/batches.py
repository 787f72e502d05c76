"""Batches of a client's local data, gathered from tensors kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from common.data import DataSpec, Split, add_noise, augment, to_model_input
from common.settings import DataSettings


@dataclass(frozen=True, slots=True)
class Batch:
    """Part of the local data, ready for the network."""

    inputs: Tensor
    """Images (n, c, h, w) float32, or tokens (n, l) int64."""
    targets: Tensor
    """Shape (n,), int64."""
    rows: Tensor
    """Positions of the samples in the local data, shape (n,), int64."""

    def split(self, size: int) -> Iterator[Batch]:
        """Yield the batch in portions of at most `size` samples."""
        for start in range(0, len(self.targets), size):
            part = slice(start, start + size)
            yield Batch(self.inputs[part], self.targets[part], self.rows[part])


class LocalData:
    """One split of a client's data on the training device.

    Pixels stay uint8 and are converted batch by batch, so a client needs a quarter of
    the memory of float images.
    """

    def __init__(
        self, split: Split, spec: DataSpec, settings: DataSettings, device: torch.device
    ) -> None:
        self._inputs = split.inputs.to(device)
        self._targets = split.targets.to(device)
        self._spec = spec
        self._settings = settings

    def __len__(self) -> int:
        return len(self._targets)

    @property
    def augmented(self) -> bool:
        """Whether training changes the images at random."""
        return self._spec.kind == "image" and self._settings.augmentation != "none"

    def shuffled(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch of training, in random order, augmented.

        A single left-over sample joins the last batch, since BatchNorm cannot train on
        one sample.
        """
        order = torch.randperm(len(self), generator=generator)
        for rows in _portions(order, batch_size):
            inputs = self._inputs[rows.to(self._inputs.device)]
            if self.augmented:
                inputs = augment(inputs, self._settings.augmentation, generator)
            yield self._batch(rows, inputs)

    def ordered(
        self, batch_size: int, *, noise: float = 0.0, seed: int = 0
    ) -> Iterator[Batch]:
        """Yield all samples in order.

        Parameters
        ----------
        noise
            Standard deviation of Gaussian noise on the images, see
            :func:`common.data.add_noise`; 0 leaves them as they are.
        seed
            Of the noise.
        """
        generator = torch.Generator().manual_seed(seed)
        for rows in torch.split(torch.arange(len(self)), batch_size):
            inputs = self._inputs[rows.to(self._inputs.device)]
            if noise > 0:
                inputs = add_noise(inputs, noise, generator)
            yield self._batch(rows, inputs)

    def _batch(self, rows: Tensor, inputs: Tensor) -> Batch:
        rows = rows.to(self._inputs.device)
        inputs = to_model_input(inputs, self._spec, self._settings)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return Batch(inputs, self._targets[rows], rows)


def _portions(order: Tensor, size: int) -> list[Tensor]:
    portions = list(torch.split(order, size))
    if len(portions) > 1 and len(portions[-1]) == 1:
        single = portions.pop()
        portions[-1] = torch.cat([portions[-1], single])
    return portions
