"""Accuracies of all clients, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from common.protocol import NUM_EXAMPLES, Numbers, Reply
from server_app.vetting import RefusedReply, vet_count

PER_EXIT = ("correct", "loss", "taken")
"""Metrics of an evaluation that list one number per exit: right predictions, mean loss,
samples that leave there."""


class Evaluation:
    """Replies to ``evaluate``, by client.

    Accuracy is averaged over clients without weights, with the population standard
    deviation over clients beside it. Averaged accuracy is the mean over exits.

    Parameters
    ----------
    replies
        By client.
    macs
        By client: multiply-accumulates per sample up to each of its exits.
    """

    def __init__(
        self, replies: Mapping[str, Reply], macs: Mapping[str, Sequence[int]]
    ) -> None:
        self._metrics = {name: replies[name].metrics for name in sorted(replies)}
        self._macs = macs

    @staticmethod
    def vet(reply: Reply, macs: Sequence[int]) -> None:
        """Check a reply of a client with these costs per exit.

        Raises
        ------
        RefusedReply
            A metric is missing, has the wrong length or an impossible value.
        """
        metrics = reply.metrics
        examples = vet_count(metrics, NUM_EXAMPLES)
        lists = [metrics.get(key) for key in PER_EXIT]
        if not all(isinstance(values, list) and values for values in lists):
            raise RefusedReply(f"metrics {sorted(metrics)}, expected {PER_EXIT}")
        lengths = {len(values) for values in lists if isinstance(values, list)}
        if lengths != {len(macs)}:
            raise RefusedReply(f"metrics of {lengths} exits, expected {len(macs)}")
        if not np.isfinite(_array(metrics, "loss")).all():
            raise RefusedReply("loss is not finite")
        early, taken = metrics.get("early-correct"), _array(metrics, "taken")
        counts = [*_array(metrics, "correct"), *taken, early]
        if not isinstance(early, int) or not all(0 <= n <= examples for n in counts):
            raise RefusedReply(f"counts outside 0..{examples}")
        if taken.sum() != examples:
            raise RefusedReply(f"{taken.sum():g} of {examples} samples left an exit")

    def accuracy(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return each client's accuracy averaged over its exits, shape (clients,)."""
        return np.array([_accuracy(m).mean() for m in self._metrics.values()])

    def summary(self) -> dict[str, Numbers]:
        """Return mean and standard deviation over clients, as fractions.

        Per-exit figures are there where all clients have the same number of exits.
        """
        metrics = list(self._metrics.values())
        average = self.accuracy()
        early = np.array([_scalar(m, "early-correct") for m in metrics])
        examples = np.array([_scalar(m, NUM_EXAMPLES) for m in metrics])
        early_macs = [self._early_macs(name) for name in self._metrics]
        summary: dict[str, Numbers] = {
            "accuracy-mean": float(average.mean()),
            "accuracy-std": float(average.std()),
            "early-accuracy-mean": float((early / examples).mean()),
            "early-accuracy-std": float((early / examples).std()),
            "early-macs-mean": float(np.mean(early_macs)),
            "clients": len(metrics),
        }
        per_exit = [_accuracy(m) for m in metrics]
        if len({len(values) for values in per_exit}) == 1:
            summary["exit-accuracy-mean"] = np.mean(per_exit, axis=0).tolist()
            summary["exit-accuracy-std"] = np.std(per_exit, axis=0).tolist()
        return summary

    def rows(self, server_round: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of ``clients.csv``, floats written exactly."""
        for name, metrics in self._metrics.items():
            examples = int(_scalar(metrics, NUM_EXAMPLES))
            columns = zip(
                _accuracy(metrics).tolist(),
                _array(metrics, "loss").tolist(),
                self._macs[name],
                strict=True,
            )
            for index, (accuracy, loss, macs) in enumerate(columns, start=1):
                yield server_round, name, index, accuracy, loss, examples, macs
            early = _scalar(metrics, "early-correct") / examples
            cost = self._early_macs(name)
            yield server_round, name, "early", early, "", examples, cost

    def _early_macs(self, name: str) -> float:
        """Return the mean multiply-accumulates per sample under the exit policy."""
        taken = _array(self._metrics[name], "taken")
        return float(taken @ np.asarray(self._macs[name]) / taken.sum())


def _array(
    metrics: Mapping[str, Numbers], key: str
) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(metrics[key], dtype=np.float64)


def _scalar(metrics: Mapping[str, Numbers], key: str) -> float:
    value = metrics[key]
    assert isinstance(value, int | float)
    return float(value)


def _accuracy(
    metrics: Mapping[str, Numbers],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    return _array(metrics, "correct") / _scalar(metrics, NUM_EXAMPLES)
