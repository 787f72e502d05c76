"""The same simulation under the newest Flower: ``make test-newest``.

The project needs Flower 1.26.1, see the README. This tells how far the move to a later
release is: the newest one is installed into an environment of its own, which takes
everything else (PyTorch above all) from the one that runs the test.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from common.presets import merge
from server_app.simulate import simulate

ROOT = Path(__file__).parents[2]
CLIENTS = 3
METHODS = {
    "xfed": ["model=convnet"],
    "pfedes": ["model=heterogeneous", "learning-rate=0.01"],
}


def settings(method: str, folder: Path) -> dict[str, str | int | float | bool]:
    return merge(
        None,
        [
            f"method={method}",
            *METHODS[method],
            "num-samples=300",
            "batch-size=16",
            "num-server-rounds=3",
            f"min-available-nodes={CLIENTS}",
            f"output-dir={folder}",
            f"state-dir={folder}/state",
            f"experiment={method}",
        ],
    )


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

    def start(self) -> subprocess.Popen[bytes]:
        port, control = _free_ports(2)
        connection = f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        (self.folder / "home").mkdir()
        (self.folder / "home/config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n{connection}',
            encoding="utf-8",
        )
        return subprocess.Popen(
            [
                *(self.bin / "flower-superlink", "--insecure", "--simulation"),
                *("--isolation", "subprocess", "--host", "127.0.0.1"),
                "--disable-runtime-dependency-installation",
                *("--port", str(port), "--control-api-address", f"127.0.0.1:{control}"),
                *("--log-file", self.folder / "superlink.log"),
            ],
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, config: dict[str, str | int | float | bool], finished: Path) -> str:
        """Run the app until a file is there; return the log."""
        file = self.folder / "run.toml"
        values = [f"{key} = {_toml(value)}" for key, value in config.items()]
        file.write_text("\n".join(values), encoding="utf-8")
        federation = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        shown = self._run(
            *("run", ROOT, "here", "--stream", "--run-config", file),
            *("--federation-config", federation),
        )
        assert finished.exists(), shown.stdout[-4000:] + shown.stderr[-4000:]
        return shown.stdout

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "flwr", *command],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewestFlower]:
    flower = NewestFlower(tmp_path_factory.mktemp("newest-flower"))
    flower.install()
    print(f"Flower {flower.version()} on Python {sys.version.split()[0]}")
    superlink = flower.start()
    time.sleep(10)
    assert superlink.poll() is None
    yield flower
    superlink.terminate()
    superlink.wait(30)


@pytest.mark.parametrize("method", METHODS)
def test_simulation_ends_with_the_same_bits(
    method: str, newest: NewestFlower, tmp_path: Path
) -> None:
    simulate(
        settings(method, tmp_path / "ours"), num_supernodes=CLIENTS, cpus=1, gpus=0
    )
    result = tmp_path / "newest" / method / "shared.safetensors"
    newest.run(settings(method, tmp_path / "newest"), result)
    ours = load_file(tmp_path / "ours" / method / "shared.safetensors")
    theirs = load_file(result)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 0
    for key, value in ours.items():
        assert value.tobytes() == theirs[key].tobytes(), key
    for name in ("clients.csv",):
        ours_, theirs_ = (tmp_path / w / method / name for w in ("ours", "newest"))
        assert ours_.read_text() == theirs_.read_text()
