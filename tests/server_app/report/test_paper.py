"""Published figures stand beside the runs they belong to, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_up_runs
import pytest

from server_app.report import tables
from server_app.report.groups import tasks
from server_app.report.paper import PFEDES, XFED, published
from server_app.report.runs import Run, read_run


def run(folder: Path, **options: Any) -> Run:
    options = {"rounds": 1, "dataset": "cifar10"} | options
    return read_run(made_up_runs.write(folder / "run", **options))


@pytest.mark.parametrize(
    ("settings", "clients", "value", "source"),
    [
        ({"method": "xfed"}, 100, 72.67, XFED),
        ({"method": "fedper", "dirichlet_alpha": 0.1}, 20, 82.58, XFED),
        ({"method": "standalone"}, 100, 68.43, XFED),
        (
            {"method": "xfed", "dataset": "cifar100", "model": "resnet18"},
            9,
            50.41,
            XFED,
        ),
        (
            {
                "method": "pfedes",
                "model": "heterogeneous",
                "partition": "pathological",
            },
            60,
            95.79,
            PFEDES,
        ),
        (
            {
                "method": "standalone",
                "model": "cnn-1",
                "dataset": "cifar100",
                "partition": "pathological",
                "classes_per_client": 10,
            },
            100,
            54.93,
            PFEDES,
        ),
    ],
)
def test_the_papers_figure(
    settings: dict[str, Any], clients: int, value: float, source: str, tmp_path: Path
) -> None:
    found = published(run(tmp_path, clients=clients, **settings))
    assert found is not None
    assert (found.value, found.source) == (value, source)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedavg"},
        {"method": "xfed", "dataset": "digits"},
        {"method": "xfed", "dirichlet_alpha": 0.5},
        {"method": "xfed", "partition": "iid"},
        {"method": "xfed", "model": "resnet18"},
        {"method": "standalone", "model": "cnn-1"},
        {
            "method": "pfedes",
            "model": "heterogeneous",
            "partition": "pathological",
            "classes_per_client": 3,
        },
    ],
)
def test_no_figure_for_other_experiments(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    assert published(run(tmp_path, **settings)) is None


def test_another_setting_than_the_papers_is_said(tmp_path: Path) -> None:
    (task,) = tasks([run(tmp_path, rounds=8, clients=20, num_samples=12_000)])
    (row,) = tables.papers(task).rows
    assert [cell.text for cell in row] == [
        "xfed",
        "accuracy averaged over exits, %",
        "75.00",
        "72.67",
        "+2.33",
        XFED,
        "N = 20, paper 100; C = 0.5, paper 0.1; T = 8, paper 300; λ = 0.1, paper 1; "
        "schedule constant, paper linear; a part of 12,000 samples",
    ]
