"""What the test hosts start from: the app's wheel and an environment with PyTorch."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CONSTRAINTS = REPOSITORY / "deploy/ansible/roles/flower/files/constraints.txt"
VENV = "/opt/flower-personalized/venv"

TORCH = os.environ.get("TEST_HOSTS_TORCH", "torch torchvision").split()
"""Which PyTorch: an argument list of pip, e.g. with the index of its CPU build."""


def build_wheel(folder: Path) -> Path:
    """Build the app's wheel."""
    _pip_wheel(folder, str(REPOSITORY))
    return next(folder.glob("*.whl"))


def build_wheelhouse(folder: Path, version: str, *packages: str) -> Path:
    """Collect another version of the app and some packages; return the app's wheel."""
    source, wheels = folder / "source", folder / "wheelhouse"
    settings = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    for package in ("server_app", "client_app", "common"):
        shutil.copytree(REPOSITORY / package, source / package)
    shutil.copy(REPOSITORY / "README.md", source)
    (source / "pyproject.toml").write_text(
        re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', settings, count=1),
        encoding="utf-8",
    )
    _pip_wheel(wheels, str(source), "--constraint", str(CONSTRAINTS), *packages)
    return next(wheels.glob("flower_personalized-*.whl"))


def _pip_wheel(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", folder, *arguments], check=True)


def prepare_environment(wheel: Path) -> Path:
    """Return a virtual environment for hosts, made once and kept.

    It is made at the place where the hosts see it, so in a container.
    """
    recipe = CONSTRAINTS.read_text(encoding="utf-8") + " ".join(TORCH)
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "/var/cache")
    venv = cache / "flower-personalized" / f"test-hosts-{key}"
    if not venv.exists():
        unfinished = Path(f"{venv}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        _install(unfinished, wheel)
        unfinished.rename(venv)
    return venv


def _install(venv: Path, wheel: Path) -> None:
    script = f"""set -e
    /usr/bin/python3 -m venv {VENV}
    pip="{VENV}/bin/pip --quiet --disable-pip-version-check"
    $pip install {" ".join(TORCH)}
    $pip install --constraint /mnt/constraints.txt /mnt/{wheel.name}
    $pip uninstall --yes flower-personalized"""
    root = Path(tempfile.mkdtemp(prefix="test-hosts-"))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root], check=True)
    try:
        for name in ("upper", "work", "root"):
            (root / name).mkdir()
        layers = f"lowerdir=/,upperdir={root}/upper,workdir={root}/work"
        mount = ["mount", "-t", "overlay", "overlay", "-o", layers, root / "root"]
        subprocess.run(mount, check=True)
        for source in (CONSTRAINTS, wheel):
            shutil.copy(source, root / "root/mnt")
        subprocess.run(
            [
                *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit"),
                *("--pipe", "--link-journal=no"),
                *(f"--directory={root}/root", f"--bind={venv}:{VENV}"),
                *("/bin/bash", "-c", script),
            ],
            check=True,
        )
    finally:
        subprocess.run(["umount", "-l", root / "root"], check=False)
        subprocess.run(["umount", "-l", root], check=False)
        root.rmdir()
