"""The same simulation under the newest Flower: ``make test-newest``.

The project needs Flower 1.26.1, see the README. This tells how far the move to a later
release is: the newest one is installed into an environment of its own, which takes
everything else (PyTorch above all) from the one that runs the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from parity import CLIENTS, METHODS, assert_same_bits, run_config

from common.presets import to_run_config
from common.schema import Scalar
from deploy.processes import ProcessGroup, reserve_port
from server_app.simulate import simulate

ROOT = Path(__file__).parents[2]


class NewestFlower:
    """Flower's newest release with a SuperLink that simulates clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv/bin"
        self.env = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{self.bin}:{os.environ['PATH']}",
        }

    def install(self) -> None:
        venv.create(self.folder / "venv", with_pip=True)
        pip = [self.bin / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "flwr[simulation]"], check=True)
        (packages,) = self.folder.glob("venv/lib/python3*/site-packages")
        # Searched last, so that what was just installed comes first.
        others = sysconfig.get_path("purelib")
        (packages / "others.pth").write_text(others, encoding="utf-8")

    def version(self) -> str:
        shown = self._run("--version")
        return shown.stdout.split()[-1]

    def start(self) -> ProcessGroup:
        ports = [reserve_port("127.0.0.1") for _ in range(2)]
        for _, reservation in ports:  # its HTTP server does not share a port
            reservation.close()
        port, control = (port for port, _ in ports)
        connection = f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        (self.folder / "home").mkdir()
        (self.folder / "home/config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n{connection}',
            encoding="utf-8",
        )
        command = [
            *(str(self.bin / "flower-superlink"), "--insecure", "--simulation"),
            *("--isolation", "subprocess", "--host", "127.0.0.1"),
            "--disable-runtime-dependency-installation",
            *("--port", str(port), "--control-api-address", f"127.0.0.1:{control}"),
        ]
        log, cwd = self.folder / "superlink.log", self.folder
        superlink = ProcessGroup("SuperLink", command, log=log, cwd=cwd, env=self.env)
        try:
            superlink.wait_for_output(f"HTTP API on 127.0.0.1:{port}", 120)
        except BaseException:
            superlink.stop()
            raise
        return superlink

    def run(self, config: dict[str, Scalar]) -> str:
        """Run the app; return its log."""
        federation = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        shown = self._run(
            *("run", ROOT, "here", "--stream"),
            *("--run-config", to_run_config(config)),
            *("--federation-config", federation),
        )
        return shown.stdout + shown.stderr

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "flwr", *command],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewestFlower]:
    flower = NewestFlower(tmp_path_factory.mktemp("newest-flower"))
    flower.install()
    print(f"Flower {flower.version()} on Python {sys.version.split()[0]}")
    superlink = flower.start()
    yield flower
    superlink.stop()


@pytest.mark.parametrize("method", METHODS)
def test_simulation_ends_with_the_same_bits(
    method: str, newest: NewestFlower, tmp_path: Path
) -> None:
    ours, newests = tmp_path / "ours", tmp_path / "newest"
    simulate(run_config(method, ours), num_supernodes=CLIENTS, cpus=1, gpus=0)
    config = {**run_config(method, newests), "state-dir": str(newests / "state")}
    log = newest.run(config)
    assert (newests / method / "summary.json").exists(), log[-4000:]
    assert_same_bits(ours / method, newests / method)
