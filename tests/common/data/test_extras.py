from __future__ import annotations

import sys
from importlib import metadata

import pytest

from common.data.download import fetch
from common.data.partition import partitioner_version
from common.data.text import load_tokenizer, train_tokenizer


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("sklearn.datasets", lambda folder: fetch("digits", folder)),
        ("tokenizers", lambda folder: train_tokenizer(["a"])),
        ("tokenizers", lambda folder: load_tokenizer(folder)),
    ],
)
def test_missing_package_names_what_to_install(monkeypatch, tmp_path, package, use):
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"needs the package {package}, .*pip install '.*\[datasets\]'"
    with pytest.raises(ModuleNotFoundError, match=message):
        use(tmp_path)


def test_missing_partitioners_name_what_to_install(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(ModuleNotFoundError, match="clients needs the package flwr-d"):
        partitioner_version()
