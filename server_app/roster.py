"""Who takes part: the clients behind Flower's nodes, under their own stable names.

Flower's node ids are random, so nothing is ordered or sampled by them. Each new node is
asked once, by a ``query`` message, who it is; from then on it goes by its name.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.common import Message, MessageType, RecordDict, log
from flwr.server import Grid

from common.protocol import Identity
from common.versions import version_line
from server_app.errors import TooFewClients, essence
from server_app.exchange import Looks, Window

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks for answers
_LOG_INTERVAL = 10.0  # seconds between two lines about waiting
_RETRY = 10.0  # seconds until a node that cannot take part is asked again
_GRACE = 25.0  # seconds until nodes that all refused are not waited for any longer
_PORTION = 100
"""Nodes that are asked at a time; more where these keep silent for as long as
`_LOG_INTERVAL`."""


@dataclass(frozen=True, slots=True)
class Client:
    """One connected client."""

    node_id: int
    identity: Identity

    @property
    def name(self) -> str:
        """Stable name."""
        return self.identity.client


class Roster:
    """The known clients, and which of them are connected now.

    Parameters
    ----------
    minimum
        Number of clients needed at the start; later one is enough, and the quorum of
        a round decides.
    timeout
        Longest wait for them, in seconds.
    """

    def __init__(self, minimum: int, timeout: float) -> None:
        self._minimum = minimum
        self._timeout = timeout
        self._known: dict[int, Client] = {}
        self._asked: dict[str, int] = {}
        self._heard = 0.0
        self._looks = Looks()
        self._refused: dict[int, str] = {}
        self._ask_again: dict[int, float] = {}
        self._warned: set[tuple[int, str]] = set()
        self._online: set[int] = set()
        self._other_versions: set[str] = set()

    @property
    def refused(self) -> dict[str, str]:
        """Nodes that do not take part now, with the reason."""
        return {f"node {node}": reason for node, reason in self._refused.items()}

    @property
    def online(self) -> list[Client]:
        """The connected clients by name."""
        clients = (self._known[i] for i in self._online if i in self._known)
        return sorted(clients, key=lambda client: client.name)

    def refresh(self, grid: Grid) -> tuple[list[Client], bool]:
        """Look for new nodes; return the clients by name, and whether some are new.

        Waits while fewer than the minimum are there. While nobody is known yet, it also
        waits for the answer of every node that is connected, so that a run starts with
        the same clients whatever order they answer in. Nodes refused earlier are asked
        again: a name may have become free, data may have appeared, a link may be back.

        Raises
        ------
        TooFewClients
            The minimum was not reached in time.
        """
        first, known = not self._known, set(self._known)
        minimum = self._minimum if first else 1
        self._refused.clear()
        self._ask_again.clear()
        start = reported = time.monotonic()
        pause, window = _SHORTEST_PAUSE, Window(grid, _PORTION)
        while True:
            unasked = self._ask(grid, window.size)
            heard = self._hear(grid, start + self._timeout)
            window.heard(heard)
            unanswered = first and (unasked or bool(self._asked))
            enough = len(self.online) >= minimum
            now = time.monotonic()
            late = now - start > self._timeout
            if enough and (late or not unanswered):
                return self.online, bool(self._known.keys() - known)
            hopeless = self._all_refused(minimum) and now - start > _GRACE
            if late or hopeless:
                raise TooFewClients(self._too_few(minimum, now - start))
            if now - reported > _LOG_INTERVAL:
                reported = now
                log(INFO, "Waiting for clients: %s", self._status(minimum))
            pause = _SHORTEST_PAUSE if heard else min(pause * 1.5, _LONGEST_PAUSE)
            time.sleep(pause)

    def _ask(self, grid: Grid, portion: int) -> bool:
        """Ask a portion of the nodes not asked yet; return whether some are left."""
        self._online = set(grid.get_node_ids())
        pending = set(self._asked.values())
        now = time.monotonic()
        later = {node_id for node_id, when in self._ask_again.items() if when > now}
        new = self._online - self._known.keys() - pending - later
        silent = now - self._heard > _LOG_INTERVAL
        room = portion if silent else portion - len(pending)
        if not new or room <= 0:
            return bool(new)
        told = {node_id for node_id, _ in self._warned}
        chosen = sorted(new, key=lambda node_id: (node_id in told, node_id))[:room]
        messages = [
            Message(RecordDict(), node_id, MessageType.QUERY, ttl=self._timeout)
            for node_id in chosen
        ]
        pushed = list(grid.push_messages(messages))
        if len(pushed) == len(messages):  # else none was taken; they are asked again
            for message, message_id in zip(messages, pushed, strict=True):
                if message_id:
                    self._asked[message_id] = message.metadata.dst_node_id
        self._heard = time.monotonic()
        return len(chosen) < len(new)

    def _hear(self, grid: Grid, deadline: float) -> int:
        """Take in the answers that are there; return how many there were."""
        heard = 0
        for message_id, reply, problem in self._looks.over(grid, self._asked, deadline):
            node_id = self._asked.pop(message_id)
            self._heard = time.monotonic()
            heard += 1
            if reply is None:
                self._refuse(node_id, f"its answer cannot be read: {problem}")
                continue
            if reply.has_error():
                self._refuse(node_id, essence(reply.error.reason or "no reason given"))
                continue
            try:
                self._register(Client(node_id, Identity.from_records(reply.content)))
            except ValueError as error:
                self._refuse(node_id, str(error))
        return heard

    def _register(self, client: Client) -> None:
        for other in list(self._known.values()):
            if other.name != client.name:
                continue
            if other.node_id in self._online:
                self._refuse(
                    client.node_id,
                    f"its client name {client.name!r} is taken by node "
                    f"{other.node_id}: give each node its own client-name",
                )
                return
            log(
                WARNING,
                "Client %s is now node %s, it was node %s: without registered node "
                "keys nobody can tell whether it is the same",
                client.name,
                client.node_id,
                other.node_id,
            )
            del self._known[other.node_id]
        self._known[client.node_id] = client
        self._refused.pop(client.node_id, None)
        self._compare_versions(client)

    def _compare_versions(self, client: Client) -> None:
        theirs, ours = client.identity.versions, version_line()
        if theirs not in ("", ours, *self._other_versions):
            self._other_versions.add(theirs)
            log(
                WARNING,
                "Client %s has other versions than this server, so results can differ "
                "in their last bits and its messages may not be understood: it has %s; "
                "here are %s. roster.json lists those of all clients",
                client.name,
                theirs,
                ours,
            )

    def _refuse(self, node_id: int, reason: str) -> None:
        self._refused[node_id] = reason
        self._ask_again[node_id] = time.monotonic() + _RETRY
        if (node_id, reason) not in self._warned:
            self._warned.add((node_id, reason))
            log(WARNING, "Node %s does not take part: %s", node_id, reason)

    def _all_refused(self, minimum: int) -> bool:
        connected = len(self._online)
        return connected >= minimum and self._online <= self._refused.keys()

    def _status(self, minimum: int) -> str:
        status = (
            f"{len(self.online)} of {minimum} are ready, {len(self._online)} nodes are "
            f"connected, {len(self._asked)} start or load their data"
        )
        if self._refused:
            first = next(iter(self._refused.values()))
            status += f", {len(self._refused)} cannot take part, the first: {first}"
        return status

    def _too_few(self, minimum: int, seconds: float) -> str:
        reasons = "".join(f"\n  {n}: {reason}" for n, reason in self.refused.items())
        return (
            f"too few clients after {seconds:.0f} s: {len(self.online)} of {minimum} "
            f"are ready, {len(self._online)} nodes are connected, {len(self._asked)} "
            "have not answered. Start more nodes, mend what they report, lower "
            "min-available-nodes or raise wait-timeout. A node that is started but not "
            "connected says why in its own log." + reasons
        )
