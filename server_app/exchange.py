"""Sending messages and taking in the replies as they arrive."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from flwr.common import Message
from flwr.server import Grid

try:
    from flwr.server.grid import InMemoryGrid
except ImportError:  # Flower's later releases
    from flwr.superlink.grid import InMemoryGrid  # type: ignore

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two looks for replies
_LONGEST_SIMULATED = 0.1
"""The longest pause in a simulation, whose rounds take seconds."""
_IDLE, _LONGEST_IDLE = 10, 2.0
"""A pause is this many times as long as the look before it took, up to so many seconds:
looking for the replies of many clients does not keep SuperLink busy."""

_PERIOD = 0.2  # seconds
_SIMULATED = 32  # messages on their way at a time, at most, with few cores

_PATIENCE = 5.0
"""Seconds after which a reply that is still on its way is waited for beside others."""


class Window:
    """How many messages to have on their way at a time.

    Flower's simulation looks through all of them again and again for each node. There
    it is two per core, and twice as many as are answered in `_PERIOD` seconds, in which
    Flower hands out new ones: enough to keep the workers busy.

    Attributes
    ----------
    size
        Number of messages.
    """

    def __init__(self, grid: Grid, most: int) -> None:
        self._most = self.size = most
        if isinstance(grid, InMemoryGrid):
            cores = os.cpu_count() or 1
            self._most = min(most, max(_SIMULATED, 8 * cores))
            self.size = min(most, 2 * cores)
        self._replies, self._since = 0, time.monotonic()

    def heard(self, replies: int) -> None:
        """Take into account how many replies a look found."""
        self._replies += replies
        if time.monotonic() - self._since >= _PERIOD:
            self.size = min(self._most, max(self.size, 2 * self._replies))
            self._replies, self._since = 0, time.monotonic()


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    *,
    timeout: float,
    on_failure: Callable[[int, str], None],
) -> Iterator[Message]:
    """Send messages and yield the replies in the order of their arrival.

    From SuperLink each reply is fetched on its own and handed on before the next one is
    asked for, so few are in memory at a time; in a simulation few messages are on their
    way at a time.

    Parameters
    ----------
    timeout
        Deadline in seconds; replies that come later do not count.
    on_failure
        Called with node id and reason for each message that will have no valid reply:
        the client raised, is not reachable, or missed the deadline.
    """
    unsent = deque(messages)
    del messages
    window = Window(grid, len(unsent))
    deadline = time.monotonic() + timeout
    waiting: dict[str, int] = {}
    looks = Looks()
    simulated = isinstance(grid, InMemoryGrid)
    longest = _LONGEST_SIMULATED if simulated else _LONGEST_PAUSE
    pause = _SHORTEST_PAUSE
    while unsent or waiting:
        late, arrived = time.monotonic() >= deadline, 0
        room = min(window.size - len(waiting), len(unsent))
        waiting |= _push(grid, [unsent.popleft() for _ in range(room)], on_failure)
        looks.seconds = 0.0
        for message_id, reply, problem in looks.over(grid, waiting, deadline):
            node_id = waiting.pop(message_id)
            if reply is None:
                on_failure(node_id, f"its reply cannot be read: {problem}")
            elif reply.has_error():
                on_failure(node_id, reply.error.reason or "unknown error")
            else:
                yield reply
            del reply
            arrived += 1
        if late:
            break
        window.heard(arrived)
        pause = _SHORTEST_PAUSE if arrived else min(pause * 1.5, longest)
        pause = max(pause, min(_IDLE * looks.seconds, _LONGEST_IDLE))
        if waiting:
            time.sleep(max(0, min(pause, deadline - time.monotonic())))
    for message in unsent:
        on_failure(message.metadata.dst_node_id, f"not asked within {timeout:g} s")
    for message_id, node_id in waiting.items():
        if message_id in looks.unfinished:
            reason = f"its reply was not complete within {timeout:g} s"
        else:
            reason = f"no reply within {timeout:g} s"
        on_failure(node_id, reason)


def _push(
    grid: Grid, messages: list[Message], on_failure: Callable[[int, str], None]
) -> dict[str, int]:
    """Hand messages to SuperLink; return the node ids by message id."""
    pushed = list(grid.push_messages(messages)) if messages else []
    if len(pushed) != len(messages):  # e.g. none, where they are too large for gRPC
        pushed = [""] * len(messages)
    waiting = {}
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
    return waiting


class Looks:
    """Looks for replies: one at a time, in a simulation all at once.

    Where a client is cut off in the middle of its upload, Flower waits for the rest for
    up to two hours; nobody else shall wait with it.

    Attributes
    ----------
    seconds
        Time spent looking.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._slow: list[_Look] = []

    @property
    def unfinished(self) -> set[str]:
        """Messages whose reply began to arrive and is not complete."""
        return {look.message_id for look in self._slow}

    def over(
        self, grid: Grid, message_ids: Iterable[str], deadline: float
    ) -> Iterator[tuple[str, Message | None, Exception | None]]:
        """Look once for the reply to each message.

        Parameters
        ----------
        deadline
            On the monotonic clock; then a look takes half a second at most.

        Yields
        ------
        Message id and the reply, or what is wrong with it, of each that is there.
        """
        if isinstance(grid, InMemoryGrid):  # a reply is here as a whole or not at all
            start = time.monotonic()
            replies = deque(grid.pull_messages(list(message_ids)))
            self.seconds += time.monotonic() - start
            while replies:  # each is let go of before the next one
                message_id = replies[0].metadata.reply_to_message_id
                yield message_id, replies.popleft(), None
            return
        unseen = deque(i for i in message_ids if i not in self.unfinished)
        while True:
            look = next((look for look in self._slow if not look.is_alive()), None)
            if look is not None:
                self._slow.remove(look)
            elif unseen:
                start = time.monotonic()
                look = _Look(grid, unseen)
                finished = look.wait(min(_PATIENCE, max(deadline - start, 0.5)))
                self.seconds += time.monotonic() - start
                if not finished:
                    self._slow.append(look)
                    continue
            else:
                return
            if look.error is not None:
                raise look.error
            if look.reply is not None or look.problem is not None:
                yield look.message_id, look.reply, look.problem


class _Look(threading.Thread):
    """Goes through messages, a queue of their ids, until it finds one's reply.

    Attributes
    ----------
    message_id
        The message whose reply is looked for now.
    reply
        The reply found.
    problem
        What is wrong with the reply itself.
    error
        What went wrong between us and SuperLink.
    """

    def __init__(self, grid: Grid, message_ids: deque[str]) -> None:
        super().__init__(daemon=True)
        self.message_id = ""
        self.reply: Message | None = None
        self.problem: Exception | None = None
        self.error: BaseException | None = None
        self._grid = grid
        self._message_ids = message_ids
        self._since = time.monotonic()
        self.start()

    def run(self) -> None:
        try:
            while self.reply is None and self._next():
                for reply in self._grid.pull_messages([self.message_id]):
                    if reply.metadata.reply_to_message_id == self.message_id:
                        self.reply = reply
        except (ValueError, LookupError, TypeError) as error:
            self.problem = error
        except BaseException as error:
            self.error = error

    def _next(self) -> bool:
        try:
            self.message_id = self._message_ids.popleft()
        except IndexError:  # a slow look that goes on takes from the same queue
            return False
        self._since = time.monotonic()
        return True

    def wait(self, patience: float) -> bool:
        """Wait until it ends; False where one reply alone takes longer."""
        while self.is_alive():
            left = self._since + patience - time.monotonic()
            if left <= 0:
                return False
            self.join(left)
        return True
