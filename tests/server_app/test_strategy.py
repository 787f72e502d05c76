"""The round loop over a toy federation whose results are known by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy
from flwr.common import Message
from local_grid import NEVER, LocalGrid

from common.protocol import Reply, Request, from_record, refusal
from server_app.errors import QuorumMissed, TooFewClients, essence
from server_app.methods import FedAvg
from server_app.results import Results


def run(
    grid: LocalGrid, rounds: int = 1, results: Results | None = None, **changes: Any
) -> tuple[FedAvg, Any]:
    strategy = FedAvg(toy.settings(**changes), results=results)
    result = strategy.start(
        grid, toy.initial(), num_rounds=rounds, timeout=strategy.timeout
    )
    return strategy, result


def shared(result: Any) -> float:
    state = from_record(result.arrays)
    values = {float(x) for value in state.values() for x in np.ravel(value)}
    assert len(values) == 1
    return values.pop()


def trained(grid: LocalGrid) -> list[str]:
    return [c for c, m, _ in grid.log if m.metadata.message_type == "train"]


def test_weighted_mean_by_hand() -> None:
    # Clients 0, 1, 2 send 0, 1, 2 with weights 1, 2, 3: mean 8/6 per round.
    _, result = run(toy.grid(3), rounds=2)
    assert shared(result) == pytest.approx(2 * 8 / 6)
    assert result.train_metrics_clientapp[1]["train-loss"] == 0.5


def test_accuracy_over_clients() -> None:
    # 0, 10 and 20 percent: mean 0.1, population standard deviation sqrt(2/3) * 0.1.
    _, result = run(toy.grid(3))
    metrics = result.evaluate_metrics_clientapp[1]
    assert metrics["accuracy-mean"] == pytest.approx(0.1)
    assert metrics["accuracy-std"] == pytest.approx(0.1 * (2 / 3) ** 0.5)
    assert metrics["exit-accuracy-mean"] == pytest.approx([0.1, 0.1])
    assert metrics["early-macs-mean"] == pytest.approx(0.4 * 10 + 0.6 * 30)


def test_sampling_goes_by_name_not_by_node() -> None:
    chosen = []
    for seed in range(3):  # three federations with different node ids
        grid = toy.grid(10, seed=seed)
        run(grid, rounds=4, fraction_train=0.3)
        chosen.append(trained(grid))
    assert chosen[0] == chosen[1] == chosen[2]
    assert len(chosen[0]) == 12
    assert len(set(chosen[0])) > 3  # not the same clients every round
    other = toy.grid(10)
    run(other, rounds=4, fraction_train=0.3, seed=1)
    assert trained(other) != chosen[0]


def test_clients_with_the_most_samples_are_asked_first() -> None:
    grid = toy.grid(4)  # client i has i + 1 samples to train on, each 10 to test on
    run(grid)
    order = [(m.metadata.message_type, toy.number(c)) for c, m, _ in grid.log]
    expected = [("train", i) for i in (3, 2, 1, 0)]
    assert [o for o in order if o[0] != "query"] == [
        *expected,
        *(("evaluate", i) for i in range(4)),
    ]


def test_same_bits_whatever_the_order_of_arrival() -> None:
    def noisy(name: str, request: Request) -> Reply:
        rng = np.random.default_rng(toy.number(name))
        scale = 10.0 ** rng.integers(-3, 4)
        shared = {
            key: np.asarray(value + scale * rng.normal(size=value.shape), np.float32)
            for key, value in request.shared.items()
        }
        return Reply(shared=shared, metrics={"num-examples": 3 + toy.number(name)})

    states = []
    for order in ("sent", "reversed", "random"):
        _, result = run(toy.grid(9, noisy, order=order), rounds=3)
        states.append(from_record(result.arrays))
    for state in states[1:]:
        for key, value in states[0].items():
            np.testing.assert_array_equal(state[key], value)


def bad(kind: str) -> toy.Train:
    def train(name: str, request: Request) -> Any:
        reply = toy.add_number(name, request)
        if name != "client-1":
            return reply
        good = dict(reply.shared or {})
        metrics = dict(reply.metrics)
        if kind == "raises":
            raise RuntimeError("out of memory")
        if kind == "silent":
            return NEVER
        if kind == "nan":
            good["w"] = np.full(3, np.nan, np.float32)
        elif kind == "shape":
            good["w"] = np.zeros(4, np.float32)
        elif kind == "dtype":
            good["w"] = np.zeros(3, np.float64)
        elif kind == "keys":
            good["exits.0.weight"] = good.pop("w")
        elif kind == "zero":
            metrics["num-examples"] = 0
        elif kind == "absurd":
            metrics["num-examples"] = 2**50
        elif kind == "loss":
            metrics["train-loss"] = float("nan")
        elif kind == "no arrays":
            return Reply(metrics=metrics)
        elif kind == "private":
            return Reply(shared=good, metrics=metrics, groups={"exit": good})
        return Reply(shared=good, metrics=metrics)

    return train


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("raises", "out of memory"),
        ("silent", "no reply within 0.3 s"),
        ("nan", "w holds NaN"),
        ("shape", "w has shape"),
        ("dtype", "w has dtype float64"),
        ("keys", "missing w"),
        ("zero", "num-examples = 0"),
        ("absurd", "num-examples = 1125899906842624"),
        ("no arrays", "no shared parameters"),
        ("private", r"groups \['exit'\]"),
        ("loss", "train-loss = nan"),
    ],
)
def test_one_bad_client_never_ends_the_run(
    tmp_path: Path, kind: str, reason: str
) -> None:
    results = Results.open(toy.settings(output_dir=str(tmp_path), experiment="x"))
    grid = toy.grid(3, bad(kind))
    _, result = run(grid, results=results, round_timeout=0.3)
    # Clients 0 and 2 remain, with weights 1 and 3.
    assert shared(result) == pytest.approx(6 / 4)
    record = json.loads((tmp_path / "x" / "rounds.jsonl").read_text())
    assert list(record["train"]["failures"]) == ["client-1"]
    assert record["train"]["replied"] == ["client-0", "client-2"]
    assert __import__("re").search(reason, record["train"]["failures"]["client-1"])
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert summary["failures"] == 1
    assert summary["skipped_rounds"] == 0


def fails_in(*rounds: int) -> toy.Train:
    def train(name: str, request: Request) -> Reply:
        if request.server_round in rounds and name != "client-2":
            raise RuntimeError("broken")
        return toy.add_number(name, request)

    return train


def test_a_round_without_quorum_keeps_the_model() -> None:
    _, result = run(toy.grid(3, fails_in(1, 3)), rounds=3, quorum=0.5)
    assert shared(result) == pytest.approx(8 / 6)  # round 2 alone
    assert list(result.train_metrics_clientapp) == [2]


def test_failed_rounds_in_a_row_end_the_run() -> None:
    with pytest.raises(QuorumMissed, match="2 rounds in a row had no quorum"):
        run(toy.grid(3, fails_in(2, 3)), rounds=5, quorum=0.5, max_failed_rounds=2)
    run(toy.grid(3, fails_in(2, 4)), rounds=5, quorum=0.5, max_failed_rounds=2)


def test_too_few_clients_is_a_clear_failure() -> None:
    with pytest.raises(TooFewClients, match="3 of 4 are ready"):
        run(toy.grid(3), min_available_nodes=4, wait_timeout=0.3)


def test_a_name_taken_twice_is_refused() -> None:
    nodes = {"a": {"client-name": "client-1"}, "b": {"client-name": "client-1"}}
    grid = LocalGrid(nodes, toy.handler())
    with pytest.raises(TooFewClients, match="'client-1' is taken"):
        run(grid, min_available_nodes=2, wait_timeout=0.3)


def test_a_client_that_leaves_and_comes_back() -> None:
    grid = toy.grid(3)
    node = grid.node("client-2")

    def absent(name: str, request: Request) -> Reply:
        if name == "client-0":
            (grid.offline.add if request.server_round == 1 else grid.offline.discard)(
                node
            )
        return toy.add_number(name, request)

    grid._handler = toy.handler(absent)
    run(grid, rounds=3)
    by_round = [
        (c, Request.from_records(m.content).server_round)
        for c, m, _ in grid.log
        if m.metadata.message_type == "train"
    ]
    assert [c for c, t in by_round if t == 2] == ["client-1", "client-0"]
    assert [c for c, t in by_round if t == 3] == ["client-2", "client-1", "client-0"]


def test_evaluation_every_k_rounds_and_at_the_end() -> None:
    _, result = run(toy.grid(3), rounds=5, evaluate_every=2)
    assert list(result.evaluate_metrics_clientapp) == [2, 4, 5]
    _, result = run(toy.grid(3), rounds=2, fraction_evaluate=0.0)
    assert result.evaluate_metrics_clientapp == {}


def test_all_clients_are_evaluated_though_few_train() -> None:
    grid = toy.grid(10)
    run(grid, fraction_train=0.2)
    evaluated = [c for c, m, _ in grid.log if m.metadata.message_type == "evaluate"]
    assert len(trained(grid)) == 2
    assert sorted(evaluated) == [f"client-{i}" for i in range(10)]


@pytest.mark.parametrize(
    "changes",
    [
        {"correct": [11, 0]},
        {"correct": [1]},
        {"taken": [0, 0]},
        {"taken": [10, 10]},
        {"loss": [float("nan"), 0.0]},
        {"early-correct": -1},
        {"num-examples": 0},
    ],
)
def test_an_impossible_evaluation_is_refused(changes: dict[str, Any]) -> None:
    def boastful(name: str, request: Request) -> Reply:
        reply = toy.evaluation(name, request)
        if name == "client-2":
            reply = Reply(metrics={**reply.metrics, **changes})
        return reply

    grid = toy.grid(3)
    grid._handler = toy.handler(evaluate=boastful)
    _, result = run(grid)
    metrics = result.evaluate_metrics_clientapp[1]
    assert metrics["accuracy-mean"] == pytest.approx(0.05)
    assert metrics["early-macs-mean"] == pytest.approx(22)


def test_a_run_that_fails_leaves_what_it_has(tmp_path: Path) -> None:
    settings = toy.settings(output_dir=str(tmp_path), experiment="x")
    with pytest.raises(QuorumMissed):
        run(
            toy.grid(3, fails_in(2, 3)),
            rounds=5,
            results=Results.open(settings),
            quorum=0.5,
            max_failed_rounds=2,
        )
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert summary["ended"].startswith("QuorumMissed: 2 rounds in a row")
    assert summary["rounds"] == 3
    from safetensors.numpy import load_file

    stored = load_file(tmp_path / "x" / "shared.safetensors")
    np.testing.assert_allclose(stored["w"], 8 / 6)


def test_a_client_that_leaves_for_good_does_not_end_the_run() -> None:
    grid = toy.grid(3)

    def leaves(name: str, request: Request) -> Reply:
        grid.offline.add(grid.node("client-2"))
        return toy.add_number(name, request)

    grid._handler = toy.handler(leaves)
    _, result = run(grid, rounds=3, min_available_nodes=3, wait_timeout=0.3)
    assert list(result.train_metrics_clientapp) == [1, 2, 3]


def test_central_evaluation_is_called() -> None:
    seen = []
    strategy = FedAvg(toy.settings())
    strategy.start(
        toy.grid(2),
        toy.initial(),
        num_rounds=2,
        evaluate_fn=lambda t, arrays: seen.append((t, len(arrays))),  # type: ignore
    )
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_results_folder(tmp_path: Path) -> None:
    settings = toy.settings(output_dir=str(tmp_path), experiment="trial")
    results = Results.open(settings)
    _, result = run(toy.grid(3), rounds=2, results=results)
    folder = tmp_path / "trial"
    assert json.loads((folder / "settings.json").read_text())["versions"]["flwr"]
    rounds = [json.loads(r) for r in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in rounds] == [1, 2]
    # Four float32 parameters each way.
    assert rounds[0]["train"]["down_bytes_per_client"] == 16
    assert rounds[0]["train"]["up_bytes_per_client"] == 16
    assert rounds[0]["evaluate"]["up_bytes_per_client"] == 0
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3 * 3  # rounds, clients, two exits and the early one
    assert {row["exit"] for row in rows} == {"1", "2", "early"}
    from safetensors.numpy import load_file

    stored = load_file(folder / "shared.safetensors")
    for key, value in from_record(result.arrays).items():
        np.testing.assert_array_equal(stored[key], value)
    with pytest.raises(ValueError, match="already holds the results"):
        Results.open(settings)
    roster = json.loads((folder / "roster.json").read_text())
    assert list(roster) == ["client-0", "client-1", "client-2"]
    assert roster["client-1"]["num_train"] == 2
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["ended"], summary["rounds"]) == ("finished", 2)


def refusing(*names: str) -> Any:
    """Clients of which some cannot take part."""
    ordinary = toy.handler()

    def handle(message: Message, context: Any) -> Message:
        name = str(context.node_config["client-name"])
        if message.metadata.message_type == "query" and name in names:
            return Message(refusal(f"{name}: no data in /data"), reply_to=message)
        return ordinary(message, context)

    return handle


def test_who_cannot_take_part_is_recorded_with_the_reason(tmp_path: Path) -> None:
    results = Results.open(toy.settings(output_dir=str(tmp_path), experiment="x"))
    grid = toy.grid(3)
    grid._handler = refusing("client-1")
    run(grid, results=results)
    record = json.loads((tmp_path / "x" / "rounds.jsonl").read_text())
    assert list(record["train"]["refused_nodes"].values()) == [
        "client-1: no data in /data"
    ]


def test_nobody_waits_for_nodes_that_all_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server_app.roster._GRACE", 0.2)
    grid = toy.grid(2)
    grid._handler = refusing("client-0", "client-1")
    with pytest.raises(TooFewClients, match="client-0: no data in /data"):
        run(grid, wait_timeout=1e6)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("<class 'a.b.StateError'>:<'labels\n  gone'>", "StateError: labels gone"),
        (
            'Traceback\n  File "x", line 1\n\x1b[36mValueError: no data\x1b[0m\n',
            "ValueError: no data",
        ),
        ("out of memory", "out of memory"),
        ("Error: Message Unavailable - may have expired", "no answer in time"),
        (
            "Error: Node Unavailable — The destination node failed to report a "
            "heartbeat within 2 × its expected interval.",
            "not reachable: its node sent no sign of life for a minute",
        ),
        (
            "An exception was raised when attempting to load `ClientApp`",
            "the app does not start there: a package is missing or of another version; "
            "the log of its node tells more",
        ),
        ("  ", "no reason given"),
    ],
)
def test_the_essence_of_a_failure(reason: str, expected: str) -> None:
    assert essence(reason) == expected
