"""What is recorded of a phase."""

from __future__ import annotations

import json
from pathlib import Path

import toy

from common.protocol import Reply, Request
from server_app.methods import FedAvg
from server_app.results import Results


def test_telemetry_by_client_where_it_makes_sense(tmp_path: Path) -> None:
    sent = {
        "client-0": {"seconds": 1.5, "energy-joules": 30.0, "shoe-size": 44.0},
        "client-1": {"seconds": float("nan"), "energy-joules": -1.0},
        "client-2": {"cpu-seconds": 2},
    }

    def train(name: str, request: Request) -> Reply:
        reply = toy.add_number(name, request)
        return Reply(shared=reply.shared, metrics={**reply.metrics, **sent[name]})

    settings = toy.settings(output_dir=str(tmp_path), experiment="trial")
    strategy = FedAvg(settings, results=Results.open(settings))
    strategy.start(toy.grid(3, train), toy.initial(), num_rounds=1, timeout=5.0)
    record = json.loads((tmp_path / "trial" / "rounds.jsonl").read_text())
    assert record["train"]["telemetry"] == {
        "client-0": {"seconds": 1.5, "energy-joules": 30.0},
        "client-2": {"cpu-seconds": 2.0},
    }
    assert "telemetry" not in record["evaluate"]
    assert record["train"]["failures"] == {}
