"""Early-exit inference: a sample leaves at the first exit that is sure of it.

What follows behind an exit is computed for the samples that go on alone, so leaving
early saves time, not only multiply-accumulates. When to leave is a policy's matter: it
gives a sample's prediction at an exit a score, and the sample leaves where the score
reaches the threshold ε, or at the last exit.

Shape suffixes: n samples, c classes, m exits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from common.models import GlobalAveragePool, Network, logits_per_exit


class Seen(NamedTuple):
    """What the exit before said of samples that went on."""

    labels: Tensor
    """Predicted classes (n,), int64."""
    scores: Tensor
    """The policy's scores (n,)."""


Policy = Callable[[Tensor, Tensor, Tensor, Seen | None], Tensor]
"""Score of samples at an exit, from their softmax (n, c), its largest value (n,), the
class that has it (n,), and what the exit before said (None at the first)."""


def confidence(
    probabilities_nc: Tensor, largest_n: Tensor, labels_n: Tensor, seen: Seen | None
) -> Tensor:
    """Return the largest softmax value, from 1/c to 1 (X-FED, Sec. 5)."""
    return largest_n


def certainty(
    probabilities_nc: Tensor, largest_n: Tensor, labels_n: Tensor, seen: Seen | None
) -> Tensor:
    """Return 1 − H(p)/ln c, from 0 to 1, H being the softmax's entropy.

    BranchyNet (arXiv 1709.01686) leaves where H falls below a limit, which is the same.
    """
    entropy: Tensor = torch.special.entr(probabilities_nc).sum(dim=1)
    return 1 - entropy / math.log(probabilities_nc.shape[1])


def patience(
    probabilities_nc: Tensor, largest_n: Tensor, labels_n: Tensor, seen: Seen | None
) -> Tensor:
    """Return how many exits in a row before this one predicted the same class.

    Source: PABEE (arXiv 2006.04152); the threshold is its patience t.
    """
    if seen is None:
        return torch.zeros_like(largest_n)
    return torch.where(labels_n == seen.labels, seen.scores + 1, 0.0)


