"""Rounds without enough good replies, replies that come too late, foreign versions."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy
from flwr.common import Context, Message
from local_grid import NEVER, LocalGrid

from common.protocol import Identity, Reply, Request, from_record
from server_app.errors import QuorumMissed
from server_app.methods import FedAvg
from server_app.results import Results

Report = Callable[[str, str, float | None], None]


def run(grid: LocalGrid, folder: Path, rounds: int, **changes: Any) -> Any:
    settings = toy.settings(output_dir=str(folder), experiment="x", **changes)
    strategy = FedAvg(settings, results=Results.open(settings))
    return strategy.start(
        grid, toy.initial(), num_rounds=rounds, timeout=strategy.timeout
    )


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "x" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_reply_after_the_deadline(tmp_path: Path, report: Report) -> None:
    asked: dict[int, float] = {}

    def late(name: str, request: Request) -> Reply:
        if name == "client-1" and request.server_round == 1:
            asked.setdefault(1, time.monotonic())
            if time.monotonic() - asked[1] < 0.5:
                return NEVER  # type: ignore[return-value]
            return Reply(
                shared={k: v + 1e6 for k, v in toy.INITIAL.items()}, metrics={}
            )
        return toy.add_number(name, request)

    grid = toy.grid(3, late)
    result = run(grid, tmp_path, 3, round_timeout=0.3)
    first, second, _ = records(tmp_path)
    reason = first["train"]["failures"]["client-1"]
    assert reason == "no reply within 0.3 s"
    assert "client-1" in second["train"]["replied"]
    # Round 1 without client 1 adds 6/4, the others 8/6 each; the late reply nothing.
    np.testing.assert_allclose(from_record(result.arrays)["w"], 6 / 4 + 2 * 8 / 6)
    text = f"left out: {reason}; what comes later is not fetched"
    report("reply after the deadline", text, second["train"]["seconds"])


def test_no_quorum_too_often(tmp_path: Path, report: Report) -> None:
    def fails(name: str, request: Request) -> Reply:
        if name != "client-0":
            raise RuntimeError("broken")
        return toy.add_number(name, request)

    with pytest.raises(QuorumMissed, match="2 rounds in a row had no quorum"):
        run(toy.grid(3, fails), tmp_path, 9, quorum=0.6, max_failed_rounds=2)
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert summary["ended"].startswith("QuorumMissed")
    assert (summary["failures"], summary["skipped_rounds"]) == (4, 2)
    for record in records(tmp_path):
        assert record["train"]["failures"] == dict.fromkeys(
            ("client-1", "client-2"), "broken"
        )
    text = "after max-failed-rounds (2) the run ends with a clear error"
    report("quorum missed again and again", text, summary["seconds"])


def test_message_larger_than_the_limit(tmp_path: Path, report: Report) -> None:
    class Limited(LocalGrid):
        """Answers as Flower's grid does where gRPC refuses a message."""

        refused = 0

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            if messages[0].metadata.message_type == "train" and not self.refused:
                self.refused = len(messages)
                return []
            return super().push_messages(messages)

    nodes = {f"client-{i}": {"client-name": f"client-{i}"} for i in range(3)}
    grid = Limited(nodes, toy.handler())
    result = run(grid, tmp_path, 2)
    first, second = records(tmp_path)
    assert grid.refused == 3
    reasons = set(first["train"]["failures"].values())
    [reason] = reasons
    assert "larger than 2 GB" in reason
    assert not first["train"]["counts"]
    assert second["train"]["counts"]
    np.testing.assert_allclose(from_record(result.arrays)["w"], 8 / 6)
    report("message larger than the limit", reason, second["train"]["seconds"])


def test_client_with_other_versions(
    tmp_path: Path, report: Report, caplog: pytest.LogCaptureFixture
) -> None:
    ordinary = toy.handler()

    def handle(message: Message, context: Context) -> Message:
        answer = ordinary(message, context)
        if message.metadata.message_type == "query":
            identity = Identity.from_records(answer.content)
            if identity.client == "client-1":
                record = answer.content["identity"]
                record["versions"] = "flwr 1.99.0"  # type: ignore[index]
        return answer

    grid = toy.grid(3)
    grid._handler = handle
    flower = logging.getLogger("flwr")
    flower.addHandler(caplog.handler)
    try:
        run(grid, tmp_path, 1)
    finally:
        flower.removeHandler(caplog.handler)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    [warning] = {w for w in warnings if "other versions" in w}
    assert warning.startswith("Client client-1 has other versions than this server")
    assert "flwr 1.99.0" in warning
    roster = json.loads((tmp_path / "x" / "roster.json").read_text())
    assert roster["client-1"]["versions"] == "flwr 1.99.0"
    assert "client-1" in records(tmp_path)[0]["train"]["replied"]
    report("client with other versions", "takes part; warning and roster.json", None)
