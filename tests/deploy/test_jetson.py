from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from deploy.jetson import emulate

FOLDER = Path(emulate.__file__).parent
RELEASE = "# R{} (release), REVISION: 4.3, GCID: 38968081, BOARD: generic\n"


def install(tmp_path: Path, release: int) -> subprocess.CompletedProcess[str]:
    (tmp_path / "release").write_text(RELEASE.format(release))
    environment = {
        **os.environ,
        "DRY_RUN": "1",
        "PYTHON": sys.executable,
        "TEGRA_RELEASE": str(tmp_path / "release"),
    }
    command = [FOLDER / "install.sh", tmp_path / "venv"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("release", "jetpack"), [(36, 6), (38, 7), (39, 7)])
def test_release_decides_the_build_of_pytorch(
    tmp_path: Path, release: int, jetpack: int
) -> None:
    result = install(tmp_path, release)
    assert result.returncode == 0, result.stderr
    assert f"JetPack {jetpack}" in result.stdout
    assert f"/jetpack{jetpack}.txt" in result.stdout
    assert "constraints.txt" in result.stdout
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(("release", "text"), [(32, "CUDA 10.2"), (35, "R35 is older")])
def test_old_releases_are_refused(tmp_path: Path, release: int, text: str) -> None:
    result = install(tmp_path, release)
    assert result.returncode == 1
    assert text in result.stderr
    assert "Dockerfile.jetson" in result.stderr


@pytest.mark.parametrize("jetpack", [4, 6, 7])
def test_each_jetpack_names_versions_of_pytorch(jetpack: int) -> None:
    text = (FOLDER / f"jetpack{jetpack}.txt").read_text()
    names = re.findall(r"(?m)^(torch\w*)==[\d.]+$", text)
    assert names == ["torch", "torchvision"]
    # PyPI has builds without CUDA alone for 64-bit ARM in the version for JetPack 4.
    assert len(re.findall(r"(?m)^--index-url https://\S+$", text)) == (jetpack != 4)


def test_difference_of_two_clients(tmp_path: Path) -> None:
    for name, shift in (("native", 0.0), ("emulated", 0.01)):
        runs = tmp_path / "runs" / name
        states = tmp_path / "states" / name / "client-client"
        runs.mkdir(parents=True)
        states.mkdir(parents=True)
        weights = np.array([0.5, -2.0], np.float32)
        save_file({"w": weights}, runs / "shared.safetensors")
        save_file({"w": weights + shift}, states / "round-000001.safetensors")
    assert emulate.compare(tmp_path) == pytest.approx(0.005, rel=1e-4)


def test_emulation_wants_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ValueError, match="only root on Linux"):
        emulate.require()
