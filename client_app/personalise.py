r"""Start a new client from a finished run, on its own data alone.

The run's shared part is taken as it is; the personal part is trained: the exits on the
frozen backbone (X-FED, FedPer; also FedAvg, whose exits then become personal), or with
pFedES a private network beside the frozen extractor (step 1 of the method). The same
network trained from scratch on the same data for as many epochs stands beside it. The
folder written is a run's: ``client_app.predict`` and ``client_app.export`` read it.
Example::

    python -m client_app.personalise --run runs/trial --data /data/site-9 \
        --output personal --epochs 20 learning-rate=0.05
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.common import Context, RecordDict
from safetensors.numpy import save
from torch import nn

from client_app.assemble import read_run, read_shared, shared_names
from client_app.evaluation import evaluate
from client_app.methods.pfedes import PFedES
from client_app.node import inference_macs, open_client
from client_app.personal_state import FileStore
from client_app.trainer import Client, Trainer
from client_app.training import frozen
from common.files import STATE_FOLDER, write_atomically
from common.models import build_network
from common.presets import parse_pairs
from common.protocol import Reply, Request
from common.settings import FedPerSettings, Settings, parse_settings
from common.state import State, read_state
from common.versions import versions
from server_app.evaluation import Evaluation
from server_app.results import CLIENT_COLUMNS


@dataclass(frozen=True, slots=True)
class Personalised:
    """A new client's network, and what it and training alone reach on its test data."""

    settings: Settings
    """Those of the run; of a FedAvg run's as FedPer, whose form the result has."""
    client: Client
    network: nn.Module
    metrics: Mapping[str, Any]
    """As :func:`client_app.evaluation.evaluate` returns them."""
    alone: Mapping[str, Any]
    """The same of the network trained from scratch."""


def personalise(
    settings: Settings, shared: State, client: Client, epochs: int
) -> Personalised:
    """Train the personal part of a network whose shared part is given.

    Parameters
    ----------
    settings
        Settings of the run; learning rate, batch size and so on apply here too, with
        the learning rate of round 1.
    shared
        The run's final shared parameters.
    client
        The new client with its own data.
    epochs
        Epochs over the client's training data.

    Raises
    ------
    ValueError
        The run shares nothing, or its shared parameters do not fit the network.
    """
    if settings.shares == "none":
        raise ValueError(
            f"method {settings.method!r} shares nothing that a new client could start "
            "from: take a run of another method"
        )
    request = Request(experiment="", run="", server_round=1, shared=shared)
    trainer = Trainer(settings, client)
    if settings.shares == "extractor":
        method = PFedES(settings, client)
        network = method.network(request, None)
        extractor = method.extractor(request)
        method.fit_private(network, extractor, request, None, epochs)
    else:
        network = trainer.network(request, None)
        if settings.shares == "all":
            settings = replace(
                settings, method="fedper", method_settings=FedPerSettings()
            )
        layers = personal_layers(network, shared_names(network, settings))
        with frozen(network):
            layers.requires_grad_(True)
            _fit(trainer, network, layers, request, epochs)
    alone = trainer.place(
        build_network(client.model, client.data.spec, seed=settings.seed)
    )
    _fit(trainer, alone, alone, request, epochs)
    threshold = settings.training.confidence_threshold
    return Personalised(
        settings,
        client,
        network,
        evaluate(network, trainer.test_data, threshold),
        evaluate(alone, trainer.test_data, threshold),
    )


def personal_layers(network: nn.Module, shared: set[str]) -> nn.ModuleList:
    """Return the layers that hold parameters, none of which is shared."""
    layers = nn.ModuleList()
    for name, layer in network.named_modules():
        prefix = f"{name}." if name else ""
        own = {prefix + key for key, _ in layer.named_parameters(recurse=False)}
        if own and not own & shared:
            layers.append(layer)
    return layers


def _fit(
    trainer: Trainer, network: nn.Module, part: nn.Module, request: Request, epochs: int
) -> None:
    """Train a part of a network by the joint cross-entropy of its exits."""
    trainer.fit(
        part,
        lambda batch: trainer.loss(network, batch),
        request,
        None,
        epochs=epochs,
    )


