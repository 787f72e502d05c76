"""The same experiment in simulation and over gRPC ends with the same bits.

Three clients, three rounds, one seed; the federation has TLS, authenticated nodes and a
process per message, the simulation two or more workers in one process pool.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from extras import needs_datasets
from parity import CLIENTS, METHODS, assert_same_bits, run_config

from deploy.federation import LocalFederation, NodeSpec
from server_app.simulate import simulate

pytestmark = [pytest.mark.integration, needs_datasets]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    workdir = tmp_path_factory.mktemp("federation")
    nodes = [
        NodeSpec(
            name=f"node-{i}",
            config={
                "partition-id": i,
                "num-partitions": CLIENTS,
                "state-dir": str(workdir / "state" / str(i)),
            },
        )
        for i in range(CLIENTS)
    ]
    with LocalFederation(ROOT, nodes, workdir) as running:
        yield running


@pytest.mark.parametrize("method", sorted(METHODS))
def test_simulation_and_federation_agree_bit_for_bit(
    method: str, federation: LocalFederation, tmp_path: Path
) -> None:
    simulate(
        run_config(method, tmp_path / "simulation"),
        num_supernodes=CLIENTS,
        cpus=1,
        gpus=0,
    )
    result = federation.run(run_config(method, tmp_path / "federation"), timeout=600)
    assert result.succeeded
    simulated = tmp_path / "simulation" / method
    deployed = tmp_path / "federation" / method
    assert_same_bits(simulated, deployed)
    with (simulated / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["client"] for row in rows} == {f"client-{i}" for i in range(CLIENTS)}
    assert {row["round"] for row in rows} == {"2", "3"}
    summary = json.loads((deployed / "summary.json").read_text())
    assert summary["failures"] == 0
    states = sorted(federation.workdir.glob(f"state/*/{method}/*/round-000003.*"))
    assert [path.parent.name for path in states] == [
        f"client-client-{i}" for i in range(CLIENTS)
    ]
