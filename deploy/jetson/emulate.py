"""Train one round as a 64-bit ARM process, without a board.

A Debian for 64-bit ARM is made in a folder, the base install is put into it from
wheels, and a SuperNode runs there under QEMU's emulation of a processor, by default
that of the classic Jetson Nano. It takes part in a federation with TLS and node
authentication whose SuperLink runs on this machine, for one round of pFedES; a native
client does the same round on the same data. Both must end with the same numbers but for
rounding::

    sudo .venv/bin/python -m deploy.jetson.emulate --root /var/tmp/arm64

Needs root, 1.5 GB, ``apt-get install debootstrap qemu-user-static binfmt-support``, and
uv (``pip install uv``). The first start takes about half an hour on two cores, most of
it to make the Debian; later ones take what is there. Nothing stays mounted, and every
process ends with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from deploy.federation import FederationError, LocalFederation, NodeSpec

REPOSITORY = Path(__file__).resolve().parents[2]
CONSTRAINTS = REPOSITORY / "deploy/ansible/roles/flower/files/constraints.txt"
PYTHON = "3.11"  # of Debian 12
CLIENT = "client"
TOLERANCE = 1e-4
"""Largest difference of two parameters, relative to the largest parameter."""

_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_INSTALLED = "opt/client/.installed"
_ENTER = """
mount --rbind /dev "$1/dev" && mount --rbind /sys "$1/sys" &&
mount -t proc proc "$1/proc" && mount --bind "$2" "$1$2" &&
root=$1 && shift 2 && exec chroot "$root" "$@"
"""  # in a mount namespace of its own, so that nothing stays mounted


def require() -> None:
    """Raise :class:`ValueError` where this machine cannot do it, with the remedy."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise ValueError("only root on Linux can do this: it needs chroot and mounts")
    tools = {"debootstrap", "qemu-aarch64-static", "unshare", "chroot"}
    if missing := sorted(tool for tool in tools if not shutil.which(tool)):
        raise ValueError(
            f"{', '.join(missing)} missing: apt-get install debootstrap "
            "qemu-user-static binfmt-support"
        )
    if not (_BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", _BINFMT])
    if not (_BINFMT / "qemu-aarch64").exists():
        subprocess.run(["update-binfmts", "--enable", "qemu-aarch64"])
    if not (_BINFMT / "qemu-aarch64").exists():
        raise ValueError(
            f"the kernel does not start programs for ARM ({_BINFMT}/qemu-aarch64 is "
            "missing): install binfmt-support and qemu-user-static, or use a machine "
            "whose kernel has binfmt_misc"
        )


def make_root(root: Path, torch: Path) -> None:
    """Make a Debian for 64-bit ARM with the base install, where it is not there yet.

    Parameters
    ----------
    root
        Its folder.
    torch
        Requirements file that names PyTorch.
    """
    if not (root / "usr/bin/python3").exists():
        print(f"Making a Debian for 64-bit ARM in {root} ...", flush=True)
        options = ["--arch=arm64", "--variant=minbase", "--include=python3"]
        subprocess.run(["debootstrap", *options, "bookworm", root], check=True)
    recipe = torch.read_text() + CONSTRAINTS.read_text()
    mark = root / _INSTALLED
    if mark.exists() and mark.read_text() == recipe:
        return
    print("Installing the base install from wheels for ARM ...", flush=True)
    place = root / "opt/client"
    shutil.rmtree(place, ignore_errors=True)
    with tempfile.TemporaryDirectory() as wheels:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*build, "--wheel-dir", wheels, REPOSITORY], check=True)
        install = [
            *(_uv(), "pip", "install", "--quiet", "--only-binary", ":all:"),
            *("--python-platform", "aarch64-manylinux_2_28"),
            *("--python-version", PYTHON, "--target", str(place)),
            *("--constraint", str(CONSTRAINTS), "--requirements", str(torch)),
            *map(str, Path(wheels).glob("*.whl")),
        ]
        subprocess.run(install, check=True)
    for script in (place / "bin").iterdir():
        _, _, rest = script.read_text().partition("\n")
        script.write_text(f"#!/usr/bin/python3\n{rest}")
    mark.write_text(recipe)


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise ValueError("uv is missing: pip install uv")
    return found


