from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from extras import needs_datasets

from common.data import DataSpec, decoded, load_client_data, loading
from common.data.text import train_tokenizer

ROOT = Path(__file__).parents[3]


def rows(split):
    """Examples as hashable rows, in order."""
    return [tuple(row) for row in split.inputs.flatten(1).tolist()]


def as_rows(images):
    return [tuple(row) for row in images.transpose(0, 3, 1, 2).reshape(len(images), -1)]


def forbid(*_arguments, **_options):
    raise AssertionError("this was in the cache")


@pytest.fixture
def custom(settings):
    def make(**values):
        described = {"dataset": "custom", "image_size": 8, "channels": 3}
        return settings(**{**described, "num_classes": 4, **values})

    return make


# A client's own data


def test_own_data_with_both_parts_are_taken_as_they_are(
    settings, tmp_path, write_images
):
    train = write_images(tmp_path / "own" / "train.parquet", [3, 1, 3])
    test = write_images(tmp_path / "own" / "test.parquet", [0, 1], seed=1)
    data = load_client_data(
        settings(dataset="cifar10", data_path="/absent"),
        seed=0,
        own_path=tmp_path / "own",
        partition_id=1,
        num_partitions=3,
    )
    assert rows(data.train) == as_rows(train)
    assert rows(data.test) == as_rows(test)
    assert data.train.targets.tolist() == [3, 1, 3]
    assert data.test.targets.tolist() == [0, 1]
    assert (data.train.inputs.dtype, data.train.targets.dtype) == (
        torch.uint8,
        torch.int64,
    )
    assert (len(data.train), len(data.test), data.name) == (3, 2, None)
    assert data.spec == DataSpec("image", (3, 32, 32), 10)


def test_own_data_without_test_part_are_split(settings, tmp_path, write_images):
    images = write_images(tmp_path / "train.parquet", list(range(8)))

    def load(seed, fraction=0.25):
        given = settings(dataset="cifar10", test_fraction=fraction)
        return load_client_data(given, seed=seed, own_path=tmp_path)

    data = load(0)
    assert (len(data.train), len(data.test)) == (6, 2)
    assert sorted(rows(data.train) + rows(data.test)) == sorted(as_rows(images))
    assert rows(load(0).test) == rows(data.test)
    assert len({tuple(load(seed).test.targets.tolist()) for seed in range(8)}) > 1
    assert len(load(0, fraction=0.01).test) == 1
    assert len(load(0, fraction=0.5).test) == 4


def test_single_example_cannot_be_split(settings, tmp_path, write_images):
    write_images(tmp_path / "train.parquet", [0])
    with pytest.raises(ValueError, match="1 example is too few to split"):
        load_client_data(settings(dataset="cifar10"), seed=0, own_path=tmp_path)


def test_missing_training_part_is_refused(settings, tmp_path, write_images):
    write_images(tmp_path / "test.parquet", [0])
    with pytest.raises(ValueError, match=r"no training part: expected train\.parquet"):
        load_client_data(settings(dataset="cifar10"), seed=0, own_path=tmp_path)


def test_folder_without_data_says_what_is_expected(settings, tmp_path):
    with pytest.raises(ValueError, match=r"no data in .* expected train\.parquet"):
        load_client_data(settings(), seed=0, own_path=tmp_path)


def test_own_image_folder_with_class_names(custom, tmp_path, encode):
    for part, label, value in (
        ("train", "cat", 10),
        ("train", "dog", 20),
        ("train", "3", 30),
        ("val", "dog", 40),
    ):
        file = tmp_path / part / label / "a.png"
        file.parent.mkdir(parents=True)
        file.write_bytes(encode(np.full((5, 7), value, np.uint8)))
    given = custom(class_names="bird, cat, dog, fish")
    data = load_client_data(given, seed=0, own_path=tmp_path)
    assert data.train.inputs.shape == (3, 3, 8, 8)
    pairs = zip(data.train.inputs[:, 0, 0, 0], data.train.targets, strict=True)
    assert {(int(pixel), int(label)) for pixel, label in pairs} == {
        (10, 1),
        (20, 2),
        (30, 3),
    }
    assert data.test.targets.tolist() == [2]
    assert (data.test.inputs == 40).all()


