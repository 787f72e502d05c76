"""Accuracies of all clients, put together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from common.protocol import EPSILONS, LATENCY, NUM_EXAMPLES, Numbers, Reply
from server_app.vetting import RefusedReply, vet_count

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Evaluation:
    """Replies to ``evaluate``, by client.

    Accuracy is averaged over clients without weights, with the population standard
    deviation over clients beside it. Averaged accuracy is the mean over exits; early
    accuracy is that at the exit where inference stops.

    Parameters
    ----------
    replies
        By client.
    macs
        By client: multiply-accumulates per sample up to each of its exits.
    trained
        Clients that have trained so far, evaluated or not.
    """

    def __init__(
        self,
        replies: Mapping[str, Reply],
        macs: Mapping[str, Sequence[int]],
        trained: Collection[str] = (),
    ) -> None:
        self._metrics = {name: replies[name].metrics for name in sorted(replies)}
        self._macs = {name: np.asarray(macs[name], float) for name in self._metrics}
        self._seen = np.array([name in trained for name in self._metrics])

    @staticmethod
    def vet(reply: Reply, macs: Sequence[int]) -> None:
        """Check a reply of a client with these costs per exit.

        Raises
        ------
        RefusedReply
            A metric is missing, has the wrong length or an impossible value.
        """
        metrics, exits = reply.metrics, len(macs)
        examples = vet_count(metrics, NUM_EXAMPLES)
        _vet_outcome(metrics, "", exits, examples)
        _vet_floats(metrics, "loss", exits)
        curve = _vet_counts(metrics, "epsilon-correct", len(EPSILONS), examples)
        taken = _vet_counts(metrics, "epsilon-taken", len(EPSILONS) * exits, examples)
        _vet_sums(taken.reshape(len(EPSILONS), exits), "epsilon-taken", examples)
        first = _array(metrics, "correct")[0]
        if curve[0] != first:  # with ε = 0 every sample leaves at the first exit
            raise RefusedReply(
                f"epsilon-correct starts with {curve[0]:g}, not {first:g}"
            )
        if "noisy-correct" in metrics:
            _vet_outcome(metrics, "noisy-", exits, examples)
        if LATENCY in metrics:
            _vet_floats(metrics, LATENCY, 2)

    def summary(self) -> dict[str, Numbers]:
        """Return means and standard deviations over clients, accuracies as fractions.

        With ``noisy-`` in front: on noisy images, where those were evaluated. With
        ``seen-`` and ``unseen-`` in front: of the clients that trained before, and of
        those that never did. ``epsilon-...`` lists the figures for each threshold in
        ``epsilon``. Per-exit figures are there where all clients have the same number
        of exits. ``latency-...`` are seconds.
        """
        metrics = list(self._metrics.values())
        early_macs = [self._early_macs(name) for name in self._metrics]
        summary: dict[str, Numbers] = {
            **self._accuracies(""),
            "early-macs-mean": float(np.mean(early_macs)),
            "clients": len(metrics),
        }
        if all("noisy-correct" in m for m in metrics):
            noisy_macs = [self._early_macs(name, "noisy-") for name in self._metrics]
            summary |= self._accuracies("noisy-")
            summary["noisy-early-macs-mean"] = float(np.mean(noisy_macs))
        if all(LATENCY in m for m in metrics):
            median, late = np.mean([_array(m, LATENCY) for m in metrics], axis=0)
            summary |= {"latency-median": float(median), "latency-p95": float(late)}
        return {**summary, **self._apart(), **self._curve()}

    def rows(self, server_round: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of ``clients.csv``, floats written exactly."""
        for name, metrics in self._metrics.items():
            yield from self._rows(server_round, name, "", _array(metrics, "loss"))
            if "noisy-correct" in metrics:
                yield from self._rows(server_round, name, "noisy-")

    def _rows(
        self, server_round: int, name: str, kind: str, loss: Floats | None = None
    ) -> Iterator[tuple[Any, ...]]:
        metrics = self._metrics[name]
        examples = int(_scalar(metrics, NUM_EXAMPLES))
        columns = zip(
            _accuracy(metrics, kind).tolist(),
            [""] * len(self._macs[name]) if loss is None else loss.tolist(),
            self._macs[name].astype(int).tolist(),
            strict=True,
        )
        for index, (accuracy, mean_loss, macs) in enumerate(columns, start=1):
            exit_ = f"{kind}{index}"
            yield server_round, name, exit_, accuracy, mean_loss, examples, macs
        early, cost = _early_accuracy(metrics, kind), self._early_macs(name, kind)
        yield server_round, name, f"{kind}early", early, "", examples, cost

    def _accuracies(self, kind: str) -> dict[str, Numbers]:
        metrics = self._metrics.values()
        per_exit = [_accuracy(m, kind) for m in metrics]
        average = np.array([values.mean() for values in per_exit])
        early = np.array([_early_accuracy(m, kind) for m in metrics])
        accuracies: dict[str, Numbers] = {
            f"{kind}accuracy-mean": float(average.mean()),
            f"{kind}accuracy-std": float(average.std()),
            f"{kind}early-accuracy-mean": float(early.mean()),
            f"{kind}early-accuracy-std": float(early.std()),
        }
        if len({len(values) for values in per_exit}) == 1:
            accuracies[f"{kind}exit-accuracy-mean"] = np.mean(per_exit, axis=0).tolist()
            accuracies[f"{kind}exit-accuracy-std"] = np.std(per_exit, axis=0).tolist()
        return accuracies

    def _apart(self) -> dict[str, Numbers]:
        """Return the accuracies of seen and of never-sampled clients."""
        metrics = self._metrics.values()
        average = np.array([_accuracy(m).mean() for m in metrics])
        early = np.array([_early_accuracy(m) for m in metrics])
        figures: dict[str, Numbers] = {}
        for kind, chosen in (("seen", self._seen), ("unseen", ~self._seen)):
            figures[f"{kind}-clients"] = int(chosen.sum())
            if chosen.any():
                figures[f"{kind}-accuracy-mean"] = float(average[chosen].mean())
                figures[f"{kind}-early-accuracy-mean"] = float(early[chosen].mean())
        return figures

    def _curve(self) -> dict[str, Numbers]:
        """Return accuracy and cost over the threshold ε."""
        accuracies, costs = [], []
        for name, metrics in self._metrics.items():
            examples, macs = _scalar(metrics, NUM_EXAMPLES), self._macs[name]
            taken = _array(metrics, "epsilon-taken").reshape(-1, len(macs))
            accuracies.append(_array(metrics, "epsilon-correct") / examples)
            costs.append(taken @ macs / examples)
        return {
            "epsilon": list(EPSILONS),
            "epsilon-accuracy-mean": np.mean(accuracies, axis=0).tolist(),
            "epsilon-macs-mean": np.mean(costs, axis=0).tolist(),
        }

    def _early_macs(self, name: str, kind: str = "") -> float:
        """Return the mean multiply-accumulates per sample under the exit policy."""
        taken = _array(self._metrics[name], f"{kind}taken")
        return float(taken @ self._macs[name] / taken.sum())


