from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from extras import REASON

from common.data import data_spec, load_client_data
from common.data.download import fetch

huggingface_hub = pytest.importorskip("huggingface_hub", reason=REASON)
load_digits = pytest.importorskip("sklearn.datasets", reason=REASON).load_digits


def load(settings, **values):
    given = settings(partition="iid", min_partition_size=2, **values)
    return [
        load_client_data(given, seed=0, partition_id=i, num_partitions=2)
        for i in range(2)
    ]


def pixels(clients):
    """All examples of all clients as sorted rows."""
    parts = [split.inputs for c in clients for split in (c.train, c.test)]
    return sorted(torch.cat(parts).flatten(1).tolist())


def test_digits_are_embedded_and_fill_the_range(settings):
    clients = load(settings)
    assert sum(len(c.train) + len(c.test) for c in clients) == 1797
    # scikit-learn's values are 0 to 16; 16 becomes 255.
    original = load_digits().data
    back = np.array(pixels(clients)) / 255 * 16
    np.testing.assert_array_equal(np.rint(back), sorted(original.tolist()))
    assert clients[0].train.inputs.max() == 255
    assert clients[0].spec == data_spec(settings())
    assert clients[0].name is None


def stand_in(calls, images, targets):
    def source(root, *, train, download):
        calls.append((train, download))
        part = slice(0, 6) if train else slice(6, 8)
        return SimpleNamespace(data=images[part], targets=targets[part])

    return source


@pytest.mark.parametrize(
    ("dataset", "name", "shape", "container"),
    [
        ("cifar10", "CIFAR10", (8, 32, 32, 3), lambda a: a),
        ("cifar100", "CIFAR100", (8, 32, 32, 3), lambda a: a),
        ("fashion-mnist", "FashionMNIST", (8, 28, 28), torch.from_numpy),
    ],
)
def test_torchvision_is_asked_once(
    settings, monkeypatch, dataset, name, shape, container
):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, shape, dtype=np.uint8)
    targets = np.arange(8)
    calls = []
    source = stand_in(calls, container(images), container(targets))
    monkeypatch.setattr(torchvision.datasets, name, source)
    clients = load(settings, dataset=dataset)
    assert calls == [(True, True), (False, True)]
    channels_first = images.reshape(8, *shape[1:3], -1).transpose(0, 3, 1, 2)
    assert pixels(clients) == sorted(channels_first.reshape(8, -1).tolist())


def test_hub_files_are_read_as_parquet(settings, monkeypatch, write_images):
    calls = []

    def download(repository, *, repo_type, local_dir, allow_patterns):
        calls.append((repository, repo_type, allow_patterns))
        data = local_dir / "data"
        write_images(data / "train-00000-of-00001-1359.parquet", [*range(6)], (64, 64))
        write_images(data / "valid-00000-of-00001-70d5.parquet", [198, 199], (64, 64))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    clients = load(settings, dataset="tinyimagenet")
    assert calls == [("zh-plus/tiny-imagenet", "dataset", ["data/*.parquet"])]
    targets = [t for c in clients for s in (c.train, c.test) for t in s.targets]
    assert sorted(targets) == [*range(6), 198, 199]


def test_text_from_the_hub(monkeypatch, tmp_path, write_parquet):
    def download(repository, *, local_dir, **_options):
        assert repository == "fancyzhx/ag_news"
        for part in ("train", "test"):
            file = local_dir / "data" / f"{part}-00000-of-00001.parquet"
            write_parquet(file, text=[part], label=[3])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    parts = fetch("agnews", tmp_path / "agnews")
    assert {n: (p.examples, p.labels) for n, p in parts.items()} == {
        "train": (["train"], [3]),
        "test": (["test"], [3]),
    }


def test_without_a_network_the_message_says_what_to_do(settings, monkeypatch):
    def source(*_arguments, **_options):
        raise OSError("Name or service not known")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", source)
    with pytest.raises(ConnectionError, match=r"cifar10 .* not known.* set data-path"):
        load(settings, dataset="cifar10")
