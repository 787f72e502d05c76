"""Runs in one process, with real clients, in which one client has a bad round."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import own_models
import small
from flwr.common import Context, Message, MessageType

from common.protocol import Reply, Request
from server_app.results import Results
from server_app.strategy import PersonalizedStrategy

VICTIM, BAD_ROUND, ROUNDS = "client-1", 2, 3

Change = Callable[[Reply], Reply]
Around = Callable[[Context], AbstractContextManager[object]]


class BadRound:
    """A run of three rounds; in the second one something is done to one client.

    Parameters
    ----------
    folder
        Folder for results and personal states.
    change
        What becomes of the victim's reply.
    around
        A context in which the victim answers.

    Attributes
    ----------
    records
        ``rounds.jsonl``.
    summary
        ``summary.json``.
    seconds
        From the victim's bad answer until its next one that counts.
    """

    def __init__(
        self,
        folder: Path,
        change: Change = lambda reply: reply,
        around: Around = lambda context: nullcontext(),
        method: str = "pfedes",
        **changes: Any,
    ) -> None:
        self._change, self._around = change, around
        self._answered: dict[int, float] = {}
        model = f"{own_models.__name__}:batch_norm_net"
        own = {"model": model} if method == "pfedes" else {}
        self.settings = small.settings(
            method,
            output_dir=str(folder),
            experiment="trial",
            state_dir=str(folder / "states"),
            evaluate_every=ROUNDS,
            **own,
            **changes,
        )
        self.folder = folder / "trial"
        self.states = folder / "states" / "trial"

    def run(self, rounds: int = ROUNDS, **changes: Any) -> PersonalizedStrategy:
        run = replace(self.settings.run, **changes)
        settings = replace(self.settings, run=run)
        strategy, self.grid, _ = small.federation(
            settings, rounds, results=Results.open(settings), handler=self._answer
        )
        return strategy

    @property
    def records(self) -> list[dict[str, Any]]:
        text = (self.folder / "rounds.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    @property
    def seconds(self) -> float:
        return self._answered[BAD_ROUND + 1] - self._answered[BAD_ROUND]

    def check(self) -> str:
        """Check that only the victim's bad round is missing; return the reason."""
        bad, after = self.records[BAD_ROUND - 1], self.records[BAD_ROUND]
        assert list(bad["train"]["failures"]) == [VICTIM]
        assert bad["train"]["replied"] == ["client-0", "client-2"]
        assert bad["train"]["counts"]
        assert VICTIM in after["train"]["replied"]
        assert self.summary["ended"] == "finished"
        assert self.summary["failures"] == 1
        assert self.summary["skipped_rounds"] == 0
        return str(bad["train"]["failures"][VICTIM])

    def _answer(self, message: Message, context: Context) -> Message:
        training = message.metadata.message_type == MessageType.TRAIN
        if not training or context.node_config["partition-id"] != 1:
            return small.answer(message, context)
        server_round = Request.from_records(message.content).server_round
        try:
            if server_round != BAD_ROUND:
                return small.answer(message, context)
            with self._around(context):
                answer = small.answer(message, context)
            reply = self._change(Reply.from_records(answer.content))
            return Message(reply.to_records(), reply_to=message)
        finally:
            self._answered[server_round] = time.monotonic()
