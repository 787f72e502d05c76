from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from server_app.checkpoint import Checkpoint, CheckpointError, CheckpointStore


def checkpoint(server_round: int) -> Checkpoint:
    return Checkpoint(
        method="xfed",
        server_round=server_round,
        shared={"w": np.full((2, 3), server_round, np.float32), "s": np.array(1.5)},
        groups={
            "exit/a": {"w": np.ones(2, np.float32)},
            "exit/a/b": {"w": np.zeros(2, np.float32)},
            "none": {},
        },
        trained={"client-1": server_round},
        tally={"rounds": server_round, "last_round": {"x": [1, None]}},
    )


def test_round_trip_and_retention(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.latest("xfed") is None
    for t in (1, 2, 3, 10):
        store.save(checkpoint(t))
    kept = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert kept == ["round-000003.safetensors", "round-000010.safetensors"]
    found = store.latest("xfed")
    assert found is not None
    expected = checkpoint(10)
    assert (found.server_round, found.tally) == (10, expected.tally)
    assert found.trained == {"client-1": 10}
    assert found.groups.keys() == expected.groups.keys()
    for name, state in {"": expected.shared, **expected.groups}.items():
        other = found.groups[name] if name else found.shared
        assert state.keys() == other.keys()
        for key, value in state.items():
            assert other[key].dtype == value.dtype
            assert other[key].shape == value.shape
            np.testing.assert_array_equal(other[key], value)


def test_unusable_checkpoints_are_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(checkpoint(1))
    with pytest.raises(CheckpointError, match="of method 'xfed'"):
        store.latest("fedper")
    path = tmp_path / "round-000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"round-000001.* is damaged .* remove"):
        store.latest("xfed")


def test_the_oldest_round_to_go_back_to(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    oldest = []
    for t in (1, 2, 3, 10):
        store.save(checkpoint(t))
        oldest.append(store.oldest())
    assert oldest == [0, 1, 2, 3]


def test_every_start_is_noted(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "a", keep=2).begin(0) == [0]
    assert CheckpointStore(tmp_path / "a", keep=2).begin(3) == [0, 3]
    assert CheckpointStore(tmp_path / "a", keep=2).begin(3) == [0, 3, 3]
    (tmp_path / "a" / "starts.json").write_text("[0, 3")
    with pytest.raises(CheckpointError, match=r"starts\.json is damaged .* \[0\]"):
        CheckpointStore(tmp_path / "a", keep=2).begin(3)


def test_a_writer_that_was_killed_leaves_no_litter(tmp_path: Path) -> None:
    (tmp_path / ".round-000001.safetensors.x1.tmp").write_bytes(b"half")
    CheckpointStore(tmp_path, keep=2).save(checkpoint(1))
    assert [p.name for p in tmp_path.iterdir()] == ["round-000001.safetensors"]
