from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.common import RecordDict

from client_app.personal_state import FileStore, MemoryStore, PersonalState, StateError

STATE = PersonalState(
    method="xfed",
    model="convnet",
    run="1f",
    server_round=5,
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
    assert MemoryStore(records).load(0) is None
    MemoryStore(records).save(STATE, 0)
    same(MemoryStore(records).load(5), STATE)


def test_file_round_trip(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "experiment", "a client/1", "1f")
    assert store.load(5) is None
    store.save(STATE, 0)
    same(FileStore(tmp_path / "experiment", "a client/1", "1f").load(5), STATE)
    assert len(list((tmp_path / "experiment").iterdir())) == 1


def state(server_round: int, rounds_trained: int) -> PersonalState:
    return replace(STATE, server_round=server_round, rounds_trained=rounds_trained)


def rounds(folder: Path) -> list[int]:
    return sorted(int(p.stem[-6:]) for p in folder.rglob("*.safetensors"))


def test_goes_back_to_the_state_before_a_repeated_round(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "a", "1f")
    store.save(state(2, 1), checkpoint=1)
    store.save(state(4, 2), checkpoint=3)
    same(store.load(4), state(4, 2))
    same(store.load(3), state(2, 1))
    assert store.load(1) is None  # it first trained in round 2
    # The server goes back to round 3, the client repeats round 4 and goes on.
    store.save(state(4, 2), checkpoint=3)
    assert rounds(tmp_path) == [2, 4]
    store.save(state(6, 3), checkpoint=5)
    assert rounds(tmp_path) == [4, 6]


def test_keeps_what_a_resumed_server_may_ask_for(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "a", "1f")
    for t in range(1, 8):  # checkpoints after rounds 3 and 6
        store.save(state(t, t), checkpoint=(t - 1) // 3 * 3)
    assert rounds(tmp_path) == [6, 7]
    store.save(state(4, 4), checkpoint=3)  # the server lost its last checkpoint
    assert rounds(tmp_path) == [4]
    with pytest.raises(StateError, match="no state from before round 3"):
        store.load(2)


def test_parts() -> None:
    assert list(STATE.part("model")) == ["exits.0.weight", "bn.num_batches_tracked"]
    assert list(STATE.part("momentum.network")) == ["w"]


def test_failed_write_keeps_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, "a", "1f")
    store.save(STATE, 0)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        store.save(state(6, 4), 5)
    monkeypatch.undo()
    same(store.load(6), STATE)
    assert len(list(tmp_path.rglob("*.*"))) == 1


@pytest.mark.parametrize("size", [0, 4, 100])
def test_truncated_file_is_named(tmp_path: Path, size: int) -> None:
    store = FileStore(tmp_path, "a", "1f")
    store.save(STATE, 0)
    path = tmp_path / "client-a" / "round-000005.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StateError, match=r"round-000005\.safetensors is damaged"):
        store.load(5)


def test_foreign_file_is_named(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    (tmp_path / "client-a").mkdir()
    save_file({"x": np.ones(2)}, tmp_path / "client-a" / "round-000001.safetensors")
    with pytest.raises(StateError, match="no personal state of schema"):
        FileStore(tmp_path, "a", "1f").load(1)


def test_state_of_another_method_or_model_is_refused() -> None:
    STATE.check("xfed", "convnet", "here")
    with pytest.raises(StateError, match="here belongs to method 'xfed'"):
        STATE.check("fedper", "convnet", "here")
    with pytest.raises(StateError, match="'resnet18'"):
        STATE.check("xfed", "resnet18", "here")


def test_states_of_another_run_are_refused(tmp_path: Path) -> None:
    FileStore(tmp_path, "a", "1f").save(STATE, 0)
    for last_round in (0, 9):
        with pytest.raises(StateError, match=r"run '1f' .* starts anew: choose"):
            FileStore(tmp_path, "a", "2e").load(last_round)


def test_values_that_are_not_finite_are_named() -> None:
    STATE.require_finite("here")
    wild = replace(STATE, arrays={"model.w": np.array([1.0, np.inf])})
    with pytest.raises(StateError, match=r"model\.w .* here keeps its last good"):
        wild.require_finite("here")


def test_similar_names_have_files_of_their_own(tmp_path: Path) -> None:
    names = ["ward a", "ward/a", "ward_a", "Bär", "Bör", "..", "a%2Fb"]
    assert len({FileStore(tmp_path, name, "1f").where for name in names}) == len(names)
    for name in names:
        FileStore(tmp_path, name, "1f").save(STATE, 0)
    assert len(list(tmp_path.iterdir())) == len(names)
