"""A deployed client: from its process's start to the first training step."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from benchmarks.records import Figure, compared
from benchmarks.speed.federation_data import write_clients
from benchmarks.speed.measure import in_turn, timed
from server_app.simulate import APP

_BARE = "import torch, flwr.clientapp"
_CLIENT = "from benchmarks.speed.deployed import first_step; first_step()"


def first_step() -> None:
    """Handle a message to train as a deployed client does, up to the first step."""
    from flwr.clientapp import ClientApp
    from flwr.common import Context, Message, RecordDict

    from client_app.app import app
    from common.protocol import Request, from_record

    assert isinstance(app, ClientApp)
    folder = Path(sys.argv[1])
    context = Context(
        run_id=1,
        node_id=1,
        node_config={"data-path": str(folder / "client-0000"), "client-name": "a"},
        state=RecordDict(),
        run_config={"method": "fedper", "dataset": "cifar10"},
    )
    import numpy as np

    with np.load(folder / "shared.npz") as content:
        shared = {key: content[key] for key in content.files}
    request = Request(experiment="", run="", server_round=1, shared=shared)
    message = Message(request.to_records(), dst_node_id=1, message_type="train")
    assert from_record(message.content.array_records["arrays"]).keys() == shared.keys()

    with patch("client_app.training.sgd", side_effect=SystemExit):
        app(message, context)
    raise AssertionError("no training step")


def start_up(repeats: int = 5) -> list[Figure]:
    """Compare a client's process with one that only imports PyTorch and Flower."""
    import numpy as np

    from common.settings import parse_settings
    from common.sharing import initial_shared

    with tempfile.TemporaryDirectory() as temporary:
        folder = write_clients(Path(temporary, "data"), 1, (64, 16))
        settings = parse_settings({"method": "fedper", "dataset": "cifar10"})
        np.savez(folder / "shared.npz", **initial_shared(settings))  # type: ignore[arg-type]

        def run(code: str) -> float:
            command = [sys.executable, "-c", code, str(folder)]
            return timed(lambda: subprocess.run(command, check=True, cwd=APP))

        ours, bare = in_turn(repeats, lambda: run(_CLIENT), lambda: run(_BARE))
    return compared(
        "deployed client",
        ("to the first step", ours),
        ("bare imports", bare),
        "s",
        at_most=1.3,
    )
