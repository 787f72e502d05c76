"""Unlike devices in one federation: strong, ordinary, short of memory, and slow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import small
import torch
from memory_limit import memory_limit
from watched_run import NO_REPLY, PATIENCE, ROUND_TIMEOUT, federation

from deploy.federation import NodeSpec

pytestmark = [pytest.mark.integration, pytest.mark.faults]

Report = Callable[[str, str, float | None], None]
LIMIT = 1_200 * 2**20
"""Memory of the smallest device in bytes: SuperNode and PyTorch take about half."""

GPU = "cuda" if torch.cuda.is_available() else "cpu"


def test_every_device_takes_part_as_it_can(tmp_path: Path, report: Report) -> None:
    with memory_limit(LIMIT) as limit:
        nodes = [
            node(tmp_path, "strong", 0, "cnn-1", device=GPU),
            node(tmp_path, "ordinary", 1, "cnn-3"),
            node(tmp_path, "small", 2, "auto", prefix=limit.prefix),
            node(tmp_path, "slow", 0, "slow_model:net"),
        ]
        with federation(tmp_path, 0) as running:
            running.add_nodes(nodes)
            result = running.run(settings(), timeout=2 * PATIENCE, echo=False)
        assert limit.peak <= LIMIT
    assert result.succeeded, result.log

    folder = tmp_path / "runs" / "unlike"
    roster = json.loads((folder / "roster.json").read_text())
    models = {name: roster[name]["model"] for name in roster}
    assert models["strong"] == "cnn-1"
    assert roster["strong"]["device"].startswith(GPU)
    assert models["ordinary"] == "cnn-3"
    assert models["slow"] == "slow_model:net"
    # Without its limit it would take the largest, as the machine has memory for that.
    assert models["small"] in ("cnn-2", "cnn-3", "cnn-4", "cnn-5")
    log = (tmp_path / "logs/nodes/small.log").read_text()
    assert "node-config model = 'auto'" in log

    lines = (folder / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["train"] for line in lines]
    assert len(rounds) == 2
    for record in rounds:
        assert record["counts"]
        assert sorted(record["replied"]) == ["ordinary", "small", "strong"]
        assert record["failures"]["slow"] in NO_REPLY
        assert record["lost_states"] == {}
    waited = max(record["seconds"] for record in rounds)
    report(
        "strong, ordinary, small (control group) and slow device",
        f"networks {models}; the slow one is left out at the deadline, "
        f"{ROUND_TIMEOUT:g} s",
        waited,
    )


def node(
    workdir: Path,
    name: str,
    number: int,
    model: str,
    *,
    device: str = "cpu",
    prefix: tuple[str, ...] = (),
) -> NodeSpec:
    config = {
        "client-name": name,
        "data-path": str(small.data() / f"client-{number}"),
        "state-dir": str(workdir / "states" / name),
        "model": model,
        "device": device,
    }
    return NodeSpec(name, config, prefix=prefix)


def settings() -> dict[str, bool | int | float | str]:
    config = small.settings(
        "pfedes",
        experiment="unlike",
        image_size=64,  # so that the networks differ by more than the libraries vary
        learning_rate=0.01,
        num_server_rounds=2,
        evaluate_every=2,
        min_available_nodes=4,
        quorum=0.7,
        round_timeout=ROUND_TIMEOUT,
    ).to_config()
    del config["data-path"]
    return dict(config)
