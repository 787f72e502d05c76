"""Load: a simulation of 1,000 clients, and a federation of 12 SuperNodes.

    python -m benchmarks.load simulation
    python -m benchmarks.load federation

Both run X-FED's ConvNet on made-up 8x8 images and watch memory and open files of every
process of the run. Figures go to ``benchmarks/results/load.json`` and ``load.md``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.process_watch import ProcessWatch, Sample
from benchmarks.records import RESULTS, Figure, figures_table, write_figures
from common.schema import Scalar
from deploy.federation import LocalFederation
from deploy.nodes import numbered_nodes
from server_app.simulate import APP, simulate

MIB = 2**20
WARM_UP = 0.2  # fraction of the rounds
FLAT = 0.05  # growth that still counts as flat, as a fraction


def write_data(folder: Path, clients: int, samples: int = 20) -> Path:
    """Write a data set of grey 8x8 images, `samples` for each client."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (10, 8, 8))
    labels = rng.integers(0, 10, clients * samples)
    noise = rng.integers(-60, 61, (len(labels), 8, 8))
    images = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
    folder.mkdir()
    np.savez(folder / "train.npz", images=images, labels=labels)
    return folder


def run_config(
    folder: Path, clients: int, rounds: int, extra: dict[str, Scalar]
) -> dict[str, Scalar]:
    """Return the run configuration; data and results lie in `folder`."""
    return {
        "method": "xfed",
        "model": "convnet",
        "dataset": "custom",
        "data-path": str(write_data(folder / "data", clients)),
        "cache-dir": str(folder / "cache"),
        "num-classes": 10,
        "image-size": 8,
        "channels": 1,
        "partition": "iid",
        "batch-size": 16,
        "num-server-rounds": rounds,
        "evaluate-every": 5,
        "min-available-nodes": clients,
        "wait-timeout": 7200.0,
        "fraction-evaluate": 0.5,
        "output-dir": str(folder / "runs"),
        "experiment": "load",
        **extra,
    }


def finished_rounds(folder: Path) -> int:
    """Return how many rounds the run in `folder` has recorded."""
    records = folder / "runs" / "load" / "rounds.jsonl"
    return len(records.read_text().splitlines()) if records.exists() else 0


def growth(samples: Sequence[Sample], role: str, first: int) -> tuple[float, float]:
    """Fit a line through the resident memory of a role from round `first` on.

    Returns
    -------
    Its values at round `first` and at the last round, in MiB.
    """
    points = [(s.round_, s.resident(role) / MIB) for s in samples if s.round_ >= first]
    rounds, sizes = np.array(points, dtype=float).T
    slope, offset = np.polyfit(rounds, sizes, 1)
    return float(slope * first + offset), float(slope * rounds.max() + offset)


def memory_figures(
    prefix: str, samples: Sequence[Sample], roles: Sequence[str], rounds: int
) -> list[Figure]:
    """Return memory and open files after warm-up and at the end."""
    first = max(1, round(WARM_UP * rounds))
    running = [s for s in samples if first <= s.round_ < rounds]
    figures = []
    for role in (*roles, ""):
        start, end = growth(running, role, first)
        name = f"{prefix}: resident memory, {role or 'all processes'}"
        figures += [
            Figure(name=f"{name}, round {first}", value=start, unit="MiB"),
            Figure(
                name=f"{name}, round {rounds}",
                value=end,
                unit="MiB",
                target=f"at most {FLAT:.0%} more",
                met=end <= start * (1 + FLAT),
            ),
            Figure(
                name=f"{name}, growth",
                value=(end - start) / (rounds - first),
                unit="MiB per round",
            ),
        ]
    files = [median(s.files() for s in part) for part in _thirds(running)]
    figures += [
        Figure(name=f"{prefix}: open files, after warm-up", value=files[0], unit=""),
        Figure(
            name=f"{prefix}: open files, at the end",
            value=files[-1],
            unit="",
            target="at most 5 % more",
            met=files[-1] <= files[0] * (1 + FLAT),
        ),
        Figure(
            name=f"{prefix}: peak resident memory, all processes",
            value=max(s.resident() for s in samples) / MIB,
            unit="MiB",
        ),
        Figure(
            name=f"{prefix}: peak private memory, all processes",
            value=max(s.private() for s in samples) / MIB,
            unit="MiB",
        ),
    ]
    return figures