def enter(root: Path, workdir: Path, cpu: str) -> tuple[str, ...]:
    """Return what runs the command behind it in the root, as the same command there.

    Parameters
    ----------
    root
        The Debian.
    workdir
        Folder that is to be seen there under the same path.
    cpu
        Processor that QEMU emulates.
    """
    (root / workdir.relative_to("/")).mkdir(parents=True, exist_ok=True)
    environment = [
        "/usr/bin/env",
        f"QEMU_CPU={cpu}",
        "PATH=/opt/client/bin:/usr/bin:/bin",
        "PYTHONPATH=/opt/client",
    ]
    # The path of the command on this machine becomes $0.
    command = ["/bin/sh", "-c", 'exec flower-supernode "$@"']
    return (
        *("unshare", "--mount", "--propagation", "private"),
        *("/bin/sh", "-ec", _ENTER, "enter", str(root), str(workdir)),
        *(*environment, *command),
    )


def make_data(folder: Path) -> None:
    """Write tiny data: 48 training and 16 test images of ten classes, 16x16 pixels."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for split, count in (("train", 48), ("test", 16)):
        images = rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        labels = rng.integers(0, 10, count)
        np.savez(folder / f"{split}.npz", images=images, labels=labels)


def train_round(
    federation: LocalFederation, name: str, prefix: tuple[str, ...] = ()
) -> Path:
    """Let a node do one round; return the results' folder.

    Raises
    ------
    FederationError
        The run fails.
    """
    workdir = federation.workdir
    config = {
        "client-name": CLIENT,
        "data-path": str(workdir / "data"),
        "state-dir": str(workdir / "states"),
    }
    federation.add_nodes([NodeSpec(name, config, prefix=prefix)])
    result = federation.run(
        {
            "method": "pfedes",
            "model": "cnn-5",
            "experiment": name,
            "dataset": "custom",
            "num-classes": 10,
            "image-size": 16,
            "channels": 3,
            "batch-size": 16,
            "learning-rate": 0.01,
            "num-server-rounds": 1,
            "min-available-nodes": 1,
            "round-timeout": 1800.0,
            "wait-timeout": 1800.0,
        },
    )
    federation.stop_node(name)
    if not result.succeeded:
        raise FederationError(f"the run of the {name} client failed: {result.log}")
    return workdir / "runs" / name


def compare(workdir: Path) -> float:
    """Return the largest difference between the two clients' parameters, relative."""
    worst = 0.0
    for pattern in (
        "runs/{}/shared.safetensors",
        f"states/{{}}/client-{CLIENT}/round-000001.safetensors",
    ):
        native, emulated = (
            load_file(workdir / pattern.format(name)) for name in ("native", "emulated")
        )
        if native.keys() != emulated.keys():
            raise ValueError(f"{pattern}: the two clients hold different parameters")
        largest = max(float(np.abs(value).max()) for value in native.values())
        for key, value in native.items():
            difference = float(np.abs(value - emulated[key]).max())
            worst = max(worst, difference / largest)
    return worst


def told(run: Path) -> str:
    """Return what a run's records tell of its client."""
    record = json.loads((run / "rounds.jsonl").read_text().splitlines()[0])
    roster = json.loads((run / "roster.json").read_text())
    seconds = record["train"]["seconds"]
    return f"round in {seconds:.0f} s, {json.dumps(roster[CLIENT])}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, 1 where the clients differ."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.jetson.emulate",
        description="Train one round as an emulated 64-bit ARM process.",
    )
    parser.add_argument("--root", type=Path, required=True, help="folder of the Debian")
    parser.add_argument(
        "--cpu", default="cortex-a57", help="as qemu-aarch64-static -cpu help lists"
    )
    parser.add_argument(
        "--torch",
        type=Path,
        default=Path(__file__).with_name("jetpack4.txt"),
        help="requirements file that names PyTorch",
    )
    options = parser.parse_args(arguments)
    try:
        require()
        root = options.root.resolve()
        make_root(root, options.torch)
        with tempfile.TemporaryDirectory(prefix="emulate-") as folder:
            workdir = Path(folder)
            make_data(workdir / "data")
            prefix = enter(root, workdir, options.cpu)
            with LocalFederation(REPOSITORY, [], workdir, start_timeout=600) as running:
                native = train_round(running, "native")
                print(f"native: {told(native)}", flush=True)
                emulated = train_round(running, "emulated", prefix)
                print(f"{options.cpu}: {told(emulated)}", flush=True)
            difference = compare(workdir)
    except (FederationError, ValueError, subprocess.CalledProcessError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    print(f"largest difference of the parameters, relative: {difference:.1e}")
    if difference > TOLERANCE:
        print(f"Error: that is more than {TOLERANCE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
