"""On the real data sets, where they are at hand."""

from __future__ import annotations

import pytest
import torch
from extras import needs_datasets

from common.data import data_spec, load_client_data, to_model_input


def load(settings, clients, partition_id=0):
    return load_client_data(
        settings, seed=0, partition_id=partition_id, num_partitions=clients
    )


def only(folder, part, tmp_path):
    """A data set that has the smaller part of a real one alone."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.parquet").symlink_to(folder / part)
    return str(data)


def test_benchmark_federation(settings, shared_data):
    given = settings(dataset="cifar10", data_path=str(shared_data / "cifar10_20c"))
    clients = [load(given, 20, i) for i in range(20)]
    assert [c.name for c in clients] == [f"client-{i:02d}" for i in range(20)]
    assert sum(len(c.train) for c in clients) == 8994
    assert sum(len(c.test) for c in clients) == 3006
    with pytest.raises(ValueError, match="20 client folders"):
        load(given, 21)


@needs_datasets
@pytest.mark.parametrize(
    ("dataset", "part", "image_size", "rows"),
    [
        ("cifar100", "test.parquet", 0, 10_000),
        ("tinyimagenet", "valid.parquet", 32, 10_000),
    ],
)
def test_images(settings, shared_data, tmp_path, dataset, part, image_size, rows):
    path = only(shared_data / dataset, part, tmp_path)
    given = settings(dataset=dataset, data_path=path, image_size=image_size)
    spec = data_spec(given)
    clients = [load(given, 10, i) for i in range(10)]
    splits = [split for c in clients for split in (c.train, c.test)]
    assert sum(map(len, splits)) == rows
    targets = torch.cat([split.targets for split in splits])
    assert len(targets.unique()) == spec.num_classes
    images = to_model_input(clients[3].train.inputs, spec, given)
    assert images.shape == (len(clients[3].train), 3, 32, 32)
    assert -0.5 < images.mean() < 0.3
    # Dirichlet(0.3): clients differ in size and classes.
    sizes = [len(c.train) for c in clients]
    assert max(sizes) > 1.5 * min(sizes)


def test_tinyimagenet_at_32_pixels_needs_the_setting(settings, shared_data, tmp_path):
    path = only(shared_data / "tinyimagenet", "valid.parquet", tmp_path)
    given = settings(dataset="tinyimagenet", data_path=path)
    with pytest.raises(ValueError, match="32x32 pixels, but 64x64 are expected"):
        load(given, 10)


@needs_datasets
def test_news(settings, shared_data, tmp_path):
    path = only(shared_data / "agnews", "test.parquet", tmp_path)
    given = settings(dataset="agnews", data_path=path)
    data = load(given, 10)
    tokens = to_model_input(data.train.inputs, data.spec, given)
    assert tokens.dtype == torch.int64
    assert data.train.inputs.shape[1:] == (200,)
    lengths = (tokens != 0).sum(dim=1)
    assert tokens.shape[1] == lengths.max()
    assert (tokens[:, 0] == tokens[0, 0]).all()
    assert tokens.min() >= 0
    assert tokens.max() < data.spec.vocabulary
    assert 30 < lengths.float().mean() < 100
    assert set(data.test.targets.tolist()) <= {0, 1, 2, 3}
