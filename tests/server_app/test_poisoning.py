"""Updates that go too far: reported, bounded, or outvoted by Flower's strategies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import toy
from flwr.common import Context, Message
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedMedian,
    Krum,
)

from common.protocol import Reply, Request, from_record, to_record
from common.sharing import initial_shared
from server_app.matching import flatten
from server_app.methods import FedAvg, XFed
from server_app.results import Results


def play(
    folder: Path, count: int, train: toy.Train, prepare: Any = None, **changes: Any
) -> tuple[float, list[dict[str, Any]], dict[str, Any]]:
    """Return the parameters, which are all equal, the rounds and the summary."""
    run = toy.settings(output_dir=str(folder), experiment="x", **changes)
    strategy = FedAvg(run, results=Results.open(run))
    if prepare is not None:
        prepare(strategy)
    result = strategy.start(toy.grid(count, train), toy.initial(), num_rounds=1)
    state = from_record(result.arrays)
    [value] = {float(x) for part in state.values() for x in np.ravel(part)}
    lines = (folder / "x" / "rounds.jsonl").read_text().splitlines()
    summary = json.loads((folder / "x" / "summary.json").read_text())
    return value, [json.loads(line)["train"] for line in lines], summary


def test_a_bounded_update_by_hand(tmp_path: Path) -> None:
    # Client i moves each of four numbers by i, so its update has norm 2 i; the bound
    # takes clients 2 and 3 back to moves of 1. Weights are 1, 2, 3, 4.
    value, [train], summary = play(tmp_path, 4, toy.add_number, update_norm_bound=2.0)
    assert value == pytest.approx((0 * 1 + 1 * 2 + 1 * 3 + 1 * 4) / 10)
    norms = {"client-0": 0, "client-1": 2, "client-2": 4, "client-3": 6}
    assert train["update_norms"] == norms
    assert train["clipped"] == ["client-2", "client-3"]
    assert summary["clipped_updates"] == 2


def test_a_bound_that_nobody_reaches_changes_no_bit() -> None:
    runs = [small.settings("xfed", update_norm_bound=b) for b in (0.0, 1e6)]
    first, second = (small.federation(run, rounds=1)[2] for run in runs)
    assert {k: v.data for k, v in first.arrays.items()} == {
        k: v.data for k, v in second.arrays.items()
    }


@pytest.mark.parametrize("last_exit", ["own", "aggregated"])
def test_the_last_exit_of_xfed_counts_too(tmp_path: Path, last_exit: str) -> None:
    bound = 1e-3
    run = small.settings(
        "xfed",
        update_norm_bound=bound,
        output_dir=str(tmp_path),
        experiment="x",
        xfed__last_exit=last_exit,
    )
    results = Results.open(run)
    strategy, grid, _ = small.federation(run, rounds=1, results=results)
    assert isinstance(strategy, XFed)
    record = json.loads((tmp_path / "x" / "rounds.jsonl").read_text())["train"]
    for client, request, reply in small.uploads(grid):
        assert reply.shared is not None
        backbone = flatten(reply.shared) - flatten(request.shared)
        exit_ = flatten(reply.groups["exit"]) - flatten(strategy.initial_exit)
        norm = np.sqrt(backbone @ backbone + exit_ @ exit_)
        assert record["update_norms"][client] == pytest.approx(norm)
        assert record["clipped"] == ["client-0", "client-1", "client-2"]
        np.testing.assert_allclose(
            strategy.updates[client], bound / norm * exit_, atol=1e-8
        )


def far_off(name: str, request: Request) -> Reply:
    """Client 6 moves a hundred times as far as the others, who differ a little."""
    step = np.float32(100 if name == "client-6" else 1 + 0.01 * toy.number(name))
    shared = {key: np.asarray(value + step) for key, value in request.shared.items()}
    return Reply(shared=shared, metrics={"num-examples": 1})


def test_an_outlier_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    value, [train], summary = play(tmp_path, 7, far_off)
    assert value == pytest.approx((100 + 6 + 0.15) / 7)  # reported, not changed
    assert list(train["outliers"]) == ["client-6"]
    assert train["outliers"]["client-6"] > 1000
    assert summary["outliers"] == 1
    assert "update of client-6 has norm 200, the median is 2.06" in caplog.text


def test_a_method_that_shares_nothing_has_no_norms(tmp_path: Path) -> None:
    run = small.settings("standalone", output_dir=str(tmp_path), experiment="x")
    small.federation(run, rounds=1, results=Results.open(run))
    record = json.loads((tmp_path / "x" / "rounds.jsonl").read_text())
    assert "update_norms" not in record["train"]


def test_krum_outvotes_one(tmp_path: Path) -> None:
    def prepare(strategy: FedAvg) -> None:
        strategy.aggregator = Krum(num_malicious_nodes=1)

    value, [train], _ = play(tmp_path, 7, far_off, prepare)
    assert value in [pytest.approx(1 + 0.01 * i) for i in range(6)]
    assert len(train["replied"]) == 7


def test_a_robust_strategy_without_valid_replies(tmp_path: Path) -> None:
    def broken(name: str, request: Request) -> Reply:
        raise RuntimeError("broken")

    def prepare(strategy: FedAvg) -> None:
        strategy.aggregator = FedMedian()

    value, [train], _ = play(tmp_path, 3, broken, prepare)
    assert (value, train["counts"]) == (0, False)


def test_pfedes_with_the_median_of_flower() -> None:
    def poisoned(message: Message, context: Context) -> Message:
        answer = small.answer(message, context)
        if (
            message.metadata.message_type == "train"
            and context.node_config["partition-id"] == 1
        ):
            reply = Reply.from_records(answer.content)
            assert reply.shared is not None
            shared = {key: 1000 * value for key, value in reply.shared.items()}
            answer.content["arrays"] = to_record(shared)
        return answer

    run = small.settings("pfedes")
    _, grid, result = small.federation(
        run,
        rounds=1,
        handler=poisoned,
        prepare=lambda strategy: setattr(strategy, "aggregator", FedMedian()),
    )
    sent = [reply.shared or {} for _, _, reply in small.uploads(grid)]
    assert len(sent) == 3
    for key, value in from_record(result.arrays).items():
        np.testing.assert_array_equal(
            value, np.median([state[key] for state in sent], axis=0)
        )
        assert value.dtype == np.float32


def private(noise: float, clipping_norm: float) -> Any:
    def prepare(strategy: FedAvg) -> None:
        strategy.steps = DifferentialPrivacyServerSideFixedClipping(
            strategy, noise, clipping_norm, num_sampled_clients=3
        )

    return prepare


def test_pfedes_with_the_differential_privacy_of_flower() -> None:
    run = small.settings("pfedes")
    initial = flatten(initial_shared(run))

    def moved(prepare: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        _, grid, result = small.federation(run, rounds=1, prepare=prepare)
        assert len(small.uploads(grid, "evaluate")) == 3
        return flatten(from_record(result.arrays)) - initial

    plain = moved(lambda strategy: None)
    np.testing.assert_allclose(moved(private(0.0, 1e6)), plain, atol=1e-7)
    assert np.linalg.norm(moved(private(0.0, 1e-3))) <= 1e-3 * (1 + 1e-6)
    # Noise of standard deviation 2 * 1.5 / 3 on each of 153 parameters.
    noise = moved(private(2.0, 1.5))
    assert len(noise) == 153
    assert 0.8 < noise.std() < 1.25
