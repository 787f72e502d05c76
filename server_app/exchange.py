"""Sending messages and taking in the replies as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from flwr.common import Message
from flwr.server import Grid

_BYTES_AT_ONCE = 64 * 2**20
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two looks for replies


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    *,
    timeout: float,
    reply_bytes: int,
    on_failure: Callable[[int, str], None],
) -> Iterator[Message]:
    """Send messages and yield the replies in the order of their arrival.

    Few replies are held at a time: they are fetched in portions of about 64 MiB and
    handed on before the next portion is asked for.

    Parameters
    ----------
    timeout
        Deadline in seconds; replies that come later are never fetched.
    reply_bytes
        Expected size of a reply.
    on_failure
        Called with node id and reason for each message that will have no valid reply:
        the client raised, is not reachable, or missed the deadline.
    """
    messages = list(messages)
    deadline = time.monotonic() + timeout
    waiting: dict[str, int] = {}
    pushed = list(grid.push_messages(messages)) if messages else []
    if len(pushed) != len(messages):  # e.g. none, where they are too large for gRPC
        pushed = [""] * len(messages)
    for message, message_id in zip(messages, pushed, strict=True):
        node_id = message.metadata.dst_node_id
        if message_id:
            waiting[message_id] = node_id
        else:
            on_failure(node_id, "the message could not be handed to the SuperLink")
    del messages
    portion = max(1, _BYTES_AT_ONCE // max(reply_bytes, 1))
    pause = _SHORTEST_PAUSE
    while waiting:
        late, arrived = time.monotonic() >= deadline, False
        pending = list(waiting)
        for start in range(0, len(pending), portion):
            for reply in grid.pull_messages(pending[start : start + portion]):
                found = waiting.pop(reply.metadata.reply_to_message_id, None)
                if found is None:
                    continue
                arrived = True
                if reply.has_error():
                    on_failure(found, reply.error.reason or "unknown error")
                else:
                    yield reply
        if late:
            break
        pause = _SHORTEST_PAUSE if arrived else min(pause * 1.5, _LONGEST_PAUSE)
        if waiting:
            time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
    for node_id in waiting.values():
        on_failure(node_id, f"no reply within {timeout:g} s")
