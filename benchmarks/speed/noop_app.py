"""The app with clients that send back what they get; for :mod:`.simulation`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.common import ArrayRecord, Context, Message, MetricRecord
from flwr.server import Grid
from flwr.serverapp import ServerApp

from client_app import app
from client_app.methods import TRAINERS
from client_app.personal_state import PersonalState
from client_app.trainer import Trainer
from common.protocol import Reply, Request, to_record
from common.settings import parse_settings
from common.sharing import initial_shared
from server_app.methods import STRATEGIES


class NoOp(Trainer):
    """Sends the shared parameters back."""

    def train(
        self, request: Request, state: PersonalState | None
    ) -> tuple[Reply, PersonalState]:
        """Train nothing."""
        reply = Reply(shared=request.shared, metrics={"num-examples": 1})
        state = PersonalState(
            method="fedavg",
            model=self.client.model,
            run=request.run,
            server_round=request.server_round,
            rounds_trained=1,
        )
        return reply, state


TRAINERS["fedavg"] = NoOp
client = ClientApp()
server = ServerApp()


# Functions of this module, so that the actors import it and train with NoOp.
@client.query()
def query(message: Message, context: Context) -> Message:
    """Answer as the app does."""
    return app.query(message, context)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Answer as the app does."""
    return app.train(message, context)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg and note when each round ends."""
    settings = parse_settings(context.run_config)
    stamps: list[float] = []

    def stamp(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        stamps.append(time.monotonic())
        return None

    STRATEGIES["fedavg"].create(settings).start(
        grid,
        to_record(initial_shared(settings)),
        num_rounds=settings.run.num_server_rounds,
        evaluate_fn=stamp,
    )
    Path(os.environ["OVERHEAD_STAMPS"]).write_text(json.dumps(stamps))
