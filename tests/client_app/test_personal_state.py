from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import RecordDict

from client_app.personal_state import FileStore, MemoryStore, PersonalState, StateError
from common.locks import FolderError

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
    (path,) = tmp_path.rglob("*.safetensors")
    assert path.stat().st_mode & 0o777 == 0o600


def state(server_round: int, rounds_trained: int) -> PersonalState:
    return replace(STATE, server_round=server_round, rounds_trained=rounds_trained)


def rounds(folder: Path) -> list[int]:
    return sorted(int(p.stem[-6:]) for p in folder.rglob("*.safetensors"))


def after_starts(folder: Path, *starts: int) -> FileStore:
    """Return the client's store as messages of the last of these starts open it."""
    return FileStore(folder, "a", "1f", starts)


def test_goes_back_to_the_state_before_a_repeated_round(tmp_path: Path) -> None:
    store = after_starts(tmp_path, 0)
    store.save(state(2, 1), checkpoint=1)
    store.save(state(4, 2), checkpoint=3)
    same(store.load(4), state(4, 2))
    same(store.load(3), state(2, 1))
    # The server goes back to round 3, the client repeats round 4 and goes on.
    store = after_starts(tmp_path, 0, 3)
    same(store.load(3), state(2, 1))
    store.save(state(4, 2), checkpoint=3)
    assert rounds(tmp_path) == [2, 4]
    store.save(state(6, 3), checkpoint=5)
    assert rounds(tmp_path) == [4, 6]


def test_a_first_training_that_was_lost_leaves_nothing(tmp_path: Path) -> None:
    after_starts(tmp_path, 0).save(state(2, 1), checkpoint=0)
    assert after_starts(tmp_path, 0, 1).load(1) is None
    assert after_starts(tmp_path, 0, 1).load(9) is None


def test_training_that_was_lost_with_the_server_never_counts(tmp_path: Path) -> None:
    after_starts(tmp_path, 0).save(state(2, 1), checkpoint=1)
    after_starts(tmp_path, 0).save(state(4, 2), checkpoint=3)
    # Round 4 is repeated with other clients; round 7 is this client's next one.
    store = after_starts(tmp_path, 0, 3)
    same(store.load(6), state(2, 1))
    store.save(state(7, 2), checkpoint=4)
    assert rounds(tmp_path) == [2, 7]  # of those that count, 2 was the last in round 4
    # A third start goes back to round 8: all that the second did by then counts.
    same(after_starts(tmp_path, 0, 3, 8).load(8), state(7, 2))
    # Had it gone back to round 5, round 7 would be lost, too.
    same(after_starts(tmp_path, 0, 3, 5).load(8), state(2, 1))


def test_keeps_what_a_resumed_server_may_ask_for(tmp_path: Path) -> None:
    store = after_starts(tmp_path, 0)
    for t in range(1, 8):  # checkpoints after rounds 3 and 6
        store.save(state(t, t), checkpoint=(t - 1) // 3 * 3)
    assert rounds(tmp_path) == [6, 7]
    store = after_starts(tmp_path, 0, 3)  # the server lost its last checkpoint
    with pytest.raises(StateError, match="no state from before round 4"):
        store.load(3)
    assert rounds(tmp_path) == [6, 7]


def test_messages_that_come_too_late_change_nothing(tmp_path: Path) -> None:
    after_starts(tmp_path, 0, 3).save(state(5, 3), checkpoint=3)
    same(after_starts(tmp_path, 0, 3).load(5), state(5, 3))
    with pytest.raises(StateError, match="of round 5 already: this message came too"):
        after_starts(tmp_path, 0, 3).load(3)
    with pytest.raises(StateError, match="this message is from before"):
        after_starts(tmp_path, 0).load(5)


def test_two_nodes_never_train_one_client_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.locks._MOMENT", 0.1)
    with (
        FileStore(tmp_path, "a", "1f").lock("17", 0),
        FileStore(tmp_path, "b", "1f").lock("18", 0),  # another client
    ):
        with (
            pytest.raises(
                FolderError,
                match=r"client-a is in use by node 17, this is node 18: give each node "
                "a client-name or state-dir of its",
            ),
            FileStore(tmp_path, "a", "1f").lock("18", 600),
        ):
            pytest.fail("two nodes at a time")
        with (  # an earlier message of the same node is waited for
            pytest.raises(FolderError, match="by node 17, this is node 17"),
            FileStore(tmp_path, "a", "1f").lock("17", 0.3),
        ):
            pytest.fail("two messages at a time")
    with FileStore(tmp_path, "a", "1f").lock("18", 0):
        pass


def forked(act: Callable[[], None]) -> int:
    """Run `act` in a process of its own and return its id."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(1)
    return child


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_lock_of_a_killed_process_blocks_nobody(tmp_path: Path) -> None:
    def hold() -> None:
        with FileStore(tmp_path, "a", "1f").lock("17", 0):
            (tmp_path / "held").touch()
            time.sleep(600)

    child = forked(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with FileStore(tmp_path, "a", "1f").lock("18", 0):
        pass


EFFECTS = {"open", "write", "flush", "fsync", "replace", "close", "unlink"}
"""Calls by which a file comes into being, is filled, takes its name or goes."""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_at_any_moment_of_saving(tmp_path: Path) -> None:
    """A process saves a state and is killed before its n-th step, for every n."""
    before = tmp_path / "before"
    for t in (1, 2, 4):
        after_starts(before, 0).save(state(t, t), checkpoint=0)

    def saves(folder: Path) -> None:  # writes 5; 4 is void, 1 no longer needed
        after_starts(folder, 0, 3).save(state(5, 3), checkpoint=3)

    left, moment, killed = set(), 0, True
    while killed:
        moment += 1
        folder = tmp_path / f"killed-{moment}"
        shutil.copytree(before, folder)

        def dies(folder: Path = folder, moment: int = moment) -> None:
            steps = itertools.count(1)

            def step(_: object, event: str, function: Any) -> None:
                effect = event == "c_call" and function.__name__ in EFFECTS
                if effect and next(steps) == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.setprofile(step)
            saves(folder)

        _, status = os.waitpid(forked(dies), 0)
        killed = os.WIFSIGNALED(status)
        store = after_starts(folder, 0, 3)
        same(store.load(4), state(2, 2))
        last = store.load(5)
        assert last is not None
        left.add(last.server_round)
        same(last, state(2, 2) if last.server_round == 2 else state(5, 3))
        saves(folder)
        assert rounds(folder) == [2, 5]
        assert len(list((folder / "client-a").iterdir())) == 2
    assert left == {2, 5}
    assert moment > 8


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
