"""Real clients on a few handwritten digits, all in one process."""

from __future__ import annotations

from typing import Any

from flwr.common import Context, Message
from local_grid import LocalGrid

from client_app.app import app
from common.protocol import Reply, Request, to_record
from common.settings import Settings, parse_settings
from common.sharing import initial_shared
from server_app.methods import STRATEGIES
from server_app.strategy import PersonalizedStrategy


def settings(method: str, **changes: Any) -> Settings:
    """Three clients' worth of digits; `a__b_c` stands for the key `a.b-c`."""
    config = {
        "method": method,
        "model": "heterogeneous" if method == "pfedes" else "convnet",
        "partition": "iid",
        "num-samples": 120,
        "batch-size": 16,
        "learning-rate": 0.05,
        "min-available-nodes": 3,
        **{k.replace("__", ".").replace("_", "-"): v for k, v in changes.items()},
    }
    return parse_settings(config)


def answer(message: Message, context: Context) -> Message:
    return app(message, context)


def federation(
    run: Settings, rounds: int = 2, clients: int = 3, nodes: Any = None, **options: Any
) -> tuple[PersonalizedStrategy, LocalGrid, Any]:
    """Run a federation; return strategy, grid (with all messages) and result."""
    configs = nodes or {
        f"client-{i}": {"partition-id": i, "num-partitions": clients}
        for i in range(clients)
    }
    grid = LocalGrid(configs, answer, run.to_config(), **options)
    strategy = STRATEGIES[run.method].create(run)
    result = strategy.start(
        grid, to_record(initial_shared(run)), num_rounds=rounds, timeout=60
    )
    return strategy, grid, result


def uploads(grid: LocalGrid, kind: str = "train") -> list[tuple[str, Request, Reply]]:
    """Return client, request and reply of every message of one kind."""
    return [
        (
            client,
            Request.from_records(message.content),
            Reply.from_records(reply.content),
        )
        for client, message, reply in grid.log
        if reply is not None and message.metadata.message_type == kind
    ]
