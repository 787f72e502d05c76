"""TensorBoard's own reader finds each round once, also after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toy
from local_grid import LocalGrid

from common.schema import SettingsError
from server_app import event_files
from server_app.methods import FedAvg
from server_app.results import Results


def play(grid: LocalGrid, rounds: int, folder: Path, **changes: Any) -> None:
    settings = toy.settings(
        output_dir=str(folder), experiment="trial", tensorboard=True, **changes
    )
    strategy = FedAvg(settings, results=Results.open(settings))
    strategy.start(grid, toy.initial(), num_rounds=rounds, timeout=5.0)


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    pytest.importorskip("tensorboard", reason="needs the extra 'tensorboard'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "trial" / "tensorboard"))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_scalars_by_round_and_exit(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra 'tensorboard'")
    play(toy.grid(3), 2, tmp_path)
    found = read(tmp_path)
    # Clients get 0, 10 and 20 percent right at both exits.
    assert found["evaluate/accuracy-mean"] == [
        (1, pytest.approx(0.1)),
        (2, pytest.approx(0.1)),
    ]
    assert found["evaluate/exit-accuracy-mean/2"][-1] == (2, pytest.approx(0.1))
    assert found["train/train-loss"] == [(1, 0.5), (2, 0.5)]
    assert found["train/clients"] == [(1, 3.0), (2, 3.0)]
    assert found["train/failures"] == [(1, 0.0), (2, 0.0)]


def test_a_resumed_run_has_each_round_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra 'tensorboard'")
    play(toy.grid(3), 5, tmp_path, checkpoint_every=2, checkpoints_kept=9)
    for late in (tmp_path / "trial" / "checkpoints").glob("*5.*"):
        late.unlink()  # as if cut off between rounds 5 and 6
    play(toy.grid(3), 6, tmp_path, checkpoint_every=2, resume=True)
    assert [step for step, _ in read(tmp_path)["train/train-loss"]] == [
        *range(1, 7),
    ]


def test_a_missing_package_is_named_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install '\.\[tensorboard\]'"):
        play(toy.grid(3), 1, tmp_path)
    assert not (tmp_path / "trial").exists()