def test_own_arrays(settings, tmp_path):
    images = np.arange(2 * 64, dtype=np.uint8).reshape(2, 8, 8)
    np.savez(tmp_path / "train.npz", x=images, y=[4, 9])
    np.savez(tmp_path / "test.npz", x=images[:1], y=[4])
    data = load_client_data(settings(), seed=0, own_path=tmp_path)
    np.testing.assert_array_equal(data.train.inputs[:, 0], images)
    assert data.train.targets.tolist() == [4, 9]


def test_names_of_known_classes_need_no_setting(settings, tmp_path, write_images):
    write_images(tmp_path / "train.parquet", ["truck", "cat"])
    data = load_client_data(
        settings(dataset="cifar10", test_fraction=0.5), seed=0, own_path=tmp_path
    )
    assert {*data.train.targets.tolist(), *data.test.targets.tolist()} == {9, 3}


@pytest.mark.parametrize(
    ("labels", "size", "message"),
    [
        ([0, 10], (32, 32), "labels 10 lie outside 0 to 9"),
        (["cow", "cat"], (32, 32), "'cow' are neither class names .*airplane"),
        ([0, 1], (64, 64), r"64x64 pixels, but 32x32 .*: set image-size"),
    ],
)
def test_unusable_data_are_refused(
    settings, tmp_path, write_images, labels, size, message
):
    write_images(tmp_path / "train.parquet", labels, size)
    with pytest.raises(ValueError, match=message):
        load_client_data(settings(dataset="cifar10"), seed=0, own_path=tmp_path)


def test_second_load_decodes_nothing_until_the_file_changes(
    settings, tmp_path, write_images, monkeypatch
):
    file = tmp_path / "own" / "train.parquet"
    given = settings(dataset="cifar10")

    def load():
        return load_client_data(given, seed=0, own_path=file.parent)

    write_images(file, [1, 1])
    first = load()
    with monkeypatch.context() as patch:
        patch.setattr(decoded, "read_part", forbid)
        assert rows(load().train) == rows(first.train)
        # Decoding settings belong to the key.
        with pytest.raises(AssertionError):
            load_client_data(
                settings(dataset="cifar10", image_size=16), seed=0, own_path=file.parent
            )
    stat = file.stat()
    write_images(file, [2, 2], seed=1)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    assert load().train.targets.tolist() == [2]


def test_loaded_data_may_be_changed(settings, tmp_path, write_images):
    write_images(tmp_path / "train.parquet", [1, 1])
    given = settings(dataset="cifar10")
    data = load_client_data(given, seed=0, own_path=tmp_path)
    before = rows(data.train)
    data.train.inputs.fill_(0)
    again = load_client_data(given, seed=0, own_path=tmp_path)
    assert rows(again.train) == before


# One folder per client


@pytest.fixture
def clients_root(tmp_path, write_images):
    for i in (2, 10, 1):
        write_images(
            tmp_path / "root" / f"c{i}" / "train.parquet", [i % 10] * 4, seed=i
        )
    return tmp_path / "root"


def test_partition_id_picks_the_folder_in_natural_order(settings, clients_root):
    given = settings(dataset="cifar10", data_path=str(clients_root))
    loaded = [
        load_client_data(given, seed=0, partition_id=i, num_partitions=3)
        for i in range(3)
    ]
    assert [d.name for d in loaded] == ["c1", "c2", "c10"]
    assert [d.train.targets[0].item() for d in loaded] == [1, 2, 0]
    # The same data as a deployed node with this folder gets.
    own = load_client_data(given, seed=0, own_path=clients_root / "c2")
    assert rows(own.test) == rows(loaded[1].test)
    assert own.name is None


