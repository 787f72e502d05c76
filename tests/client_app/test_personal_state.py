from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from flwr.common import RecordDict

from client_app.personal_state import FileStore, MemoryStore, PersonalState, StateError

STATE = PersonalState(
    method="xfed",
    model="convnet",
    run="1f",
    rounds_trained=3,
    arrays={
        "model.exits.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model.bn.num_batches_tracked": np.array(7),
        "momentum.network.w": np.ones((2, 2), np.float32).T,
    },
)


def same(a: PersonalState | None, b: PersonalState) -> None:
    assert a is not None
    assert (a.method, a.model, a.rounds_trained) == (
        b.method,
        b.model,
        b.rounds_trained,
    )
    assert a.arrays.keys() == b.arrays.keys()
    for key, value in b.arrays.items():
        assert a.arrays[key].dtype == value.dtype
        assert a.arrays[key].shape == value.shape
        np.testing.assert_array_equal(a.arrays[key], value)


def test_memory_round_trip() -> None:
    records = RecordDict()
    assert MemoryStore(records).load() is None
    MemoryStore(records).save(STATE)
    same(MemoryStore(records).load(), STATE)


def test_file_round_trip(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "experiment", "a client/1")
    assert store.load() is None
    store.save(STATE)
    same(FileStore(tmp_path / "experiment", "a client/1").load(), STATE)
    assert len(list((tmp_path / "experiment").iterdir())) == 1


def test_parts() -> None:
    assert list(STATE.part("model")) == ["exits.0.weight", "bn.num_batches_tracked"]
    assert list(STATE.part("momentum.network")) == ["w"]


def test_failed_write_keeps_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, "a")
    store.save(STATE)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        store.save(
            PersonalState(method="xfed", model="convnet", run="1f", rounds_trained=4)
        )
    monkeypatch.undo()
    same(store.load(), STATE)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("size", [0, 4, 100])
def test_truncated_file_is_named(tmp_path: Path, size: int) -> None:
    store = FileStore(tmp_path, "a")
    store.save(STATE)
    path = tmp_path / "a.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StateError, match=r"a\.safetensors is damaged .* move it away"):
        store.load()


def test_foreign_file_is_named(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.ones(2)}, tmp_path / "a.safetensors")
    with pytest.raises(StateError, match="no personal state of schema"):
        FileStore(tmp_path, "a").load()


def test_state_of_another_run_is_refused() -> None:
    STATE.check("xfed", "convnet", "1f", "here")
    with pytest.raises(StateError, match="here belongs to method 'xfed'"):
        STATE.check("fedper", "convnet", "1f", "here")
    with pytest.raises(StateError, match="'resnet18'"):
        STATE.check("xfed", "resnet18", "1f", "here")
    with pytest.raises(StateError, match=r"run '1f' .* starts anew: choose another"):
        STATE.check("xfed", "convnet", "2e", "here")


def test_values_that_are_not_finite_are_named() -> None:
    STATE.require_finite("here")
    arrays = {"model.w": np.array([1.0, np.inf])}
    state = PersonalState(
        method="xfed", model="convnet", run="", rounds_trained=1, arrays=arrays
    )
    with pytest.raises(StateError, match=r"model\.w .* here keeps its last good"):
        state.require_finite("here")


def test_similar_names_have_files_of_their_own(tmp_path: Path) -> None:
    names = ["ward a", "ward/a", "ward_a", "Bär", "Bör", "..", "a%2Fb"]
    assert len({FileStore(tmp_path, name).where for name in names}) == len(names)
    for name in names:
        FileStore(tmp_path, name).save(STATE)
    assert len(list(tmp_path.iterdir())) == len(names)
