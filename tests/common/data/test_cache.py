from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from common.data.cache import build_once, cache_root, digest, fingerprint, read_array


def test_entry_is_built_once_by_threads_that_start_together(tmp_path):
    entry = tmp_path / "kind" / "entry"
    builds: list[Path] = []
    seen: list[list[str]] = []
    together = threading.Barrier(4)

    def build(folder: Path) -> None:
        builds.append(folder)
        time.sleep(0.05)
        np.save(folder / "a.npy", np.arange(3))

    def use() -> None:
        together.wait()
        build_once(entry, build)
        seen.append([f.name for f in entry.iterdir()])

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert seen == [["a.npy"]] * 4


def test_failure_leaves_nothing_and_may_be_repeated(tmp_path):
    entry = tmp_path / "entry"

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ValueError("broken input")

    with pytest.raises(ValueError, match="broken input"):
        build_once(entry, fail)
    assert [f.name for f in tmp_path.iterdir()] == ["entry.lock"]
    build_once(entry, lambda folder: np.save(folder / "a.npy", np.arange(2)))
    assert read_array(entry, "a").tolist() == [0, 1]


def test_what_a_killed_process_left_is_not_used(tmp_path):
    entry = tmp_path / "entry"
    (tmp_path / "entry.unfinished").mkdir()
    (tmp_path / "entry.unfinished" / "half").touch()
    build_once(entry, lambda folder: (folder / "whole").touch())
    assert [f.name for f in entry.iterdir()] == ["whole"]


@pytest.mark.parametrize(("size", "mapped"), [(4, False), (2**18, True)])
def test_large_arrays_are_mapped_and_none_can_be_changed(tmp_path, size, mapped):
    np.save(tmp_path / "a.npy", np.arange(size))
    array = read_array(tmp_path, "a")
    assert isinstance(array, np.memmap) == mapped
    assert not array.flags.writeable


def test_fingerprint_follows_path_size_and_time(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"1234")
    os.utime(file, ns=(1, 5_000))
    assert fingerprint([file]) == [(str(file), 4, 5_000)]


def test_digest_tells_values_apart_and_is_stable():
    assert digest(1, [2, "a"]) == digest(1, [2, "a"])
    assert len({digest(1, 2), digest(2, 1), digest("1", 2), digest([1, 2])}) == 4
    # sha256 of "[0]"
    assert digest(0) == "d0bca111f8628137adc4c16f123496dc"


def test_place_of_the_cache(settings, monkeypatch, tmp_path):
    assert cache_root(settings(cache_dir="/x/y")) == Path("/x/y")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root(settings(cache_dir="")) == tmp_path / "flower-personalized"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".cache" / "flower-personalized"
    assert cache_root(settings(cache_dir="")) == expected
