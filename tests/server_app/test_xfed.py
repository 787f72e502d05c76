"""What the server tells X-FED's clients, by hand: teachers and students."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.settings import parse_settings
from server_app.methods.xfed import XFed
from server_app.strategy import Instruction

CLIENTS = [f"client-{i}" for i in range(4)]


def instructions(server_round: int = 1, **changes: Any) -> list[Instruction]:
    config = {f"xfed.{key}": value for key, value in changes.items()}
    settings = parse_settings({"method": "xfed", "num-server-rounds": 4, **config})
    strategy = XFed(settings, initial_exit={"w": np.zeros(2, np.float32)}, num_exits=3)
    strategy.exits = {
        name: {"w": np.array([i, 10 * i], np.float32)} for i, name in enumerate(CLIENTS)
    }
    # Clients 0 and 1 go one way, client 2 the other, client 3 is unrelated.
    rows = [[1, 0], [1, 0], [-1, 0], [0, 1]]
    strategy.updates = {
        name: np.array(row, np.float64) for name, row in zip(CLIENTS, rows, strict=True)
    }
    return list(strategy.instruct_training(server_round, CLIENTS))


def teachers(**changes: Any) -> list[float]:
    return [float(i.groups["teacher"]["w"][0]) for i in instructions(**changes)]


def test_teachers_of_similar_clients() -> None:
    # mu = 0.5: project 1/4 + c. Clients 0 and 1: (5/4, 5/4, -3/4, 1/4) -> (1/2, 1/2).
    # Client 2: (-3/4, -3/4, 5/4, 1/4) -> (0, 0, 1, 0). Client 3: (1/4, 1/4, 1/4, 5/4)
    # -> (0, 0, 0, 1).
    assert teachers(mu=0.5) == pytest.approx([0.5, 0.5, 2, 3])


def test_teachers_without_matching() -> None:
    assert teachers(matching="average") == pytest.approx([1.5] * 4)
    assert teachers(matching="own") == pytest.approx([0, 1, 2, 3])


def students(**changes: Any) -> list[list[int]]:
    chosen = []
    for instruction in instructions(**changes):
        value = instruction.values["students"]
        assert isinstance(value, list)
        chosen.append([int(exit_) for exit_ in value])
    return chosen


def test_students_by_conflict_or_at_random() -> None:
    # Round 1 of 4: R = 1/2, budget 2 * 4 / 2 = 4: exit 1 of all. Quadratic: R = 1/4,
    # budget 2: client 2 conflicts with two and goes first; then nobody conflicts, and
    # the first in order goes.
    assert students(schedule="linear") == [[1, 3]] * 4
    assert students(schedule="quadratic") == [[3], [1, 3], [3], [1, 3]]
    random = [
        students(schedule="quadratic", selection="random", server_round=1)
        for _ in range(2)
    ]
    assert random[0] == random[1]
    assert sorted(len(exits) for exits in random[0]) == [1, 1, 2, 2]
    settings = {"schedule": "step", "selection": "random"}
    by_round = [students(server_round=t, **settings) for t in (1, 2)]
    assert [sum(map(len, chosen)) for chosen in by_round] == [4 + 4, 4 + 8]
