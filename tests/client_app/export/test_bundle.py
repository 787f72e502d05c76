"""A whole export of a small network, and its command line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from safetensors.numpy import save_file

from client_app.assemble import Assembled, assemble
from client_app.batches import LocalData
from client_app.evaluation import evaluate
from client_app.export.__main__ import main
from client_app.export.bundle import export
from client_app.export.records import client_data, recorded_accuracy
from common.data import ClientData, data_spec, load_client_data
from common.models import Network, build_network, logits_per_exit
from common.settings import Settings
from common.sharing import initial_shared


def data(settings: Settings) -> ClientData:
    return load_client_data(settings.data, seed=0, own_path=small.data() / "client-1")


def assembled(threshold: float = 0.5) -> Assembled:
    """Return ConvNet's first two blocks with exits that are sure of themselves."""
    settings = small.settings("fedper", confidence_threshold=threshold)
    spec = data_spec(settings.data)
    whole = build_network("convnet", spec, seed=0)
    assert isinstance(whole, Network)
    exits = [exit_ for exit_ in whole.exits if isinstance(exit_, torch.nn.Linear)][:2]
    for exit_ in exits:
        exit_.weight.data *= 20
    network = Network(list(whole.blocks)[:2], exits, whole.pool)
    return Assembled(
        network=network.eval().requires_grad_(False),
        settings=settings,
        spec=spec,
        model="convnet",
        client="client-1",
        server_round=4,
        rounds_trained=3,
    )


