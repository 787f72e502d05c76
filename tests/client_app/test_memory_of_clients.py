"""Clients with little memory: smaller networks, or batches in portions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_models
import pytest
import small
from flwr.common import Context, Message, MessageType, RecordDict

from client_app.footprint import SHARE
from client_app.methods import TRAINERS
from client_app.node import open_client
from client_app.trainer import Client, Trainer
from common.protocol import Request
from common.schema import SettingsError
from common.settings import Settings
from common.sharing import initial_shared
from common.state import State
from server_app.results import Results

Limit = Callable[[float], None]
PLENTY = 2**40


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Sets the free memory, so many bytes that may be planned with."""

    def set_to(usable: float) -> None:
        free = int(usable / SHARE) + 2
        monkeypatch.setattr("client_app.trainer.free_memory", lambda device: free)

    set_to(PLENTY)
    return set_to


def context(**node_config: Any) -> Context:
    config = {"partition-id": 1, "num-partitions": 3}
    config |= {k.replace("_", "-"): v for k, v in node_config.items()}
    return Context(5, 1, config, RecordDict(), {})


def client_of(settings: Settings, model: str = "") -> Client:
    return open_client(settings, context(**({"model": model} if model else {})))


def needed(settings: Settings, model: str, samples: int) -> int:
    """What a client that has not started yet reckons with, in bytes."""
    plan = TRAINERS[settings.method](settings, client_of(settings, model)).first_plan()
    assert plan is not None
    return plan.needed(samples)


def train(settings: Settings, model: str = "") -> tuple[State, Any, Trainer]:
    trainer = TRAINERS[settings.method](settings, client_of(settings, model))
    groups: dict[str, State] = {}
    shared = initial_shared(settings)
    values: dict[str, Any] = {}
    if settings.method == "xfed":
        network = Trainer.network(trainer, request(shared), None)
        names = ("exits.2.weight", "exits.2.bias")
        last = {n: network.state_dict()[n].numpy().copy() for n in names}
        groups, values = {"teacher": last}, {"students": [1, 2, 3]}
    reply, state = trainer.train(request(shared, groups=groups, values=values), None)
    return {**reply.shared, **state.arrays}, reply.metrics, trainer


def request(shared: State, **options: Any) -> Request:
    return Request(experiment="", run="r", server_round=1, shared=shared, **options)


@pytest.mark.parametrize("method", ["pfedes", "standalone", "xfed", "fedavg"])
def test_little_memory_changes_no_more_than_rounding(
    method: str, limit: Limit, caplog: pytest.LogCaptureFixture
) -> None:
    settings = small.settings(method)
    whole, told, trainer = train(settings)
    assert trainer.plan is not None
    assert trainer.plan.whole
    limit(trainer.plan.needed(3))
    split, split_told, trainer = train(settings)
    assert trainer.plan is not None
    assert trainer.plan.portion == 3
    assert whole.keys() == split.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(value, split[name], rtol=1e-3, atol=1e-5)
    assert split_told["train-loss"] == pytest.approx(told["train-loss"], rel=1e-4)
    assert trainer.inference_batch == 3


def test_evaluation_works_in_portions_too(limit: Limit) -> None:
    settings = small.settings("standalone")
    trainer = TRAINERS["standalone"](settings, client_of(settings))
    whole = trainer.evaluate(request({}), None).metrics
    limit(trainer.plan.needed(2) if trainer.plan else 0)
    trainer = TRAINERS["standalone"](settings, client_of(settings))
    split = trainer.evaluate(request({}), None).metrics
    assert trainer.inference_batch == 2
    assert split["correct"] == whole["correct"]
    assert split["loss"] == pytest.approx(whole["loss"], rel=1e-5)


def test_batch_norm_needs_the_whole_batch(limit: Limit) -> None:
    settings = small.settings("pfedes", model=f"{own_models.__name__}:batch_norm_net")
    _, _, trainer = train(settings)
    limit(trainer.plan.needed(5) if trainer.plan else 0)
    with pytest.raises(SettingsError, match="lower batch-size to at most 5"):
        train(settings)


def ask(settings: Settings, context: Context) -> RecordDict:
    context.run_config = settings.to_config()
    message = Message(RecordDict(), dst_node_id=1, message_type=MessageType.QUERY)
    return small.answer(message, context).content


def test_a_client_without_memory_says_so_when_asked(limit: Limit) -> None:
    settings = small.settings("pfedes", model="cnn-5")
    limit(needed(settings, "cnn-5", 1) - 2**20)
    answer = str(ask(settings, context()))
    assert "client-1: " in answer or "partition 1: " in answer
    assert "'cnn-5' needs" in answer
    assert "choose a smaller model" in answer


def test_auto_takes_the_largest_network_that_fits(limit: Limit) -> None:
    settings = small.settings("pfedes")
    assert client_of(settings, "auto").model == "cnn-1"
    limit(needed(settings, "cnn-3", 8))
    assert client_of(settings, "auto").model == "cnn-3"
    limit(needed(settings, "cnn-3", 8) - 2**20)
    assert client_of(settings, "auto").model == "cnn-4"
    limit(0)
    assert client_of(settings, "auto").model == "cnn-5"  # and its query is refused


def test_auto_stays_with_its_choice(limit: Limit, tmp_path: Path) -> None:
    folder = str(tmp_path)
    settings = small.settings(
        "pfedes", experiment="x", state_dir=folder, output_dir=folder
    )
    node = context(model="auto")
    limit(needed(settings, "cnn-4", 8))
    assert "cnn-4" in str(ask(settings, node))
    limit(PLENTY)
    assert open_client(settings, node).model == "cnn-4"
    # Another process, which knows the personal state alone.
    assert open_client(settings, context(model="auto")).model == "cnn-1"
    nodes = {
        f"client-{i}": {"partition-id": i, "num-partitions": 3, "model": "auto"}
        for i in range(3)
    }
    limit(needed(settings, "cnn-4", 8))
    small.federation(settings, 1, nodes=nodes, results=Results.open(settings))
    limit(PLENTY)
    assert open_client(settings, context(model="auto")).model == "cnn-4"


def test_auto_is_for_private_networks(limit: Limit) -> None:
    with pytest.raises(SettingsError, match="averages networks"):
        client_of(small.settings("xfed"), "auto")