def _thirds(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    size = max(1, len(samples) // 3)
    return [samples[:size], samples[-size:]]


def run_figures(prefix: str, folder: Path, rounds: int, left: int) -> list[Figure]:
    """Return how the run went and what it left behind."""
    run = folder / "runs" / "load"
    summary = json.loads((run / "summary.json").read_text())
    records = [json.loads(x) for x in (run / "rounds.jsonl").read_text().splitlines()]
    plain = [r["seconds"] for r in records if "evaluate" not in r]
    stray = list(folder.rglob(".*.tmp"))  # what was not written to its end
    checks: list[tuple[str, float, str]] = [
        ("rounds", summary["rounds"], f"{rounds}"),
        ("failures", summary["failures"], "0"),
        ("processes left", left, "0"),
        ("temporary files left", len(stray), "0"),
    ]
    return [
        *(
            Figure(
                name=f"{prefix}: {name}",
                value=value,
                unit="",
                target=target,
                met=value == float(target),
            )
            for name, value, target in checks
        ),
        Figure(
            name=f"{prefix}: time per round without evaluation, median",
            value=median(plain),
            unit="s",
        ),
        Figure(name=f"{prefix}: time, all rounds", value=summary["seconds"], unit="s"),
    ]


def load_simulation(clients: int, rounds: int, in_memory: bool) -> list[Figure]:
    """Simulate many clients, few of them per round."""
    where = "in memory" if in_memory else "in files"
    prefix = f"simulation of {clients:,} clients, states {where}"
    roles = ("server (flower-simulation)", "clients (Ray actors)")
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        folder = Path(name)
        extra: dict[str, Scalar] = {"fraction-train": 0.02, "fraction-evaluate": 0.02}
        if not in_memory:
            extra["state-dir"] = str(folder / "state")
        config = run_config(folder, clients, rounds, extra)
        with ProcessWatch(lambda: finished_rounds(folder)) as watch:
            simulate(config, num_supernodes=clients, cpus=1, gpus=0)
            left = watch.left()
        figures = memory_figures(prefix, watch.samples, roles, rounds)
        figures += run_figures(prefix, folder, rounds, len(left))
        trained = {
            client
            for line in (folder / "runs/load/rounds.jsonl").read_text().splitlines()
            for client in json.loads(line)["train"]["replied"]
        }
        figures.append(
            Figure(name=f"{prefix}: clients that trained", value=len(trained), unit="")
        )
    return figures


def load_federation(nodes: int, rounds: int) -> list[Figure]:
    """Run a federation of processes over gRPC, half of the nodes per round."""
    prefix = f"federation of {nodes} SuperNodes"
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        folder = Path(name)
        extra: dict[str, Scalar] = {"fraction-train": 0.5}
        config = run_config(folder, nodes, rounds, extra)
        workdir = folder / "federation"
        with ProcessWatch(lambda: finished_rounds(folder), interval=0.5) as watch:
            specs = numbered_nodes(nodes, workdir)
            with LocalFederation(APP, specs, workdir, start_timeout=300) as federation:
                result = federation.run(config, timeout=7200)
            left = watch.left()
        assert result.succeeded, result.log
        figures = memory_figures(
            prefix, watch.samples, ("SuperLink", "SuperNodes"), rounds
        )
        figures += run_figures(prefix, folder, rounds, len(left))
        most = max(s.roles()["ClientApps"] for s in watch.samples)
        figures.append(
            Figure(name=f"{prefix}: ClientApps at a time, most", value=most, unit="")
        )
    return figures


def main() -> None:
    """Measure what the command line names and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load")
    kinds = parser.add_subparsers(dest="kind", required=True)
    simulation = kinds.add_parser("simulation", help="1,000 clients in one process")
    simulation.add_argument("--clients", type=int, default=1000)
    simulation.add_argument("--rounds", type=int, default=50)
    simulation.add_argument(
        "--in-memory", action="store_true", help="personal states in memory"
    )
    federation = kinds.add_parser("federation", help="12 SuperNodes over gRPC")
    federation.add_argument("--nodes", type=int, default=12)
    federation.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=RESULTS / "load.json")
    options: Any = parser.parse_args()
    if options.kind == "simulation":
        figures = load_simulation(options.clients, options.rounds, options.in_memory)
    else:
        figures = load_federation(options.nodes, options.rounds)
    command = shlex.join(["python", "-m", "benchmarks.load", *sys.argv[1:]])
    write_figures(figures, options.output, command)
    table = figures_table(options.output)
    options.output.with_suffix(".md").write_text(table)
    print(table)


if __name__ == "__main__":
    main()
