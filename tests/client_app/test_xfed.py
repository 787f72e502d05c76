"""X-FED with real clients: students, updates, and what its settings change."""

from __future__ import annotations

import numpy as np
import pytest
import small
import torch

from client_app.methods import TRAINERS
from client_app.trainer import Client
from common.data import load_client_data
from common.models import build_network
from common.protocol import Request, from_record
from common.sharing import initial_shared
from common.state import read_state
from server_app.matching import flatten
from server_app.methods import XFed

LAST_EXIT = ("exits.2.weight", "exits.2.bias")


def test_xfed_students_grow_and_only_they_change() -> None:
    # m = 3, T = 8: share min(t/2, 2), so with 3 clients 2 exits in round 1 (half up).
    run = small.settings("xfed", xfed__schedule="linear")
    _, grid, _ = small.federation(run, rounds=8)
    students = {
        t: sorted(
            tuple(request.values["students"])  # type: ignore[arg-type]
            for _, request, _ in small.uploads(grid)
            if request.server_round == t
        )
        for t in range(1, 9)
    }
    assert students[1] == [(1, 3), (1, 3), (3,)]
    assert students[2] == [(1, 3)] * 3
    assert students[3] == [(1, 2, 3), (1, 2, 3), (1, 3)]
    assert all(students[t] == [(1, 2, 3)] * 3 for t in range(4, 9))


@pytest.mark.parametrize("students", [[3], [1, 3], [1, 2, 3]])
def test_xfed_exits_that_are_no_students_keep_their_bits(students: list[int]) -> None:
    run = small.settings("xfed", weight_decay=0.1)
    data = load_client_data(run.data, seed=0, partition_id=0, num_partitions=3)
    network = build_network("convnet", data.spec, seed=0)
    initial = read_state(network, network.state_dict())
    request = Request(
        experiment="",
        run="",
        server_round=1,
        shared=initial_shared(run),
        groups={"teacher": {key: initial[key] for key in LAST_EXIT}},
        values={"students": students},
    )
    client = Client("client-0", "convnet", data, torch.device("cpu"))
    _, state = TRAINERS["xfed"](run, client).train(request, None)
    model = state.part("model")
    for exit_ in (1, 2, 3):
        key = f"exits.{exit_ - 1}.weight"
        changed = not np.array_equal(model[key], initial[key])
        assert changed == (exit_ in students)
        assert (key in state.part("momentum.network")) == changed


@pytest.mark.parametrize("last_exit", ["own", "aggregated"])
def test_xfed_update_is_measured_from_where_the_exit_started(last_exit: str) -> None:
    run = small.settings("xfed", xfed__last_exit=last_exit)
    strategy, grid, _ = small.federation(run, rounds=3)
    assert isinstance(strategy, XFed)
    by_round = {
        (client, request.server_round): (request, reply)
        for client, request, reply in small.uploads(grid)
    }
    for client in ("client-0", "client-1", "client-2"):
        request, reply = by_round[client, 3]
        start = (
            by_round[client, 2][1].groups["exit"]
            if last_exit == "own"
            else request.groups["teacher"]
        )
        expected = flatten(reply.groups["exit"]) - flatten(start)
        np.testing.assert_array_equal(strategy.updates[client], expected)
        assert small.equal(strategy.exits[client], reply.groups["exit"])


def test_xfed_settings_change_the_training() -> None:
    results = []
    for changes in (
        {},
        {"xfed__teacher": "live", "xfed__last_exit": "aggregated"},
        {"xfed__last_exit": "aggregated"},
        {"xfed__kd_weight": "reference"},
        {"xfed__lambda": 0.0},
        {"xfed__schedule": "linear"},
        {"xfed__mu": 5.0},
    ):
        _, _, result = small.federation(small.settings("xfed", **changes), rounds=4)
        results.append(from_record(result.arrays)["blocks.0.0.weight"].tobytes())
    assert len(set(results)) == len(results)


def test_xfed_evaluates_the_teacher_where_asked() -> None:
    _, own, _ = small.federation(small.settings("xfed", xfed__mu=5.0))
    _, aggregated, _ = small.federation(
        small.settings("xfed", xfed__mu=5.0, xfed__evaluate_exit="aggregated")
    )
    assert all("teacher" not in r.groups for _, r, _ in small.uploads(own, "evaluate"))
    a = [reply.metrics["loss"] for _, _, reply in small.uploads(own, "evaluate")]
    b = [reply.metrics["loss"] for _, _, reply in small.uploads(aggregated, "evaluate")]
    assert all(
        "teacher" in r.groups for _, r, _ in small.uploads(aggregated, "evaluate")
    )
    for own_loss, teacher_loss in zip(a[3:], b[3:], strict=True):
        assert own_loss[:2] == teacher_loss[:2]  # type: ignore[index]
        assert own_loss[2] != teacher_loss[2]  # type: ignore[index]
