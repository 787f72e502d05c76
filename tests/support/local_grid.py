"""A Flower grid in one process: messages are handled when their replies are pulled."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.common import Context, Error, Message, RecordDict
from flwr.server import Grid

Handler = Callable[[Message, Context], Message]
NEVER = object()
"""A handler returns this in place of a message to stay silent."""


class LocalGrid(Grid):
    """Clients are functions; node ids are random, as Flower's are.

    Parameters
    ----------
    nodes
        Node configuration of every node, by any label.
    handler
        Called as a ClientApp is, with message and context.
    run_config
        Run configuration of the contexts.
    order
        Order in which replies become available: "sent", "reversed" or "random".
    """

    def __init__(
        self,
        nodes: Mapping[str, Mapping[str, Any]],
        handler: Handler,
        run_config: Mapping[str, Any] | None = None,
        order: str = "sent",
        seed: int | None = None,
    ) -> None:
        rng = random.Random(seed)
        self.contexts = {
            rng.getrandbits(60): Context(
                run_id=1,
                node_id=0,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for config in nodes.values()
        }
        self.labels = dict(zip(self.contexts, nodes, strict=True))
        self.offline: set[int] = set()
        self.log: list[tuple[str, Message, Message | None]] = []
        self._handler = handler
        self._order = order
        self._rng = rng
        self._pending: dict[str, Message] = {}
        self._ids = itertools.count(1)
        self._handling = threading.Lock()

    def node(self, label: str) -> int:
        return next(node for node, name in self.labels.items() if name == label)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            self._pending[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with self._handling:  # random numbers are the process's, so one at a time
            return self._pull(message_ids)

    def _pull(self, message_ids: Iterable[str]) -> list[Message]:
        ids = [i for i in message_ids if i in self._pending]
        if self._order == "reversed":
            ids = [i for i in ids if i == next(reversed(self._pending))]
        elif self._order == "random":
            ids = [i for i in ids if self._rng.random() < 0.5]
        replies = []
        for message_id in ids:
            message = self._pending[message_id]
            reply = self._answer(message)
            if reply is None:
                continue
            del self._pending[message_id]
            replies.append(reply)
        return replies

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        try:
            reply: Any = self._handler(message, self.contexts[node])
        except Exception as error:
            reply = Message(Error(code=0, reason=str(error)), reply_to=message)
        if reply is NEVER:
            return None
        self.log.append((self.labels[node], message, reply))
        assert isinstance(reply, Message)
        return reply

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def set_run(self, run_id: int) -> None: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def break_off(
    grid: LocalGrid, node: int, monkeypatch: pytest.MonkeyPatch
) -> threading.Event:
    """Let the upload of one node stop in the middle until the event is set."""
    # Flower waits inside pull_messages for the rest of a reply, for up to two hours.
    monkeypatch.setattr("server_app.exchange._PATIENCE", 0.05)
    pull, rest = grid.pull_messages, threading.Event()

    def broken_off(ids: Any) -> Any:
        [message_id] = ids
        if grid._pending[message_id].metadata.dst_node_id == node:
            rest.wait()
        return pull([message_id])

    monkeypatch.setattr(grid, "pull_messages", broken_off)
    return rest
