"""Whole simulations: beside a research script, and from 10 to 1,000 clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.process_watch import ProcessWatch
from benchmarks.records import Figure
from benchmarks.speed.federation_data import settings_for, write_clients
from benchmarks.speed.measure import timed
from common.presets import merge
from server_app.simulate import APP, simulate


def whole(rounds: int = 40) -> list[Figure]:
    """Compare X-FED on a federation like the benchmark one with a research script."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_clients(Path(temporary, "data"), 20)
        config = merge(
            None,
            settings_for(
                folder,
                method="xfed",
                model="convnet",
                num_server_rounds=rounds,
                fraction_train=0.5,
                evaluate_every=2,
                min_available_nodes=20,
                output_dir=f"{temporary}/runs",
            ),
        )
        ours = timed(lambda: simulate(config, num_supernodes=20, cpus=1, gpus=0))
        theirs = timed(
            lambda: subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.speed.plain_run",
                    folder,
                    str(rounds),
                ],
                check=True,
                cwd=APP,
            )
        )
    what = f"simulation/X-FED, {rounds} rounds"
    return [
        Figure(name=f"{what}/app", value=ours, unit="s"),
        Figure(name=f"{what}/research script", value=theirs, unit="s"),
        Figure(
            name=f"{what}/app : research script",
            value=ours / theirs,
            unit="x",
            target="at most 0.6",
            met=ours / theirs <= 0.6,
        ),
    ]


def scaling(rounds: int = 20, trained: int = 10) -> list[Figure]:
    """Compare 10 and 1,000 clients of which equally many train in a round."""
    seconds, memory = {}, {}
    for clients in (10, 1000):
        with tempfile.TemporaryDirectory() as temporary:
            folder = write_clients(Path(temporary, "data"), clients, (64, 16))
            config = merge(
                None,
                settings_for(
                    folder,
                    method="xfed",
                    num_server_rounds=rounds,
                    fraction_train=trained / clients,
                    fraction_evaluate=trained / clients,
                    evaluate_every=5,
                    min_available_nodes=clients,
                    checkpoint_every=0,
                    output_dir=f"{temporary}/runs",
                ),
            )
            with ProcessWatch(rounds=lambda: 0) as watch:
                seconds[clients] = timed(
                    lambda config=config, clients=clients: simulate(  # type: ignore[misc]
                        config, num_supernodes=clients, cpus=1, gpus=0
                    )
                )
            memory[clients] = max(s.private() for s in watch.samples) / 2**20
    growth = seconds[1000] / seconds[10]
    what = f"scaling/{trained} clients train in each of {rounds} rounds"
    return [
        Figure(name=f"{what}/of 10", value=seconds[10], unit="s"),
        Figure(name=f"{what}/of 1,000", value=seconds[1000], unit="s"),
        Figure(
            name=f"{what}/1,000 : 10",
            value=growth,
            unit="x",
            target="less than 1.3",
            met=growth < 1.3,
        ),
        Figure(name=f"{what}/of 10, memory", value=memory[10], unit="MiB"),
        Figure(name=f"{what}/of 1,000, memory", value=memory[1000], unit="MiB"),
    ]


_PYPROJECT = """\
[project]
name = "overhead"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "{module}:server"
clientapp = "{module}:client"
[tool.flwr.app.config]
"""


def overhead(clients: int = 100, rounds: int = 12) -> list[Figure]:
    """Compare a round of clients that do nothing with plain Flower's FedAvg."""
    with tempfile.TemporaryDirectory() as temporary:
        data = write_clients(Path(temporary, "data"), clients, (16, 4))
        spent = {}
        for module in ("noop_app", "plain_app"):
            app = Path(temporary, module)
            app.mkdir()
            source = Path(__file__).with_name(f"{module}.py").read_text()
            (app / f"{module}.py").write_text(source)
            (app / "pyproject.toml").write_text(_PYPROJECT.format(module=module))
            stamps = Path(temporary, f"{module}.json")
            subprocess.run(
                [
                    str(Path(sys.executable).with_name("flower-simulation")),
                    f"--app={app}",
                    f"--num-supernodes={clients}",
                    "--backend-config="
                    '{"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}',
                ],
                check=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(APP),
                    "OVERHEAD_DATA": str(data),
                    "OVERHEAD_STAMPS": str(stamps),
                    "OVERHEAD_ROUNDS": str(rounds),
                    "FLWR_TELEMETRY_ENABLED": "0",
                },
            )
            times = json.loads(stamps.read_text())
            warm = times[2:]  # every actor has imported all by then
            spent[module] = (warm[-1] - warm[0]) / (len(warm) - 1) / clients * 1e3
    ratio = spent["noop_app"] / spent["plain_app"]
    what = f"overhead/{clients} clients that do nothing"
    return [
        Figure(name=f"{what}/app", value=spent["noop_app"], unit="ms per client"),
        Figure(
            name=f"{what}/plain FedAvg", value=spent["plain_app"], unit="ms per client"
        ),
        Figure(
            name=f"{what}/app : plain FedAvg",
            value=ratio,
            unit="x",
            target="at most 1.1",
            met=ratio <= 1.1,
        ),
    ]