@pytest.mark.parametrize("partition_id", [0, 3])
def test_too_few_folders_are_named(settings, clients_root, partition_id):
    given = settings(dataset="cifar10", data_path=str(clients_root))
    with pytest.raises(ValueError, match=r"3 client folders \(c1 to c10\) for 4 clie"):
        load_client_data(given, seed=0, partition_id=partition_id, num_partitions=4)


def test_empty_client_folder_is_named(settings, clients_root):
    (clients_root / "c0").mkdir()
    given = settings(dataset="cifar10", data_path=str(clients_root))
    with pytest.raises(ValueError, match=r"no data in .*c0: expected"):
        load_client_data(given, seed=0, partition_id=0, num_partitions=4)


def test_root_without_anything_says_both_layouts(settings, tmp_path):
    given = settings(data_path=str(tmp_path))
    with pytest.raises(ValueError, match=r"train\.parquet .* or one folder per client"):
        load_client_data(given, seed=0, partition_id=0, num_partitions=4)


# One data set for all


@pytest.fixture
def central(tmp_path, write_images):
    """40 + 20 images of 10 classes; returns folder and all rows."""
    folder = tmp_path / "central"
    train = write_images(folder / "train-0.parquet", [i % 10 for i in range(40)])
    test = write_images(folder / "test.parquet", [i % 10 for i in range(20)], seed=1)
    return folder, as_rows(train) + as_rows(test)


@needs_datasets
@pytest.mark.parametrize("partition", ["dirichlet", "pathological", "iid"])
def test_one_data_set_is_merged_dealt_out_and_split(settings, central, partition):
    folder, everything = central
    given = settings(
        dataset="cifar10",
        data_path=str(folder),
        partition=partition,
        classes_per_client=4,
        min_partition_size=8,
    )
    loaded = [
        load_client_data(given, seed=5, partition_id=i, num_partitions=5)
        for i in range(5)
    ]
    found = [row for d in loaded for split in (d.train, d.test) for row in rows(split)]
    assert sorted(found) == sorted(everything)
    for data in loaded:
        size = len(data.train) + len(data.test)
        assert size >= 8
        assert len(data.test) == round(size / 4)
        assert data.name is None


@needs_datasets
def test_cached_partition_needs_no_partitioner(settings, central, monkeypatch):
    given = settings(dataset="cifar10", data_path=str(central[0]), min_partition_size=4)

    def load(seed=0, clients=4):
        return load_client_data(
            given, seed=seed, partition_id=1, num_partitions=clients
        )

    first = load()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "partition_rows", forbid)
        patch.setattr(decoded, "read_part", forbid)
        assert rows(load().train) == rows(first.train)
        for changed in ({"seed": 1}, {"clients": 5}):
            with pytest.raises(AssertionError):
                load(**changed)
    assert rows(load(seed=1).train) != rows(first.train)


@needs_datasets
def test_class_that_no_client_has_is_fine(settings, tmp_path, write_images):
    write_images(tmp_path / "train.parquet", [0, 7] * 10)
    given = settings(dataset="cifar10", data_path=str(tmp_path), min_partition_size=4)
    data = load_client_data(given, seed=0, partition_id=0, num_partitions=2)
    assert data.spec.num_classes == 10
    assert set(data.train.targets.tolist()) <= {0, 7}


@pytest.mark.parametrize("ids", [(2, 2), (-1, 2), (0, None)])
def test_impossible_partition_ids_are_refused(settings, central, ids):
    given = settings(dataset="cifar10", data_path=str(central[0]))
    with pytest.raises(ValueError, match=f"partition-id = {ids[0]} and num-partitions"):
        load_client_data(given, seed=0, partition_id=ids[0], num_partitions=ids[1])