POLICIES: Final[dict[str, Policy]] = {
    "confidence": confidence,
    "entropy": certainty,
    "patience": patience,
}
"""The policies by name."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """What inference says of N samples; tensors on the CPU, shape (N,)."""

    labels: Tensor
    """Predicted classes, int64."""
    confidence: Tensor
    """Largest softmax value at the exit taken, float32."""
    exits: Tensor
    """Index of the exit taken, from 0, int64."""


class EarlyExit:
    """A network with a policy and a threshold.

    Parameters
    ----------
    network
        A :class:`~common.models.Network`, or a module that returns logits and counts as
        having one exit. It is put into evaluation mode, and its convolutions into
        channels-last.
    threshold
        Samples leave where their score is at least this.
    policy
        One of :data:`POLICIES`, or one of your own.

    Raises
    ------
    ValueError
        There is no such policy.
    """

    def __init__(
        self,
        network: nn.Module,
        threshold: float,
        policy: str | Policy = "confidence",
    ) -> None:
        self.network = network.eval().to(memory_format=torch.channels_last)
        # The comparison must not depend on whether the score is still in a tensor.
        self.threshold = float(np.float32(threshold))
        self._score = policy_named(policy) if isinstance(policy, str) else policy
        self._stages = _stages(network)

    @property
    def num_exits(self) -> int:
        """Number of exits m."""
        return len(self._stages)

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Predictions:
        """Predict the classes of samples.

        Parameters
        ----------
        x
            N ≥ 1 samples on the network's device: float32 images (N, channels, height,
            width), best in channels-last, or token ids (N, tokens).
        """
        if len(x) == 1:
            return self._single(x)
        samples, device = len(x), x.device
        labels = torch.empty(samples, dtype=torch.int64, device=device)
        largest = torch.empty(samples, device=device)
        exits = torch.empty(samples, dtype=torch.int64, device=device)
        inside = torch.arange(samples, device=device)  # rows of those that go on
        seen, hidden = None, x
        for index, (block, head) in enumerate(self._stages):
            hidden = block(hidden)
            at_exit = _look(head(hidden), self._score, seen)
            goes_on = ~(at_exit.scores >= self.threshold)
            if index == self.num_exits - 1:
                goes_on = torch.zeros_like(goes_on)
            keep = goes_on.nonzero()[:, 0]
            if len(keep) < len(inside):
                leave = ~goes_on
                rows = inside[leave]
                labels[rows] = at_exit.labels[leave]
                largest[rows] = at_exit.largest[leave]
                exits[rows] = index
                if len(keep) == 0:
                    break
                inside = inside[keep]
                hidden = _select(hidden, keep)
                at_exit = _AtExit(*(part[keep] for part in at_exit))
            seen = Seen(at_exit.labels, at_exit.scores)
        return Predictions(labels.cpu(), largest.cpu(), exits.cpu())

    def _single(self, x: Tensor) -> Predictions:
        """Predict one sample: nothing to sort out, it goes on or returns."""
        seen, hidden = None, x
        for index, (block, head) in enumerate(self._stages):
            hidden = block(hidden)
            at_exit = _look(head(hidden), self._score, seen)
            last = index == self.num_exits - 1
            if last or at_exit.scores.item() >= self.threshold:
                break
            seen = Seen(at_exit.labels, at_exit.scores)
        exits = torch.tensor([index])
        return Predictions(at_exit.labels.cpu(), at_exit.largest.cpu(), exits)


@torch.inference_mode()
def scores_per_exit(
    network: nn.Module, x: Tensor, policy: str = "confidence"
) -> tuple[Tensor, Tensor]:
    """Return every exit's score and prediction, as if no sample ever left.

    Parameters
    ----------
    network
        In evaluation mode.
    x
        N samples.
    policy
        One of :data:`POLICIES`.

    Returns
    -------
    Scores (N, m) float32 and predicted classes (N, m) int64, on the CPU. With them,
    every threshold's outcome is known, see :mod:`client_app.thresholds`.
    """
    score = policy_named(policy)
    seen = None
    scores, labels = [], []
    for logits in logits_per_exit(network, x):
        at_exit = _look(logits, score, seen)
        seen = Seen(at_exit.labels, at_exit.scores)
        scores.append(at_exit.scores)
        labels.append(at_exit.labels)
    return torch.stack(scores, dim=1).cpu(), torch.stack(labels, dim=1).cpu()


def policy_named(name: str) -> Policy:
    """Return a policy; raises ``ValueError`` where there is none of that name."""
    if name not in POLICIES:
        raise ValueError(f"policy = {name!r}: must be one of {', '.join(POLICIES)}")
    return POLICIES[name]


class _AtExit(NamedTuple):
    labels: Tensor
    largest: Tensor
    scores: Tensor


def _look(logits_nc: Tensor, score: Policy, seen: Seen | None) -> _AtExit:
    probabilities = logits_nc.softmax(dim=1)
    largest, labels = probabilities.max(dim=1)
    return _AtExit(labels, largest, score(probabilities, largest, labels, seen))


Stage = tuple[nn.Module, Callable[[Tensor], Tensor]]


def _stages(network: nn.Module) -> list[Stage]:
    """Return each block with what makes logits of its output."""
    if not isinstance(network, Network):
        return [(nn.Identity(), lambda x: logits_per_exit(network, x)[0])]
    return [
        (block, _head(network.pool, exit_))  # type: ignore[arg-type]
        for block, exit_ in zip(network.blocks, network.exits, strict=True)
    ]


def _head(pool: nn.Module, exit_: nn.Linear) -> Callable[[Tensor], Tensor]:
    averages = isinstance(pool, GlobalAveragePool)

    def head(hidden: Tensor) -> Tensor:
        if averages and len(hidden) == 1:
            # The same but for rounding, in half of the time: no division of its own,
            # and a matrix times a vector in place of a product of matrices.
            sums, (height, width) = hidden.sum(dim=(2, 3))[0], hidden.shape[2:]
            share = 1 / (height * width)
            return torch.addmv(exit_.bias, exit_.weight, sums, alpha=share)[None]
        logits: Tensor = exit_(pool(hidden))
        return logits

    return head


def _select(hidden: Tensor | tuple[Tensor, ...], rows: Tensor) -> Tensor:
    """Return some samples of what a block returned, in the same memory layout."""
    if isinstance(hidden, tuple):  # the Transformer's hidden states and padding
        return type(hidden)(*(_select(part, rows) for part in hidden))  # type: ignore
    if hidden.dim() != 4:
        return hidden.index_select(0, rows)
    # Selecting rows of a channels-last tensor directly makes another layout of it.
    return hidden.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
