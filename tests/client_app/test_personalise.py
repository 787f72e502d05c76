from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from flwr.common import Context, RecordDict
from safetensors.numpy import save_file
from torch import nn

from client_app.assemble import assemble
from client_app.evaluation import evaluate
from client_app.methods.pfedes import PFedES
from client_app.methods.standalone import Standalone
from client_app.node import open_client
from client_app.personalise import (
    Personalised,
    main,
    personal_layers,
    personalise,
    report,
    write_run,
)
from client_app.trainer import Client, Trainer
from common.models import Network, build_network
from common.protocol import Request
from common.settings import FedPerSettings, Settings, StandaloneSettings
from common.sharing import initial_shared
from common.state import State


def new_client(settings: Settings, **node: str) -> Client:
    config: dict[str, Any] = {
        "client-name": "new",
        "data-path": str(small.data() / "client-2"),
    }
    return open_client(settings, Context(0, 0, config | node, RecordDict(), {}))


def some_shared(settings: Settings) -> State:
    """Shared parameters that differ from the initial ones."""
    rng = np.random.default_rng(3)
    state = initial_shared(settings)
    return {
        key: (value + 0.01 * rng.standard_normal(value.shape)).astype(value.dtype)
        for key, value in state.items()
    }


def request(shared: State) -> Request:
    return Request(experiment="", run="", server_round=1, shared=shared)


@pytest.mark.parametrize("method", ["fedper", "xfed", "fedavg"])
def test_only_the_exits_are_trained(method: str, tmp_path: Path) -> None:
    settings = small.settings(method, num_server_rounds=7)
    shared = some_shared(settings)
    client = new_client(settings)
    result = personalise(settings, shared, client, epochs=3)
    start = build_network("convnet", client.data.spec, seed=0).state_dict()
    for key, value in result.network.state_dict().items():
        before = shared[key] if key in shared else start[key].numpy()
        assert np.array_equal(value.cpu(), before) != key.startswith("exits."), key

    # The folder is that of a run with this client; its network is the one trained.
    write_run(result, tmp_path, tmp_path / "trial", "1f")
    found = assemble(tmp_path, "new")
    assert (found.rounds_trained, found.server_round) == (1, 7)
    for key, value in result.network.state_dict().items():
        assert torch.equal(found.network.state_dict()[key], value), key
    with (tmp_path / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["exit"] for row in rows] == ["1", "2", "3", "early"]
    correct = [float(row["accuracy"]) * 10 for row in rows[:3]]
    assert correct == pytest.approx(result.metrics["correct"])


def test_training_helps_and_stands_beside_training_alone() -> None:
    settings = small.settings("fedper", learning_rate=0.02)
    client = new_client(settings)
    shared = some_shared(settings)
    few = personalise(settings, shared, client, epochs=1)
    many = personalise(settings, shared, client, epochs=30)
    data = Trainer(settings, client).training_data
    before = evaluate(few.network, data, 0.5)["loss"]
    after = evaluate(many.network, data, 0.5)["loss"]
    assert max(after) < min(before)  # type: ignore[type-var, arg-type]

    # Alone is what the standalone method does in one round of as many epochs.
    training = replace(settings.training, local_epochs=30)
    alone = replace(
        settings,
        method="standalone",
        method_settings=StandaloneSettings(),
        training=training,
    )
    trainer = Standalone(alone, client)
    _, state = trainer.train(request({}), None)
    expected = trainer.evaluate(request({}), state).metrics
    assert many.alone["correct"] == expected["correct"]
    assert many.alone["loss"] == expected["loss"]


def test_pfedes_trains_a_private_network_beside_the_frozen_extractor(
    tmp_path: Path,
) -> None:
    settings = small.settings("pfedes", local_epochs=2)
    shared = some_shared(settings)
    client = new_client(settings, model="cnn-5")
    result = personalise(settings, shared, client, epochs=2)
    # Step 1 of the method's own first round.
    _, state = PFedES(settings, client).train(request(shared), None)
    expected = state.part("model")
    assert expected.keys() == result.network.state_dict().keys()
    for key, value in result.network.state_dict().items():
        assert np.array_equal(value.cpu(), expected[key]), key
    write_run(result, tmp_path, tmp_path / "trial", "1f")
    assert assemble(tmp_path, "new").model == "cnn-5"


def test_standalone_has_nothing_to_start_from() -> None:
    settings = small.settings("standalone")
    with pytest.raises(ValueError, match="shares nothing that a new client"):
        personalise(settings, {}, new_client(settings), epochs=1)


def test_personal_batch_norm_is_trained_with_the_exits() -> None:
    network = Network(
        [nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))],
        [nn.Linear(2, 3)],
        nn.Flatten(),
    )
    conv = {"blocks.0.0.weight", "blocks.0.0.bias"}
    norm = {f"blocks.0.1.{k}" for k in ("weight", "bias", "running_mean")}
    assert list(personal_layers(network, conv | norm)) == [network.exits[0]]
    assert list(personal_layers(network, conv)) == [
        network.blocks[0][1],  # type: ignore[index]
        network.exits[0],
    ]


def test_report() -> None:
    def metrics(correct: list[int], early: int) -> dict[str, Any]:
        return {"num-examples": 8, "correct": correct, "early-correct": early}

    settings = small.settings("fedper")
    client = new_client(settings)
    result = Personalised(
        settings, client, nn.Identity(), metrics([2, 4], 3), metrics([1, 0], 8)
    )
    assert [line.split() for line in report(result).splitlines()[1:]] == [
        ["personalised", "25.00", "50.00", "37.50", "37.50"],
        ["alone", "12.50", "0.00", "6.25", "100.00"],
    ]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = small.settings("fedavg", experiment="trial")
    run = tmp_path / "run"
    run.mkdir()
    save_file(initial_shared(settings), run / "shared.safetensors")
    info = {"run": "1f", "settings": settings.to_config()}
    (run / "settings.json").write_text(json.dumps(info))
    arguments = ["--run", str(run), "--data", str(small.data() / "client-2")]
    output = ["--output", str(tmp_path / "out"), "--epochs", "1"]
    main([*arguments, *output, "learning-rate=0.01", "batch-size=8"])
    printed = capsys.readouterr().out
    assert "client-2: 30 training and 10 test samples, convnet, 1 epochs" in printed
    found = assemble(tmp_path / "out", "client-2")
    # FedAvg's network with personal exits is FedPer's.
    assert isinstance(found.settings.method_settings, FedPerSettings)
    assert found.settings.training.learning_rate == 0.01
    assert found.settings.training.batch_size == 8
    for more, reason in (
        (output, "is not empty: choose another folder"),
        (["--epochs", "0"], "--epochs 0: must be at least 1"),
        (["learning-rate=-1"], "learning-rate = -1"),
        (["--model", "cnn-1"], "averages networks"),
    ):
        with pytest.raises(SystemExit):
            main([*arguments, *more])
        assert reason in capsys.readouterr().err
