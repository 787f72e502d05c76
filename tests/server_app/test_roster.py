"""Who takes part, and how nodes are asked."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import toy
from flwr.common import Context, Message
from local_grid import NEVER, break_off

from server_app.roster import Roster


def names(roster: Roster) -> list[str]:
    return [client.name for client in roster.online]


def test_nodes_are_asked_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.roster._PORTION", 2)
    grid, portions = toy.grid(5), []
    push = grid.push_messages

    def counting(messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        portions.append(len(messages))
        return push(messages)

    monkeypatch.setattr(grid, "push_messages", counting)
    roster = Roster(minimum=2, timeout=600)
    clients, news = roster.refresh(grid)
    # All that are connected are waited for, though two would do.
    assert [client.name for client in clients] == [f"client-{i}" for i in range(5)]
    assert news
    assert portions == [2, 2, 1]


def test_silent_nodes_do_not_keep_others_from_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server_app.roster._PORTION", 1)
    monkeypatch.setattr("server_app.roster._LOG_INTERVAL", 0.05)
    grid = toy.grid(3)
    ordinary, silent = toy.handler(), min(grid.contexts)  # it is asked first

    def handle(message: Message, context: Context) -> Message:
        if message.metadata.dst_node_id == silent:
            return NEVER  # type: ignore[return-value]
        return ordinary(message, context)

    grid._handler = handle
    roster = Roster(minimum=2, timeout=2)
    roster.refresh(grid)
    assert sorted(names(roster)) == sorted(
        label for node, label in grid.labels.items() if node != silent
    )


def test_an_answer_that_broke_off_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = toy.grid(3)
    rest = break_off(grid, grid.node("client-1"), monkeypatch)
    roster = Roster(minimum=2, timeout=1)
    roster.refresh(grid)
    assert names(roster) == ["client-0", "client-2"]
    rest.set()


def test_a_node_that_was_unreachable_is_asked_again_in_the_same_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server_app.roster._RETRY", 0.1)
    grid = toy.grid(2)
    ordinary, asked = toy.handler(), []

    def handle(message: Message, context: Context) -> Message:
        asked.append(message.metadata.dst_node_id)
        if asked.count(asked[-1]) < 3 and asked[-1] == min(grid.contexts):
            raise RuntimeError("its node sent no sign of life")
        return ordinary(message, context)

    grid._handler = handle
    roster = Roster(minimum=2, timeout=60)
    roster.refresh(grid)
    assert names(roster) == ["client-0", "client-1"]
    assert asked.count(min(grid.contexts)) == 3
    assert roster.refused == {}
