"""The entry of the server, as Flower calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import small
from flwr.common import Context, RecordDict
from flwr.serverapp.strategy import FedMedian
from local_grid import LocalGrid

from common.locks import FolderError, one_writer
from server_app.app import run
from server_app.strategy import PersonalizedStrategy


def start(folder: Path, adapt: Any = None, **changes: Any) -> None:
    settings = small.settings(
        "pfedes",
        output_dir=str(folder),
        experiment="trial",
        num_server_rounds=1,
        **changes,
    )
    config = settings.to_config()
    nodes = {f"client-{i}": {"partition-id": i, "num-partitions": 3} for i in range(3)}
    context = Context(
        run_id=8, node_id=1, node_config={}, state=RecordDict(), run_config=config
    )
    run(LocalGrid(nodes, small.answer, config), context, adapt)


def test_two_servers_never_write_to_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.locks._MOMENT", 0.1)
    with (
        one_writer(tmp_path / "trial", "run 7", "", patience=0),
        pytest.raises(
            FolderError,
            match="trial is in use by run 7, this is run 8: wait for its",
        ),
    ):
        start(tmp_path, resume=True)
    start(tmp_path, resume=True)
    summary = json.loads((tmp_path / "trial" / "summary.json").read_text())
    assert summary["ended"] == "finished"


def test_an_entry_of_ones_own_may_adapt_the_strategy(tmp_path: Path) -> None:
    median, seen = FedMedian(), []

    def adapt(strategy: PersonalizedStrategy) -> None:
        strategy.aggregator = median
        seen.append(strategy.settings.method)

    start(tmp_path, adapt)
    assert seen == ["pfedes"]
