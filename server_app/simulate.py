r"""Simulate several methods on one machine, one after another, and compare them.

All methods see the same partition, the same initial weights and the same sampled
clients. The clients' personal states lie in each run's folder, in ``state``, so that
``client_app.predict`` finds them; ``--set state-dir=`` keeps them in memory only.
Example::

    python -m server_app.simulate xfed@digits-early-exit fedper@digits-early-exit \
        --set seed=1
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from common.files import STATE_FOLDER
from common.presets import merge, names, to_run_config
from common.schema import Scalar
from common.settings import METHOD_SETTINGS, parse_settings
from common.signals import exit_on_signals
from server_app.concurrency import (
    Fit,
    Machine,
    fit,
    this_machine,
    training_bytes,
)
from server_app.summary import table

APP = Path(__file__).resolve().parent.parent


def simulate(
    config: dict[str, Scalar], *, num_supernodes: int, cpus: float, gpus: float
) -> None:
    """Run ``flower-simulation`` once, with no more clients at a time than fit.

    Parameters
    ----------
    config
        Flat run configuration.
    num_supernodes
        Number of simulated clients.
    cpus, gpus
        Resources of one client.

    Raises
    ------
    ValueError
        Not even one client fits into this machine, or a setting is wrong.
    subprocess.CalledProcessError
        The simulation failed.
    """
    machine, fitting = _fit(config, cpus, gpus)
    print(f"{fitting.clients} clients at a time ({fitting.reason})", flush=True)
    backend = {
        "client_resources": {"num_cpus": fitting.cpus, "num_gpus": gpus},
        "init_args": {
            "num_cpus": machine.cores,
            "log_to_driver": False,  # Ray's own news; failures arrive anyway
        },
    }
    run_to_end(
        [
            str(Path(sys.executable).with_name("flower-simulation")),
            f"--app={APP}",
            f"--num-supernodes={num_supernodes}",
            f"--backend-config={json.dumps(backend)}",
            f"--run-config={to_run_config(config)}",
        ],
        env={
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONWARNINGS": "ignore:Tip:FutureWarning",  # a hint of Ray's
            **os.environ,
        },
    )


def run_to_end(
    command: Sequence[str], env: Mapping[str, str], *, grace: float = 5.0
) -> None:
    """Run a command; where a signal ends this program, the command ends first.

    Parameters
    ----------
    command
        The command with its arguments.
    env
        Its whole environment.
    grace
        Seconds that it has to end by itself, should the signal have gone to it as well,
        before it is told to.

    Raises
    ------
    subprocess.CalledProcessError
        The command failed.
    SystemExit
        This program was sent SIGTERM or SIGHUP.
    """
    with exit_on_signals():
        process = subprocess.Popen(command, env=env)
        try:
            status = process.wait()
        except BaseException:
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
            process.terminate()
            process.wait()
            raise
    if status:
        raise subprocess.CalledProcessError(status, command)


def _fit(config: dict[str, Scalar], cpus: float, gpus: float) -> tuple[Machine, Fit]:
    """Return this machine as it is now, and how clients share it."""
    machine = this_machine()
    needed = training_bytes(parse_settings(config))
    return machine, fit(machine, needed, cpus=cpus, gpus=gpus)


def plan(
    runs: Sequence[str], overrides: Sequence[str], num_supernodes: int, folder: Path
) -> list[dict[str, Scalar]]:
    """Return the run configuration of each ``METHOD[@PRESET]``.

    Personal states go to the run's own folder where no ``state-dir`` is given.

    Raises
    ------
    SettingsError
        A preset is unknown or a setting wrong.
    """
    configs = []
    for run in runs:
        method, _, preset = run.partition("@")
        config = merge(preset or None, [*overrides, f"method={method}"])
        config["output-dir"] = str(folder)
        name = Path(preset).name.removesuffix(".toml")
        default = f"{method}-{name}" if name else method
        experiment = str(config.setdefault("experiment", default))
        config.setdefault("state-dir", str(folder / experiment / STATE_FOLDER))
        config["min-available-nodes"] = num_supernodes
        configs.append(config)
    return configs


def main() -> None:
    """Run what the command line names and print one table."""
    parser = argparse.ArgumentParser(
        prog="python -m server_app.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="METHOD[@PRESET]",
        help=f"methods: {', '.join(METHOD_SETTINGS)}; presets: {', '.join(names())}, "
        "or a .toml file",
    )
    parser.add_argument("--num-supernodes", type=int, default=10, metavar="N")
    parser.add_argument("--cpus", type=float, default=1, help="CPU cores of one client")
    parser.add_argument("--gpus", type=float, default=0, help="GPU share of one client")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value")
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("runs", time.strftime("simulate-%Y%m%d-%H%M%S")),
    )
    arguments = parser.parse_args()
    folder = arguments.output_dir.resolve()
    try:
        configs = plan(arguments.runs, arguments.set, arguments.num_supernodes, folder)
        for config in configs:  # before the first run, not between two
            _fit(config, arguments.cpus, arguments.gpus)
    except ValueError as error:
        parser.error(str(error))
    for config in configs:
        print(f"\n=== {config['experiment']} ===", flush=True)
        simulate(
            config,
            num_supernodes=arguments.num_supernodes,
            cpus=arguments.cpus,
            gpus=arguments.gpus,
        )
    folders = [folder / str(config["experiment"]) for config in configs]
    print(f"\n{table(folders)}\n\nResults:")
    for path in folders:
        print(f"  {path}")


if __name__ == "__main__":
    main()
