"""Made-up data of many clients, in files such as clients bring along."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CIFAR_SIZES = (450, 150)
"""Samples to train and to test of a client of the benchmark federation, on average."""


def write_clients(
    folder: Path, clients: int, sizes: tuple[int, int] = CIFAR_SIZES
) -> Path:
    """Write ``client-<i>/train.npz`` and ``test.npz`` of random 32x32 colour images."""
    rng = np.random.default_rng(0)
    for number in range(clients):
        client = folder / f"client-{number:04d}"
        client.mkdir(parents=True)
        for split, size in zip(("train", "test"), sizes, strict=True):
            np.savez(
                client / f"{split}.npz",
                images=rng.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8),
                labels=rng.integers(0, 10, size),
            )
    return folder


def settings_for(folder: Path, **changes: str | int | float | bool) -> list[str]:
    """Return overrides ``key=value`` that read these clients' data."""
    values: dict[str, str | int | float | bool] = {
        "dataset": "cifar10",
        "data-path": str(folder),
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    return [f"{key}={value}" for key, value in values.items()]
