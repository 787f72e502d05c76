"""Processes killed for real: a resumed run ends with the bits of one left in peace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from extras import needs_datasets
from safetensors.numpy import load_file

from common.presets import merge
from deploy.federation import LocalFederation, NodeSpec
from server_app.simulate import simulate

pytestmark = [pytest.mark.integration, needs_datasets]

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, ROUNDS = 2, 5
PAIRS = [
    "method=xfed",
    "partition=iid",
    "num-samples=200",
    "batch-size=16",
    f"num-server-rounds={ROUNDS}",
    "evaluate-every=5",
    "experiment=trial",
    f"min-available-nodes={CLIENTS}",
]


def run_config(folder: Path, *more: str) -> dict[str, Any]:
    places = [f"output-dir={folder}", f"state-dir={folder / 'state'}"]
    return merge(None, [*PAIRS, *places, *more])


def outcome(folder: Path) -> tuple[dict[str, bytes], str]:
    shared = load_file(folder / "trial" / "shared.safetensors")
    bits = {key: value.tobytes() for key, value in shared.items()}
    return bits, (folder / "trial" / "clients.csv").read_text()


def wait_for_rounds(folder: Path, count: int, timeout: float = 300) -> None:
    path = folder / "trial" / "rounds.jsonl"
    deadline = time.monotonic() + timeout
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline, f"no {count} rounds in {folder}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    simulate(run_config(folder), num_supernodes=CLIENTS, cpus=1, gpus=0)
    return outcome(folder)


def test_simulation_killed(tmp_path: Path, undisturbed: tuple[Any, str]) -> None:
    places = [f"state-dir={tmp_path / 'state'}", "experiment=trial"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "server_app.simulate", "xfed"),
            *("--num-supernodes", str(CLIENTS), "--output-dir", str(tmp_path)),
            *("--set", *PAIRS, *places),
        ],
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        wait_for_rounds(tmp_path, 2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "trial" / "summary.json").exists()
    again = run_config(tmp_path, "resume=true")
    simulate(again, num_supernodes=CLIENTS, cpus=1, gpus=0)
    assert outcome(tmp_path) == undisturbed


def kill_server_app(folder: Path) -> None:
    """Kill the process that holds the results folder, and nothing else."""
    holder = json.loads((folder / "trial" / ".holder.json").read_text())
    os.kill(holder["process"], signal.SIGKILL)


def test_federation_loses_server_app_superlink_and_a_node(
    tmp_path: Path, undisturbed: tuple[Any, str]
) -> None:
    folder = tmp_path / "runs"
    nodes = [
        NodeSpec(
            name=f"node-{i}", config={"partition-id": i, "num-partitions": CLIENTS}
        )
        for i in range(CLIENTS)
    ]
    with LocalFederation(ROOT, nodes, tmp_path / "federation") as federation:
        federation.start_run(run_config(folder))
        wait_for_rounds(folder, 1)
        kill_server_app(folder)
        # To SuperLink the dead run goes on for a minute; clients may train for it.
        federation.start_run(run_config(folder, "resume=true"))
        wait_for_rounds(folder, 2)
        federation.restart_superlink(signal.SIGKILL)
        federation.stop_node("node-1", signal.SIGKILL)
        federation.start_node("node-1")
        result = federation.run(run_config(folder, "resume=true"), timeout=600)
        assert result.succeeded
    assert outcome(folder) == undisturbed
    summary = json.loads((folder / "trial" / "summary.json").read_text())
    assert (summary["ended"], summary["failures"]) == ("finished", 0)
    starts = json.loads((folder / "trial" / "checkpoints" / "starts.json").read_text())
    assert starts == sorted(starts)
    assert (len(starts), starts[0]) == (3, 0)
