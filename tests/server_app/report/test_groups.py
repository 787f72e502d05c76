"""Which runs are averaged, which compared, and what they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_up_runs
import pytest

from server_app.report import tables
from server_app.report.groups import tasks
from server_app.report.runs import Run, read_run


def run(folder: Path, name: str, **options: Any) -> Run:
    return read_run(made_up_runs.write(folder / name, **options))


def test_runs_that_differ_in_their_seed_alone_are_averaged(tmp_path: Path) -> None:
    runs = [
        run(tmp_path, f"s{seed}", seed=seed, shift=shift, experiment=f"s{seed}")
        for seed, shift in enumerate((0.0, 0.03, 0.06))
    ]
    runs.append(run(tmp_path, "fedper", method="fedper"))
    (task,) = tasks(runs)
    assert [group.label for group in task.groups] == ["xfed", "fedper"]
    group = task.groups[0]
    assert [member.name for member in group.runs] == ["s0", "s1", "s2"]
    rounds, mean, spread = group.over_rounds("accuracy-mean")
    assert rounds == [2, 4, 6, 8]
    # Round 8: 0.2 + 0.4 + 0.05 (mean of exits) + 0.1 (mean of clients) + shift.
    assert mean[-1] == pytest.approx(0.75 + 0.03)
    assert spread[-1] == pytest.approx(0.03)  # sample deviation of 0, 3, 6 percent
    row = tables.summary(task).rows[0]
    assert [cell.text for cell in row[:4]] == ["xfed", "0, 1, 2", "8", "78.00 ± 3.00"]


def test_only_rounds_that_all_seeds_have(tmp_path: Path) -> None:
    short = made_up_runs.write(tmp_path / "short", rounds=8, ended="")
    lines = (short / "rounds.jsonl").read_text().splitlines(keepends=True)
    (short / "rounds.jsonl").write_text("".join(lines[:5]))
    runs = [read_run(short), run(tmp_path, "whole", seed=1)]
    ((group,),) = (task.groups for task in tasks(runs))
    assert group.over_rounds("accuracy-mean")[0] == [2, 4]


def test_labels_say_what_sets_runs_of_one_method_apart(tmp_path: Path) -> None:
    runs = [
        run(tmp_path, "a"),
        run(tmp_path, "b", xfed__schedule="linear", state_dir="elsewhere"),
        run(tmp_path, "c", method="fedavg"),
    ]
    (task,) = tasks(runs)
    assert [group.label for group in task.groups] == [
        "xfed, xfed.schedule constant",
        "xfed, xfed.schedule linear",
        "fedavg",
    ]
    names = [row[0].text for row in tables.differences(task).rows]
    assert names == ["method", "state-dir", "xfed.schedule"]


def test_other_data_or_numbers_of_clients_are_other_tasks(tmp_path: Path) -> None:
    runs = [
        run(tmp_path, "a"),
        run(tmp_path, "b", dirichlet_alpha=0.1),
        run(tmp_path, "c", clients=4),
        run(tmp_path, "d", classes_per_client=3),  # means nothing for Dirichlet
        run(tmp_path, "e", partition="pathological"),
    ]
    assert [(task.title, len(task.runs)) for task in tasks(runs)] == [
        ("digits, Dirichlet(0.3), 6 clients", 2),
        ("digits, Dirichlet(0.1), 6 clients", 1),
        ("digits, Dirichlet(0.3), 4 clients", 1),
        ("digits, 2 classes per client, 6 clients", 1),
    ]
