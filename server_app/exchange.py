"""Sending messages and taking in the replies as they arrive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from flwr.common import Message
from flwr.server import Grid

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two looks for replies
_IDLE, _LONGEST_IDLE = 4, 2.0
"""A pause is this many times as long as the look before it took, up to so many seconds:
looking for the replies of many clients does not keep SuperLink busy."""

_PATIENCE = 5.0
"""Seconds after which a reply that is still on its way is waited for beside others."""


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    *,
    timeout: float,
    on_failure: Callable[[int, str], None],
) -> Iterator[Message]:
    """Send messages and yield the replies in the order of their arrival.

    Each reply is fetched on its own and handed on before the next one is asked for, so
    few are in memory at a time.

    Parameters
    ----------
    timeout
        Deadline in seconds; replies that come later do not count.
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
            on_failure(
                node_id,
                "the message could not be handed to SuperLink, which takes none "
                "larger than 2 GB; its log tells more",
            )
    del messages
    pulls: dict[str, _Pull] = {}
    pause = _SHORTEST_PAUSE
    while waiting:
        start = time.monotonic()
        late, arrived = start >= deadline, False
        for message_id in list(waiting):
            pull = pulls.pop(message_id, None) or _Pull(grid, message_id)
            patience = min(_PATIENCE, max(deadline - time.monotonic(), 0.5))
            if not pull.finished(0 if pull.slow else patience):
                pulls[message_id] = pull
                continue
            if pull.problem is not None:
                reason = f"its reply cannot be read: {pull.problem}"
                on_failure(waiting.pop(message_id), reason)
            for reply in pull.replies[:1]:
                arrived = True
                node_id = waiting.pop(message_id)
                if reply.has_error():
                    on_failure(node_id, reply.error.reason or "unknown error")
                else:
                    yield reply
        if late:
            break
        now = time.monotonic()
        if arrived:
            pause = _SHORTEST_PAUSE
        else:
            idle = min(_IDLE * (now - start), _LONGEST_IDLE)
            pause = max(min(pause * 1.5, _LONGEST_PAUSE), idle)
        if waiting:
            time.sleep(min(pause, max(deadline - now, 0)))
    for message_id, node_id in waiting.items():
        if message_id in pulls:
            reason = f"its reply was not complete within {timeout:g} s"
        else:
            reason = f"no reply within {timeout:g} s"
        on_failure(node_id, reason)


class _Pull:
    """One look for one reply, in a thread of its own.

    Where a client is cut off in the middle of its upload, Flower waits for the rest for
    up to two hours; nobody else shall wait with it.
    """

    def __init__(self, grid: Grid, message_id: str) -> None:
        self.replies: list[Message] = []
        self.slow = False
        self.problem: Exception | None = None
        """What is wrong with the reply itself."""
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(grid, message_id), daemon=True
        )
        self._thread.start()

    def _run(self, grid: Grid, message_id: str) -> None:
        try:
            self.replies = [
                reply
                for reply in grid.pull_messages([message_id])
                if reply.metadata.reply_to_message_id == message_id
            ]
        except (ValueError, LookupError, TypeError) as error:
            self.problem = error
        except BaseException as error:
            self._error = error

    def finished(self, patience: float) -> bool:
        """Wait for at most `patience` seconds; raise what went wrong between us."""
        self._thread.join(patience)
        if self._thread.is_alive():
            self.slow = True
            return False
        if self._error is not None:
            raise self._error
        return True
