"""Runs are read in whatever state they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import made_up_runs
import pytest

from server_app.report.runs import find_runs, newest, read_run, spans


def test_a_finished_run(tmp_path: Path) -> None:
    reasons = {"client-001": "no reply within 60 s"}
    run = read_run(made_up_runs.write(tmp_path / "a", failures=reasons))
    assert run.finished
    assert [number for number, _ in run.evaluations] == [2, 4, 6, 8]
    assert run.macs == list(made_up_runs.MACS)
    assert run.num_clients == len(run.clients) == 6
    # Half of six clients train in each of eight rounds, less those that failed.
    failed = sum(len(failure.rounds) for failure in run.failures)
    assert sum(run.rounds_trained.values()) == 8 * 3 - failed
    (failure,) = run.failures
    assert (failure.client, failure.phase) == ("client-001", "training")
    assert failure.reason == "no reply within 60 s"
    assert run.rounds_trained["client-001"] == 0
    # Last client, exit 3, round 8 of 8: 0.2 + 0.4 + 2 · 0.05 + 0.2.
    assert run.clients["client-005"].per_exit[2] == pytest.approx(0.9)
    assert run.costs["energy-joules"]["client-002"][0] == 40.0


def test_a_run_that_goes_on_or_was_cut_off_in_a_line(tmp_path: Path) -> None:
    folder = made_up_runs.write(tmp_path / "a", ended="")
    for name in ("rounds.jsonl", "clients.csv"):
        path = folder / name
        path.write_text(path.read_text()[:-9])
    run = read_run(folder)
    assert run.status == "after round 7: still going on, or cut off"
    assert len(run.rounds) == 7
    assert run.clients["client-005"].server_round == 8  # its last row alone is lost
    assert run.clients["client-005"].early is None


def test_a_resumed_run_is_not_finished_by_an_old_summary(tmp_path: Path) -> None:
    folder = made_up_runs.write(tmp_path / "a")
    (folder / "summary.json").write_text(json.dumps({"ended": "finished", "rounds": 5}))
    assert not read_run(folder).finished


def test_how_a_run_failed(tmp_path: Path) -> None:
    folder = made_up_runs.write(tmp_path / "a", ended="QuorumMissed: 3 rounds")
    assert read_run(folder).status == "QuorumMissed: 3 rounds"


def test_a_run_of_an_earlier_version(tmp_path: Path) -> None:
    folder = made_up_runs.write(tmp_path / "a", epsilon=False)
    stored = json.loads((folder / "settings.json").read_text())
    del stored["settings"]["tensorboard"], stored["versions"]
    (folder / "settings.json").write_text(json.dumps(stored))
    (folder / "roster.json").unlink()
    (folder / "summary.json").write_text(json.dumps({"rounds": 8}))
    run = read_run(folder)
    assert run.settings["tensorboard"] is False
    assert run.num_clients == 6
    assert run.finished


def test_a_run_without_a_round(tmp_path: Path) -> None:
    folder = made_up_runs.write(tmp_path / "a", ended="")
    for name in ("rounds.jsonl", "clients.csv", "roster.json"):
        (folder / name).unlink()
    run = read_run(folder)
    assert run.num_clients == 0
    assert run.last == {}
    assert run.macs == []


def test_what_holds_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"settings\.json is missing"):
        read_run(tmp_path)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings\.json cannot be read"):
        read_run(tmp_path)
    with pytest.raises(ValueError, match="neither is a run nor holds one"):
        find_runs([tmp_path / "nothing"])
    with pytest.raises(ValueError, match="holds no run"):
        newest(tmp_path)


def test_folders_of_runs_stand_for_their_runs(tmp_path: Path) -> None:
    a, b = (made_up_runs.write(tmp_path / "runs" / name, rounds=1) for name in "ab")
    (tmp_path / "runs" / "report").mkdir()
    found = find_runs([tmp_path / "runs", a])
    assert found == [a, b]
    everything = sorted((tmp_path / "runs").iterdir())
    assert find_runs(everything, leave_out=tmp_path / "runs" / "report") == [a, b]


def test_the_newest_is_the_one_with_the_last_round(tmp_path: Path) -> None:
    old = made_up_runs.write(tmp_path / "old", rounds=1)
    compared = made_up_runs.write(tmp_path / "simulate-1" / "xfed", rounds=1)
    os.utime(old / "rounds.jsonl", (1_000, 1_000))
    os.utime(compared / "rounds.jsonl", (2_000, 2_000))
    assert newest(tmp_path) == tmp_path / "simulate-1"
    os.utime(old / "rounds.jsonl", (3_000, 3_000))
    assert newest(tmp_path) == old


def test_spans() -> None:
    assert spans([7, 1, 3, 2, 9, 10]) == "1–3, 7, 9–10"
    assert spans([4]) == "4"
    assert spans([]) == ""