def test_node_without_data_is_told_what_to_configure(settings):
    with pytest.raises(ValueError, match=r"needs data-path .* or partition-id"):
        load_client_data(settings(), seed=0)


def test_custom_data_cannot_be_downloaded(custom):
    with pytest.raises(
        ValueError, match="'custom' cannot be downloaded: set data-path"
    ):
        load_client_data(custom(), seed=0, partition_id=0, num_partitions=2)


# Text


@needs_datasets
def test_one_data_set_of_text_trains_its_tokenizer(settings, tmp_path, write_parquet):
    texts = [f"story number {i} about cats" for i in range(12)]
    labels = ["World", "Sports", "Business", "Sci/Tech"] * 3
    write_parquet(tmp_path / "train.parquet", text=texts, label=labels)
    given = settings(dataset="agnews", data_path=str(tmp_path), min_partition_size=4)
    data = load_client_data(given, seed=0, partition_id=0, num_partitions=2)
    assert data.spec == DataSpec("text", (200,), 4, 32_000)
    assert data.train.inputs.dtype == torch.int32
    tokenizer = train_tokenizer(texts)
    cls = tokenizer.token_to_id("[CLS]")
    assert (data.train.inputs[:, 0] == cls).all()
    expected = {tuple(tokenizer.encode(text).ids) for text in texts}
    assert {tuple(x for x in row if x) for row in rows(data.train)} <= expected
    # A tokenizer that lies beside the data goes first.
    train_tokenizer(["cats"]).save(str(tmp_path / "tokenizer.json"))
    again = load_client_data(given, seed=0, partition_id=0, num_partitions=2)
    assert rows(again.train) != rows(data.train)


@needs_datasets
@pytest.mark.parametrize("place", ["own", "."])
def test_own_text_takes_the_shared_tokenizer(settings, tmp_path, write_parquet, place):
    own = tmp_path / "own"
    write_parquet(own / "train.parquet", text=["a cat", "a dog"], label=[0, 1])
    with pytest.raises(ValueError, match=r"no tokenizer\.json in .*python -m common"):
        load_client_data(settings(dataset="agnews"), seed=0, own_path=own)
    tokenizer = train_tokenizer(["a cat and a dog"])
    tokenizer.save(str(tmp_path / place / "tokenizer.json"))
    data = load_client_data(settings(dataset="agnews"), seed=0, own_path=own)
    found = [row[: row.index(0)] for row in rows(data.train) + rows(data.test)]
    expected = [tuple(tokenizer.encode(text).ids) for text in ("a cat", "a dog")]
    assert sorted(found) == sorted(expected)


# Reproducibility

PROGRAM = """
import hashlib, sys
from common.data import load_client_data
from common.settings import DataSettings

def digests(cache, *paths):
    for dataset, path in zip(("cifar10", "agnews"), paths, strict=True):
        given = DataSettings(
            dataset=dataset, data_path=path, cache_dir=cache, min_partition_size=4
        )
        data = load_client_data(given, seed=0, partition_id=1, num_partitions=4)
        for split in (data.train, data.test):
            yield hashlib.sha256(split.inputs.numpy().tobytes()).hexdigest()
"""


@needs_datasets
def test_other_process_with_other_hashes_loads_the_same(
    settings, tmp_path, central, write_parquet
):
    rng = np.random.default_rng(0)
    letters = rng.choice(list("abcdefghijklmnop"), (60, 20))
    texts = [" ".join("".join(word) for word in np.split(t, 5)) for t in letters]
    write_parquet(tmp_path / "text" / "train.parquet", text=texts, label=[0, 1] * 30)

    paths = [str(central[0]), str(tmp_path / "text")]
    here: dict[str, Any] = {}
    exec(PROGRAM, here)
    expected = list(here["digests"](str(tmp_path / "here"), *paths))
    assert len(set(expected)) == 4
    there = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM + "print(*digests(*sys.argv[1:]))",
            str(tmp_path / "there"),
            *paths,
        ],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == expected
