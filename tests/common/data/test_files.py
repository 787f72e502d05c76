from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.data.files import client_folders, find_parts, natural_key


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_natural_order():
    names = ["client-10", "client-2", "client-02", "b", "client-2a", "10", "9"]
    assert sorted(names, key=natural_key) == [
        "9", "10", "b", "client-02", "client-2", "client-2a", "client-10",
    ]  # fmt: skip


def test_shards_in_order_and_validation_counts_as_test(tmp_path):
    names = ["train-2.parquet", "train-10.parquet", "valid.parquet", "test_a.parquet"]
    touch(*(tmp_path / n for n in names))
    touch(tmp_path / "training-notes.txt", tmp_path / "trainer.parquet")
    train, test = find_parts(tmp_path)
    assert (train.name, train.format, test.name) == ("train", "Parquet", "test")
    assert [f.name for f in train.files] == ["train-2.parquet", "train-10.parquet"]
    assert [f.name for f in test.files] == ["test_a.parquet", "valid.parquet"]


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_image_folders(tmp_path, name):
    touch(
        tmp_path / "train" / "dog" / "2.PNG",
        tmp_path / "train" / "dog" / "images" / "10.jpeg",
        tmp_path / "train" / "dog" / "._2.PNG",
        tmp_path / "train" / "dog" / "notes.txt",
        tmp_path / "train" / ".hidden" / "1.png",
        tmp_path / "train" / "cat" / "1.png",
        tmp_path / name / "cat" / "1.png",
    )
    train, test = find_parts(tmp_path)
    assert train.format == "image folder"
    assert [f.name for f in train.files] == ["1.png", "2.PNG", "10.jpeg"]
    assert train.class_names == ("cat", "dog", "dog")
    assert (test.name, test.class_names) == ("test", ("cat",))


def test_two_formats_are_refused(tmp_path):
    touch(tmp_path / "train.parquet", tmp_path / "train.npz")
    with pytest.raises(ValueError, match="as Parquet and as npz: keep one"):
        find_parts(tmp_path)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no folder .*absent"):
        find_parts(tmp_path / "absent")


def test_client_folders_without_hidden_ones(tmp_path):
    for name in ("c10", "c9", ".git", "__pycache__"):
        (tmp_path / name).mkdir()
    touch(tmp_path / "tokenizer.json")
    assert [f.name for f in client_folders(tmp_path)] == ["c9", "c10"]
    assert find_parts(tmp_path) == []


def test_a_list_that_was_kept_follows_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("common.data.files._SETTLED", 0)
    (tmp_path / "client-0").mkdir()
    os.utime(tmp_path, ns=(1, 1))
    assert [folder.name for folder in client_folders(tmp_path)] == ["client-0"]
    assert client_folders(tmp_path) == client_folders(tmp_path)
    (tmp_path / "client-1").mkdir()
    os.utime(tmp_path, ns=(2, 2))
    names = [folder.name for folder in client_folders(tmp_path)]
    assert names == ["client-0", "client-1"]
