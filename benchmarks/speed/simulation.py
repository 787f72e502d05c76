"""Whole simulations: beside a research script, and from 10 to 1,000 clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.process_watch import ProcessWatch
from benchmarks.records import Figure, compared
from benchmarks.speed.federation_data import settings_for, write_clients
from benchmarks.speed.measure import timed
from common.presets import merge
from server_app.simulate import APP, simulate


def whole(rounds: int = 40) -> list[Figure]:
    """Compare X-FED on a federation like the benchmark one with a research script.

    The script's last exit starts from the aggregated one and is distilled from as it
    trains, and its students grow as in the paper. The app does the same, and once more
    with the teacher it has by default: the model as received, which takes a forward
    pass more.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_clients(Path(temporary, "data"), 20)

        def app(teacher: str, last_exit: str) -> float:
            changes: dict[str, str | float] = {
                "xfed.lambda": 1.0,
                "xfed.schedule": "linear",
                "xfed.teacher": teacher,
                "xfed.last-exit": last_exit,
            }
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
                    **changes,
                ),
            )
            return timed(lambda: simulate(config, num_supernodes=20, cpus=1, gpus=0))

        frozen, live = app("frozen", "own"), app("live", "aggregated")
        plain = [sys.executable, "-m", "benchmarks.speed.plain_run", folder, rounds]
        script = timed(lambda: subprocess.run([*map(str, plain)], check=True, cwd=APP))
    what = f"simulation/X-FED, {rounds} rounds"
    script_ = ("research script", script)
    ours, _, ratio = compared(what, ("app", frozen), script_, "s", at_most=0.6)
    return [
        *compared(what, ("app, live teacher", live), script_, "s", at_most=0.6),
        ours,
        ratio,
    ]


def scaling(rounds: int = 40, trained: int = 10) -> list[Figure]:
    """Compare 10 and 1,000 clients of which equally many train in a round."""
    seconds, memory = {}, {}
    for clients in (10, 1000):
        with tempfile.TemporaryDirectory() as temporary:
            folder = write_clients(Path(temporary, "data"), clients, (128, 16))
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
    what = f"scaling/{trained} clients train in each of {rounds} rounds"
    few, many = "of 10", "of 1,000"
    return [
        *compared(what, (many, seconds[1000]), (few, seconds[10]), "s", at_most=1.3),
        *compared(f"{what}, memory", (many, memory[1000]), (few, memory[10]), "MiB"),
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
method = "fedavg"
dataset = "cifar10"
data-path = "{data}"
num-server-rounds = {rounds}
fraction-evaluate = 0.0
"""


def overhead(clients: int = 100, rounds: int = 12, repeats: int = 2) -> list[Figure]:
    """Compare a round of clients that do nothing with plain Flower's FedAvg."""
    with tempfile.TemporaryDirectory() as temporary:
        data = write_clients(Path(temporary, "data"), clients, (16, 4))
        spent: dict[str, list[float]] = {"noop_app": [], "plain_app": []}
        for module in [*spent] * repeats:  # they take turns
            app = Path(temporary, module)
            app.mkdir(exist_ok=True)
            source = Path(__file__).with_name(f"{module}.py").read_text()
            (app / f"{module}.py").write_text(source)
            (app / "pyproject.toml").write_text(
                _PYPROJECT.format(module=module, data=data, rounds=rounds)
            )
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
                    "OVERHEAD_STAMPS": str(stamps),
                    "FLWR_TELEMETRY_ENABLED": "0",
                },
            )
            times = json.loads(stamps.read_text())
            warm = times[2:]  # every actor has imported all by then
            spent[module] += (np.diff(warm) / clients * 1e3).tolist()
    return compared(
        f"overhead/{clients} clients that do nothing",
        ("app", float(np.median(spent["noop_app"]))),
        ("plain FedAvg", float(np.median(spent["plain_app"]))),
        "ms per client",
        at_most=1.1,
    )
