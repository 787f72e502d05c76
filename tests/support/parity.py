"""An experiment that is run in two ways, and the comparison of what came out."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import load_file

from common.presets import merge
from common.schema import Scalar

CLIENTS = 3
METHODS = {
    "xfed": ["model=convnet", "partition=dirichlet", "dirichlet-alpha=0.5"],
    "pfedes": ["model=heterogeneous", "partition=iid", "learning-rate=0.01"],
}


def run_config(method: str, folder: Path) -> dict[str, Scalar]:
    """Return the settings of three rounds; results go to ``folder/method``."""
    return merge(
        None,
        [
            f"method={method}",
            *METHODS[method],
            "num-samples=300",
            "batch-size=16",
            "num-server-rounds=3",
            "evaluate-every=2",
            f"min-available-nodes={CLIENTS}",
            f"output-dir={folder}",
            f"experiment={method}",
            "seed=7",
        ],
    )


def assert_same_bits(one: Path, other: Path) -> None:
    """Compare the shared parameters and every client's figures of two runs."""
    a = load_file(one / "shared.safetensors")
    b = load_file(other / "shared.safetensors")
    assert a.keys() == b.keys()
    assert len(a) > 0
    for key, value in a.items():
        assert value.tobytes() == b[key].tobytes(), key
    assert (one / "clients.csv").read_text() == (other / "clients.csv").read_text()
