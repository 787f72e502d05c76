"""Simulate several methods on one machine, one after another, and compare them.

All methods see the same partition, the same initial weights and the same sampled
clients. Example::

    python -m server_app.simulate xfed fedper --preset digits-early-exit seed=1
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from common.presets import merge, names, to_run_config
from common.settings import METHOD_SETTINGS, Scalar
from server_app.summary import table

APP = Path(__file__).resolve().parent.parent


def simulate(
    config: dict[str, Scalar], *, num_supernodes: int, cpus: float, gpus: float
) -> None:
    """Run ``flower-simulation`` once.

    Parameters
    ----------
    config
        Flat run configuration.
    num_supernodes
        Number of simulated clients.
    cpus, gpus
        Resources of one client; as many clients run at once as fit.

    Raises
    ------
    subprocess.CalledProcessError
        The simulation failed.
    """
    backend = {"client_resources": {"num_cpus": cpus, "num_gpus": gpus}}
    subprocess.run(
        [
            str(Path(sys.executable).with_name("flower-simulation")),
            f"--app={APP}",
            f"--num-supernodes={num_supernodes}",
            f"--backend-config={json.dumps(backend)}",
            f"--run-config={to_run_config(config)}",
        ],
        check=True,
        env={"RAY_DEDUP_LOGS": "0", "FLWR_TELEMETRY_ENABLED": "0", **os.environ},
    )


def main() -> None:
    """Run the methods named on the command line and print one table."""
    parser = argparse.ArgumentParser(prog="python -m server_app.simulate")
    parser.add_argument("methods", nargs="+", help=f"of {', '.join(METHOD_SETTINGS)}")
    parser.add_argument("--preset", help=f"a .toml file or one of {', '.join(names())}")
    parser.add_argument("--num-supernodes", type=int, default=10, metavar="N")
    parser.add_argument("--cpus", type=float, default=1, help="CPU cores of one client")
    parser.add_argument("--gpus", type=float, default=0, help="GPU share of one client")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value")
    arguments = parser.parse_args()
    started = time.strftime("%Y%m%d-%H%M%S")
    folders = []
    try:
        runs = []
        for method in arguments.methods:
            config = merge(arguments.preset, [*arguments.set, f"method={method}"])
            config.setdefault("experiment", f"{method}-{started}")
            config.setdefault("min-available-nodes", arguments.num_supernodes)
            runs.append(config)
    except ValueError as error:
        parser.error(str(error))
    for config in runs:
        config["output-dir"] = str(Path(str(config.get("output-dir", "runs"))).resolve())
        print(f"\n=== {config['method']} ===", flush=True)
        simulate(
            config,
            num_supernodes=arguments.num_supernodes,
            cpus=arguments.cpus,
            gpus=arguments.gpus,
        )
        folders.append(Path(str(config["output-dir"])) / str(config["experiment"]))
    print(f"\n{table(folders)}\n")
    print("Results:", *folders, sep="\n  ")


if __name__ == "__main__":
    main()
