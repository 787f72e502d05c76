"""Get the known data sets: from scikit-learn, torchvision or the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from common.data.extras import needs_extra
from common.data.files import find_parts
from common.data.read import RawPart, read_part
from common.data.spec import KNOWN

_TORCHVISION: Final = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "fashion-mnist": "FashionMNIST",
}
_HUB: Final = {"tinyimagenet": "zh-plus/tiny-imagenet", "agnews": "fancyzhx/ag_news"}


def fetch(dataset: str, folder: Path) -> dict[str, RawPart]:
    """Return the parts of a known data set, downloaded to `folder` where absent.

    torchvision and the hub verify what they download. Processes that start together
    download once.

    Parameters
    ----------
    dataset
        One of the names of the setting ``dataset`` other than ``custom``.
    folder
        For the files as downloaded.

    Raises
    ------
    ConnectionError
        If the download fails; says what to do without a network.
    """
    from filelock import FileLock

    if dataset == "digits":
        return {"train": _digits()}
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        try:
            if dataset in _TORCHVISION:
                return _from_torchvision(dataset, folder)
            _download_from_hub(_HUB[dataset], folder)
        except Exception as error:  # Each source has many kinds of its own.
            raise ConnectionError(
                f"cannot download {dataset} to {folder}: {error}. Without a network, "
                "set data-path to a folder that holds the data set as Parquet"
            ) from error
    parts = find_parts(folder / "data")
    return {part.name: read_part(part, KNOWN[dataset].kind) for part in parts}


def _digits() -> RawPart:
    """Return the handwritten digits of scikit-learn: 1,797 grey images of 8x8."""
    with needs_extra("dataset = 'digits'"):
        from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    grey = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return RawPart(list(grey), labels.tolist(), "digits of scikit-learn")


def _from_torchvision(dataset: str, folder: Path) -> dict[str, RawPart]:
    import torchvision

    source = getattr(torchvision.datasets, _TORCHVISION[dataset])
    parts = {}
    for name in ("train", "test"):
        part = source(folder, train=name == "train", download=True)
        images, labels = np.asarray(part.data), np.asarray(part.targets)
        parts[name] = RawPart(list(images), labels.tolist(), f"{dataset} ({name})")
    return parts


def _download_from_hub(repository: str, folder: Path) -> None:
    with needs_extra("the Hugging Face hub"):
        from huggingface_hub import snapshot_download

    snapshot_download(
        repository,
        repo_type="dataset",
        local_dir=folder,
        allow_patterns=["data/*.parquet"],
    )
