"""Real clients on a few small images, all in one process.

The images are made up, so that nothing beyond the base install is needed.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import Context, Message
from local_grid import Handler, LocalGrid

from client_app.app import app
from common.protocol import Reply, Request, to_record
from common.settings import Settings, parse_settings
from common.sharing import initial_shared
from common.state import State
from server_app.methods import STRATEGIES
from server_app.results import Results
from server_app.strategy import PersonalizedStrategy


@functools.cache
def data() -> Path:
    """Write three clients' data: ten classes of grey 8x8 images, 30 + 10 each."""
    root = Path(tempfile.mkdtemp(prefix="clients-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (10, 8, 8))
    for client in range(3):
        folder = root / f"client-{client}"
        folder.mkdir()
        for split, count in (("train", 30), ("test", 10)):
            labels = rng.integers(0, 10, count)
            noise = rng.integers(-60, 61, (count, 8, 8))
            images = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
            np.savez(folder / f"{split}.npz", images=images, labels=labels)
    return root


def settings(method: str, **changes: Any) -> Settings:
    """Return settings for these clients; `a__b_c` stands for the key `a.b-c`."""
    config = {
        "method": method,
        "model": "heterogeneous" if method == "pfedes" else "convnet",
        "dataset": "custom",
        "data-path": str(data()),
        "num-classes": 10,
        "image-size": 8,
        "channels": 1,
        "batch-size": 16,
        "learning-rate": 0.05,
        "min-available-nodes": 3,
        **{k.replace("__", ".").replace("_", "-"): v for k, v in changes.items()},
    }
    return parse_settings(config)


def answer(message: Message, context: Context) -> Message:
    return app(message, context)


def federation(
    run: Settings,
    rounds: int = 2,
    clients: int = 3,
    nodes: Any = None,
    results: Results | None = None,
    handler: Handler | None = None,
    prepare: Callable[[PersonalizedStrategy], None] | None = None,
    **options: Any,
) -> tuple[PersonalizedStrategy, LocalGrid, Any]:
    """Run a federation; return strategy, grid (with all messages) and result."""
    configs = nodes or {
        f"client-{i}": {"partition-id": i, "num-partitions": clients}
        for i in range(clients)
    }
    grid = LocalGrid(configs, handler or answer, run.to_config(), **options)
    strategy = STRATEGIES[run.method].create(run, results)
    if prepare is not None:
        prepare(strategy)
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


def equal(a: State, b: State) -> bool:
    """Tell whether two states hold the same names and the same numbers."""
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def finished(folder: Path, method: str, **changes: Any) -> Path:
    """Run two rounds; return the run's folder, with the clients' states in `state`."""
    run = folder / "trial"
    chosen = settings(
        method,
        experiment="trial",
        output_dir=str(folder),
        state_dir=str(run / "state"),
        num_server_rounds=2,
        **changes,
    )
    federation(chosen, results=Results.open(chosen))
    return run
