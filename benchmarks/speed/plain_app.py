"""Plain Flower FedAvg with the same payload; for :mod:`.simulation`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.common import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.server import Grid
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Send the parameters back."""
    content = RecordDict(
        {
            "arrays": message.content["arrays"],
            "metrics": MetricRecord({"num-examples": 1}),
        }
    )
    return Message(content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg and note when each round ends."""
    from common.data import data_spec
    from common.models import build_network
    from common.settings import parse_settings

    settings = parse_settings(context.run_config)
    spec = data_spec(settings.data)
    network = build_network("convnet", spec, seed=0)
    stamps: list[float] = []

    def stamp(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        stamps.append(time.monotonic())
        return None

    FedAvg(fraction_train=1.0, fraction_evaluate=0.0).start(
        grid,
        ArrayRecord(network.state_dict()),
        num_rounds=settings.run.num_server_rounds,
        evaluate_fn=stamp,
    )
    Path(os.environ["OVERHEAD_STAMPS"]).write_text(json.dumps(stamps))