def test_onnx_and_int8_with_their_accuracy(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra 'export'")
    pytest.importorskip("onnxruntime", reason="needs the extra 'export'")
    from onnx import load, numpy_helper

    from client_app.onnx_runner import EarlyExitRunner

    what = assembled()
    own = data(what.settings)
    test = LocalData(own.test, what.spec, what.settings.data, torch.device("cpu"))
    (batch,) = test.ordered(10)
    logits = logits_per_exit(what.network, batch.inputs)[0]
    middle = float(logits.softmax(dim=1).amax(dim=1).double().quantile(0.5))
    what = assembled(middle)  # half of the samples leave at the first exit
    manifest = export(what, tmp_path / "out", ["onnx"], int8=True, data=own)
    folder = tmp_path / "out"
    assert manifest == json.loads((folder / "manifest.json").read_text())

    # What the runner measures is what PyTorch measures.
    expected = evaluate(what.network, test, middle)
    measured = manifest["accuracy"]["float32"]
    correct, taken = expected["correct"], expected["taken"]
    assert measured["samples"] == 10
    assert measured["exits"] == [n / 10 for n in correct]  # type: ignore[union-attr]
    assert measured["early_exit"] == expected["early-correct"] / 10  # type: ignore
    assert taken == [5, 5]
    costs = np.dot(taken, manifest["macs"]) / 10  # type: ignore[arg-type]
    assert measured["macs"] == pytest.approx(costs)

    # int8 is another model, but of about the same logits, and a quarter of the size.
    images = own.train.inputs.numpy().transpose(0, 2, 3, 1)
    float32 = EarlyExitRunner(folder).logits(images)
    int8 = EarlyExitRunner(folder, precision="int8").logits(images)
    for a, b in zip(float32, int8, strict=True):
        assert 0 < np.abs(a - b).max() < 0.05 * np.abs(a).max()
    assert set(manifest["accuracy"]) == {"float32", "int8"}
    first, second = manifest["segments"]["int8"]
    size = (folder / second).stat().st_size
    assert size < 0.3 * (folder / manifest["segments"]["float32"][1]).stat().st_size

    # TensorRT takes symmetric ranges alone: every zero point is 0.
    graph = load(folder / first).graph
    constants = {constant.name: constant for constant in graph.initializer}
    points = [
        numpy_helper.to_array(constants[node.input[2]])
        for node in graph.node
        if node.op_type == "QuantizeLinear"
    ]
    assert {(point.dtype, int(point)) for point in points} == {(np.dtype("int8"), 0)}

    card = (folder / "README.md").read_text()
    for name in ("float32", "int8"):
        early = manifest["accuracy"][name]["early_exit"]
        assert f"| {100 * early:.2f} |" in card
    assert (folder / "onnx_runner.py").is_file()


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    tokenizer = tmp_path / "run" / "tokenizer.json"
    tokenizer.parent.mkdir()
    tokenizer.write_text("{}")
    export(assembled(), tmp_path / "out", ["safetensors"], tokenizer=tokenizer)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


def test_card_loads_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small.settings("fedavg", class_names=",".join("abcdefghij"))
    run = write_run(tmp_path, settings)
    what = assemble(run, "client-1")
    recorded = {"samples": 8, "exits": [0.25, 0.5, 1.0], "early_exit": 0.75, "macs": 9}
    export(what, tmp_path / "out", ["safetensors"], recorded=recorded)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "FedAvg" in card
    assert "10: a, b, c, d, e, f, g, h, i, j" in card
    assert "| 25.00 | 50.00 | 100.00 | 75.00 | 9 | 8 |" in card
    assert "times (0.00784314) plus (-1)" in card  # pixels to [-1, 1]

    monkeypatch.chdir(tmp_path / "out")
    (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    loaded = names["network"].state_dict()
    for key, value in what.network.state_dict().items():
        assert torch.equal(loaded[key], value), key


def write_run(folder: Path, settings: Settings) -> Path:
    """Write what a finished run leaves, with initial weights."""
    run = folder / "run"
    run.mkdir()
    info = {"run": "1f", "settings": settings.to_config()}
    (run / "settings.json").write_text(json.dumps(info))
    save_file(initial_shared(settings), run / "shared.safetensors")
    return run


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path, small.settings("fedavg"))
    arguments = ["--run", str(run), "--client", "a", "--output", str(tmp_path / "out")]
    main([*arguments, "--format", "safetensors"])
    assert "README.md, manifest.json, model.safetensors" in capsys.readouterr().out
    for more, reason in (
        ([], "is not empty: choose another folder"),
        (["--int8"], "needs the format onnx and the client's data"),
        (["--run", str(tmp_path)], "settings.json is missing"),
    ):
        with pytest.raises(SystemExit):
            main([*arguments, "--format", "safetensors", *more])
        assert reason in capsys.readouterr().err


def test_recorded_accuracy_is_the_last_evaluation(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text(
        "round,client,exit,accuracy,loss,examples,macs\n"
        "5,a,1,0.1,2.0,8,3\n5,a,early,0.1,,8,3.0\n"
        "9,a,1,0.25,2.0,8,3\n9,a,2,0.5,1.0,8,7\n9,a,early,0.375,,8,6.5\n"
        "9,b,1,0.9,2.0,8,3\n9,b,early,0.9,,8,3.0\n"
    )
    assert recorded_accuracy(tmp_path, "a") == {
        "samples": 8,
        "exits": [0.25, 0.5],
        "early_exit": 0.375,
        "macs": 6.5,
    }
    assert recorded_accuracy(tmp_path, "c") is None
    assert recorded_accuracy(tmp_path / "elsewhere", "a") is None


def test_a_clients_data_are_found_by_its_name(tmp_path: Path) -> None:
    what = assembled()
    own = data(what.settings)
    found = client_data(what, tmp_path)  # among one folder per client
    assert found is not None
    assert torch.equal(found.train.inputs, own.train.inputs)
    roster = {"client-1": {"num_train": 31, "num_test": 10}}
    (tmp_path / "roster.json").write_text(json.dumps(roster))
    with pytest.raises(ValueError, match=r"client-1 had 31 .* data found have 30 and"):
        client_data(what, tmp_path)


def test_a_clients_partition_is_found_by_the_roster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = assembled()
    shared = replace(what.settings.data, data_path="")
    what = replace(what, settings=replace(what.settings, data=shared))
    asked: list[Any] = []

    def load(settings: Any, **where: Any) -> ClientData:
        asked.append((where["partition_id"], where["num_partitions"]))
        return data(small.settings("fedper"))

    monkeypatch.setattr("client_app.export.records.load_client_data", load)
    counts = {"num_train": 30, "num_test": 10}

    def roster(*clients: str) -> None:
        entries = dict.fromkeys(clients, counts)
        (tmp_path / "roster.json").write_text(json.dumps(entries))

    roster("client-0", "client-1", "client-2")
    assert client_data(what, tmp_path) is not None
    assert asked == [(1, 3)]
    roster("client-1", "ward-7")  # names of the nodes' own
    assert client_data(what, tmp_path) is None
    assert client_data(what, tmp_path, partition_id=4, num_partitions=9) is not None
    assert asked[1:] == [(4, 9)]
