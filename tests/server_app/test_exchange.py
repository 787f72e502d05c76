"""Sending and taking in: who is late, slow or damaged holds up nobody else."""

from __future__ import annotations

from typing import Any

import pytest
import toy
from flwr.common import Message
from flwr.server.grid import InMemoryGrid
from local_grid import LocalGrid, break_off

from common.protocol import Request
from server_app.exchange import Window, exchange


def requests(grid: LocalGrid) -> list[Message]:
    request = Request(experiment="", run="", server_round=1, shared=toy.INITIAL)
    return [
        Message(request.to_records(), node, "train") for node in grid.get_node_ids()
    ]


def test_replies_are_fetched_one_by_one_and_not_hoarded() -> None:
    grid = toy.grid(6)
    asked: list[list[str]] = []
    pull = grid.pull_messages

    def counting(ids: Any) -> Any:
        asked.append(list(ids))
        return pull(asked[-1])

    grid.pull_messages = counting  # type: ignore[method-assign]
    replies = exchange(
        grid,
        requests(grid),
        timeout=5,
        on_failure=lambda *_: pytest.fail("no failure expected"),
    )
    next(replies)
    assert len(asked) == 1
    assert len(list(replies)) == 5
    assert all(len(ids) == 1 for ids in asked)


def test_an_upload_that_broke_off_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = toy.grid(3)
    node = grid.node("client-1")
    rest = break_off(grid, node, monkeypatch)
    failures: dict[int, str] = {}
    replies = list(
        exchange(grid, requests(grid), timeout=0.6, on_failure=failures.__setitem__)
    )
    rest.set()
    assert len(replies) == 2
    assert failures == {node: "its reply was not complete within 0.6 s"}


def test_a_slow_upload_counts_once_it_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = toy.grid(3)
    node = grid.node("client-1")
    rest = break_off(grid, node, monkeypatch)
    replies = exchange(
        grid,
        requests(grid),
        timeout=600,
        on_failure=lambda *_: pytest.fail("no failure expected"),
    )
    first = {next(replies).metadata.src_node_id for _ in range(2)}
    assert first == {grid.node("client-0"), grid.node("client-2")}
    rest.set()
    assert [reply.metadata.src_node_id for reply in replies] == [node]


def test_an_error_of_the_grid_is_not_swallowed() -> None:
    grid = toy.grid(2)

    def broken(ids: Any) -> Any:
        raise ConnectionError("SuperLink has ended the run")

    grid.pull_messages = broken  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="has ended the run"):
        list(exchange(grid, requests(grid), timeout=5, on_failure=lambda *_: None))


def test_a_reply_that_cannot_be_read_is_that_clients_failure() -> None:
    grid = toy.grid(2)
    pull, node = grid.pull_messages, sorted(grid.get_node_ids())[0]

    def damaged(ids: Any) -> Any:
        for reply in pull(ids):
            if reply.metadata.src_node_id == node:
                raise ValueError("an object is missing")
            yield reply

    grid.pull_messages = damaged  # type: ignore[method-assign]
    failures: dict[int, str] = {}
    replies = list(
        exchange(grid, requests(grid), timeout=5, on_failure=failures.__setitem__)
    )
    assert len(replies) == 1
    assert failures == {node: "its reply cannot be read: an object is missing"}


def test_a_simulation_has_twice_as_many_messages_on_their_way_as_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("time.monotonic", lambda: now)
    window = Window(object.__new__(InMemoryGrid), 1000)
    sizes = []
    # Every second look completes a period of 0.2 s.
    for replies in (1, 3, 1, 0, 8, 5, 30, 30):
        now += 0.125
        window.heard(replies)
        sizes.append(window.size)
    assert sizes == [4, 8, 8, 8, 8, 26, 26, 32]
    assert Window(object.__new__(InMemoryGrid), 3).size == 3


def test_superlink_gets_all_messages_at_once() -> None:
    grid = toy.grid(1)
    assert Window(grid, 1000).size == 1000  # type: ignore[arg-type]
