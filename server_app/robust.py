"""Flower's robust aggregation rules in place of the mean."""

from __future__ import annotations

from flwr.common import Message, MessageType
from flwr.serverapp.strategy import Strategy

from common.protocol import NUM_EXAMPLES, Reply, from_record
from common.state import State


class FlowerAggregate:
    """Aggregates states by a strategy of Flower's, e.g. ``FedMedian`` or ``Krum``.

    It sees valid replies only, in the order of the clients' names. All of them are held
    in memory until the end of the round: no such rule works on one at a time.

    Parameters
    ----------
    strategy
        Only its ``aggregate_train`` is used.
    server_round
        Round t, counted from 1.
    """

    def __init__(self, strategy: Strategy, server_round: int) -> None:
        self._strategy = strategy
        self._round = server_round
        self._replies: dict[str, Reply] = {}

    def add(self, name: str, state: State, weight: int) -> None:
        """Contribute the state of one client with weight n_k."""
        self._replies[name] = Reply(shared=state, metrics={NUM_EXAMPLES: weight})

    def drop(self, name: str) -> None:
        """Say that a client will not contribute."""

    def result(self) -> State | None:
        """Return the aggregate, dtypes as they came; None where there is none."""
        if not self._replies:
            return None
        messages = [
            Message(reply.to_records(), 0, MessageType.TRAIN)
            for _, reply in sorted(self._replies.items())
        ]
        arrays, _ = self._strategy.aggregate_train(self._round, messages)
        if arrays is None:
            return None
        first = next(iter(self._replies.values())).shared
        assert first is not None
        return {k: v.astype(first[k].dtype) for k, v in from_record(arrays).items()}