def write_run(result: Personalised, folder: Path, run: Path, run_id: str) -> None:
    """Write a run's folder with the new client as the only one.

    Parameters
    ----------
    result
        The new client's network.
    folder
        Where to write.
    run
        Folder of the run that the shared part is from.
    run_id
        What identifies that run.
    """
    settings, client, network = result.settings, result.client, result.network
    experiment = settings.run.experiment or "run"
    last_round = settings.run.num_server_rounds
    request = Request(experiment="", run=run_id, server_round=last_round, shared={})
    state = Trainer(settings, client).remember(network, {}, request, None)
    store = FileStore(folder / STATE_FOLDER / experiment, client.name, run_id)
    state.require_finite(store.where)
    store.save(state, 0)
    if names := shared_names(network, settings):
        shared = save(read_state(network, sorted(names)))
        write_atomically(folder / "shared.safetensors", shared)
    with (folder / "clients.csv").open("w", newline="") as file:
        evaluation = Evaluation(
            {client.name: Reply(metrics=result.metrics)},
            {client.name: inference_macs(client.model, client.data.spec)},
        )
        rows = evaluation.rows(last_round)
        csv.writer(file).writerows([CLIENT_COLUMNS, *rows])
    config = {**settings.to_config(), "experiment": experiment, "state-dir": ""}
    content = {
        "run": run_id,
        "settings": config,
        "versions": versions(),
        "personalised": {"from": run.resolve().name, "client": client.name},
    }
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(folder / "settings.json", text.encode())


def report(result: Personalised) -> str:
    """Return a table of accuracies: personalised, and trained alone."""
    exits = len(result.metrics["correct"])
    header = ["accuracy %", *(f"exit {j + 1}" for j in range(exits)), "mean", "early"]
    lines = [header]
    for name, metrics in (("personalised", result.metrics), ("alone", result.alone)):
        total = metrics["num-examples"]
        shares = [100 * correct / total for correct in metrics["correct"]]
        shares += [sum(shares) / exits, 100 * metrics["early-correct"] / total]
        lines.append([name, *(f"{share:.2f}" for share in shares)])
    return "\n".join(
        cells[0].ljust(12) + "".join(cell.rjust(9) for cell in cells[1:])
        for cells in lines
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Personalise by the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m client_app.personalise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with train and test data"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, help="new folder for the network")
    parser.add_argument("--client", help="name of the client; default: the folder's")
    parser.add_argument("--model", help="private network, for pfedes")
    parser.add_argument("--device", help="torch device")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="in place of the run's settings, e.g. learning-rate=0.01",
    )
    options = parser.parse_args(arguments)
    output = options.output
    try:
        if options.epochs < 1:
            raise ValueError(f"--epochs {options.epochs}: must be at least 1")
        if output and output.exists() and any(output.iterdir()):
            raise ValueError(f"{output} is not empty: choose another folder")
        settings, run_id = read_run(options.run)
        config = {**settings.to_config(), **parse_pairs(options.settings)}
        settings = parse_settings(config)
        node = {
            "data-path": str(options.data),
            "client-name": options.client or options.data.resolve().name,
        }
        if options.model:
            node["model"] = options.model
        if options.device:
            node["device"] = options.device
        client = open_client(settings, Context(0, 0, dict(node), RecordDict(), {}))
        shared = {} if settings.shares == "none" else read_shared(options.run)
        result = personalise(settings, shared, client, options.epochs)
        if output:
            write_run(result, output, options.run, run_id)
    except (ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    print(
        f"{client.name}: {len(client.data.train)} training and {len(client.data.test)} "
        f"test samples, {client.model}, {options.epochs} epochs; shared part of "
        f"{options.run} ({settings.method})\n{report(result)}"
    )
    if output:
        print(f"{output} holds the network, as a run with the client {client.name!r}")


if __name__ == "__main__":
    main()