def _vet_outcome(
    metrics: Mapping[str, Numbers], kind: str, exits: int, examples: int
) -> None:
    """Check the counts per exit and at the exit taken."""
    _vet_counts(metrics, f"{kind}correct", exits, examples)
    taken = _vet_counts(metrics, f"{kind}taken", exits, examples)
    _vet_sums(taken[None], f"{kind}taken", examples)
    early = metrics.get(f"{kind}early-correct")
    if type(early) is not int or not 0 <= early <= examples:
        raise RefusedReply(f"{kind}early-correct = {early!r}, outside 0..{examples}")


def _vet_counts(
    metrics: Mapping[str, Numbers], key: str, length: int, examples: int
) -> Floats:
    values = metrics.get(key)
    if not isinstance(values, list) or len(values) != length:
        raise RefusedReply(f"metrics lack {key} with {length} numbers")
    if not all(type(count) is int and 0 <= count <= examples for count in values):
        raise RefusedReply(f"{key} holds counts outside 0..{examples}")
    return _array(metrics, key)


def _vet_sums(taken: Floats, key: str, examples: int) -> None:
    sums = taken.sum(axis=1)
    if (sums != examples).any():
        wrong = sums[sums != examples][0]
        raise RefusedReply(f"{key}: {wrong:g} of {examples} samples left an exit")


def _vet_floats(metrics: Mapping[str, Numbers], key: str, length: int) -> None:
    values = metrics.get(key)
    if not isinstance(values, list) or len(values) != length:
        raise RefusedReply(f"metrics lack {key} with {length} numbers")
    if not all(np.isfinite(values)) or min(values) < 0:
        raise RefusedReply(f"{key} is negative or not finite")


def _array(metrics: Mapping[str, Numbers], key: str) -> Floats:
    return np.asarray(metrics[key], dtype=np.float64)


def _scalar(metrics: Mapping[str, Numbers], key: str) -> float:
    value = metrics[key]
    assert isinstance(value, int | float)
    return float(value)


def _accuracy(metrics: Mapping[str, Numbers], kind: str = "") -> Floats:
    return _array(metrics, f"{kind}correct") / _scalar(metrics, NUM_EXAMPLES)


def _early_accuracy(metrics: Mapping[str, Numbers], kind: str = "") -> float:
    return _scalar(metrics, f"{kind}early-correct") / _scalar(metrics, NUM_EXAMPLES)
