"""The node: its own configuration, its data, its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from logging import INFO
from pathlib import Path

import torch
from flwr.common import ConfigRecord, Context, Message, RecordDict
from flwr.common.logger import log

from client_app.footprint import LEAST_PORTION
from client_app.memory import keep_heap
from client_app.methods import TRAINERS
from client_app.personal_state import FileStore, MemoryStore, PersonalState, Store
from client_app.trainer import Client, Trainer
from common.data import DataSpec, load_client_data
from common.models import build_network, early_exit_macs, model_name
from common.protocol import STATE_ROUND, Reply, Request
from common.schema import SettingsError
from common.settings import (
    HETEROGENEOUS,
    SINGLE_EXIT_MODELS,
    Settings,
    check_model,
    parse_settings,
)

AUTO = "auto"
"""Value of the node's ``model`` that leaves the choice to its memory."""
_CHOICE = "auto-model"

NODE_KEYS = {
    "client-name": "stable name of this client; default: folder or partition id",
    "data-path": "folder with this client's own `train` and `test` data",
    "model": (
        "this client's private network, for pfedes and standalone; `auto`: the largest "
        "of cnn-1 to cnn-5 that its free memory can train"
    ),
    "device": "torch device; default: cuda where available, else cpu",
    "state-dir": "folder for personal states; default: in memory only",
    "partition-id": "which part of a common data set is this client's, from 0",
    "num-partitions": "into how many parts a common data set is split",
}
"""Keys of the node configuration (``flower-supernode --node-config``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The node configuration, parsed and checked."""

    client_name: str = ""
    data_path: str = ""
    model: str = ""
    device: str = ""
    state_dir: str = ""
    partition_id: int = -1
    num_partitions: int = -1

    @classmethod
    def parse(cls, config: Mapping[str, object]) -> NodeConfig:
        """Parse ``context.node_config``.

        Raises
        ------
        SettingsError
            Names every unknown key and every value of another type.
        """
        problems, values = [], {}
        for key, value in config.items():
            field = key.replace("-", "_")
            if key not in NODE_KEYS:
                problems.append(
                    f"unknown node-config key {key!r}, known: {', '.join(NODE_KEYS)}"
                )
            elif type(value) is not type(getattr(cls(), field)):
                kind = "text" if isinstance(getattr(cls(), field), str) else "a number"
                problems.append(f"node-config {key} = {value!r}: must be {kind}")
            else:
                values[field] = value
        node = cls(**values)  # type: ignore[arg-type]
        pair = (node.partition_id, node.num_partitions)
        if pair != (-1, -1) and not 0 <= pair[0] < pair[1]:
            problems.append(
                f"node-config partition-id = {pair[0]}, num-partitions = {pair[1]}: "
                "partition-id counts from 0 and is below num-partitions"
            )
        if problems:
            raise SettingsError(problems)
        return node


def open_client(
    settings: Settings, context: Context, experiment: str | None = None
) -> Client:
    """Load the data of this node's client and decide its name, model and device.

    Parameters
    ----------
    experiment
        Its name where the settings leave that to the server.
    """
    node = NodeConfig.parse(context.node_config)
    partition = None if node.partition_id < 0 else node.partition_id
    data = load_client_data(
        settings.data,
        seed=settings.seed,
        own_path=Path(node.data_path).expanduser() if node.data_path else None,
        partition_id=partition,
        num_partitions=None if node.num_partitions < 0 else node.num_partitions,
    )
    name = node.client_name or data.name or _partition_name(node)
    device = usable_device(node.device, f"node-config device = {node.device!r}")
    if device.type == "cpu":
        keep_heap()
        if settings.training.cpu_threads:
            torch.set_num_threads(settings.training.cpu_threads)
    client = Client(name, _model(settings, node), data, device)
    if client.model == AUTO:
        return _with_model(settings, context, client, experiment)
    return client


def require_memory(settings: Settings, client: Client) -> None:
    """Raise :class:`SettingsError` where this client has too little memory to train."""
    plan = TRAINERS[settings.method](settings, client).first_plan()
    if plan is not None:
        plan.check()


@dataclass(frozen=True, slots=True)
class Session:
    """All that one message to train or evaluate needs."""

    request: Request
    trainer: Trainer
    store: Store
    state: PersonalState | None

    def answer(
        self, reply: Reply, telemetry: Mapping[str, float] | None = None
    ) -> RecordDict:
        """Return the content of the answer: the reply, and what it went on from."""
        known = self.state.server_round if self.state else 0
        metrics = {**reply.metrics, **(telemetry or {}), STATE_ROUND: known}
        return replace(reply, metrics=metrics).to_records()


@contextmanager
def open_session(
    message: Message, context: Context, *, training: bool = False
) -> Iterator[Session]:
    """Read the message, open this node's client and its personal state.

    Parameters
    ----------
    training
        Take the state from before the message's round, also where that round was
        trained already, and lock it until the session ends; else take the state of that
        round where there is one.

    Raises
    ------
    SettingsError, ProtocolError, StateError, FolderError
        The configuration, the message or the stored state is not fit, or another node
        trains this client.
    """
    settings = parse_settings(context.run_config)
    request = Request.from_records(message.content)
    client = open_client(settings, context, request.experiment)
    trainer = TRAINERS[settings.method](settings, client)
    store = open_store(settings, context, request, client.name)
    lock = store.lock(str(context.node_id), message.metadata.ttl)
    with lock if training else nullcontext():
        state = store.load(request.server_round - training)
        if state is not None:
            state.check(settings.method, client.model, store.where)
        yield Session(request, trainer, store, state)


@lru_cache
def inference_macs(model: str, spec: DataSpec) -> list[int]:
    """Return the cost per sample of leaving at each exit, in multiply-accumulates."""
    return list(early_exit_macs(build_network(model, spec, seed=0), spec))


def open_store(
    settings: Settings, context: Context, request: Request, client: str
) -> Store:
    """Return where this client's personal state is kept."""
    folder = _state_folder(settings, context, request.experiment)
    if folder is None:
        return MemoryStore(context.state)
    return FileStore(folder, client, request.run, request.starts)


def _state_folder(settings: Settings, context: Context, experiment: str) -> Path | None:
    """Return where states are kept; None where they are kept in memory."""
    node = NodeConfig.parse(context.node_config)
    state_dir = node.state_dir or settings.run.state_dir
    if not state_dir:
        return None
    return Path(state_dir).expanduser() / (experiment or f"run-{context.run_id}")


def label(context: Context) -> str:
    """Return what to call a node whose client could not be opened."""
    name = context.node_config.get("client-name")
    return str(name or f"partition {context.node_config.get('partition-id', '?')}")


def _partition_name(node: NodeConfig) -> str:
    if node.partition_id < 0:
        raise SettingsError(
            ["node-config needs client-name, or partition-id and num-partitions"]
        )
    width = len(str(node.num_partitions - 1))
    return f"client-{node.partition_id:0{width}d}"


def _with_model(
    settings: Settings, context: Context, client: Client, experiment: str | None
) -> Client:
    """Give a client the network that it has already, else the largest that fits.

    A personal state belongs to its network, so the choice is made once: before the
    first training of a run.
    """
    folder = _state_folder(settings, context, experiment or settings.run.experiment)
    model = FileStore(folder, client.name, run="").model() if folder else None
    if model is None and _CHOICE in context.state:
        model = str(context.state.config_records[_CHOICE]["model"])
    if model is None:
        client = _largest_that_fits(settings, client)
    else:
        client = replace(client, model=model)
    context.state[_CHOICE] = ConfigRecord({"model": client.model})
    return client


def _largest_that_fits(settings: Settings, client: Client) -> Client:
    """Give a client the largest network that trains `LEAST_PORTION` samples at once.

    Where none does, the smallest one.
    """
    for model in SINGLE_EXIT_MODELS:  # from the largest to the smallest
        client = replace(client, model=model)
        plan = TRAINERS[settings.method](settings, client).first_plan()
        if plan is None:
            raise SettingsError(
                [
                    "node-config model = 'auto': this system does not tell how much "
                    f"memory is free: choose one of {', '.join(SINGLE_EXIT_MODELS)}"
                ]
            )
        if plan.portion >= min(plan.batch, LEAST_PORTION):
            break
    log(INFO, "Client %s, node-config model = 'auto': %s", client.name, plan)
    return client


def _model(settings: Settings, node: NodeConfig) -> str:
    model = node.model or settings.model
    # With `auto` every network of pFedES has to fit the run as the first one does.
    checked = SINGLE_EXIT_MODELS[0] if node.model == AUTO else model
    problems = check_model(checked, settings)
    if settings.shares in ("all", "backbone") and model != settings.model:
        problems.append(
            f"node-config model = {model!r}, but {settings.method} averages networks "
            f"of one architecture, here {settings.model!r}: leave it out"
        )
    if problems:
        raise SettingsError(problems)
    if model == HETEROGENEOUS and node.partition_id < 0:
        raise SettingsError(
            ["model = 'heterogeneous' needs partition-id, or model in the node-config"]
        )
    return model_name(model, node.partition_id)


def usable_device(name: str, setting: str) -> torch.device:
    """Return a device that tensors can be made on; without a name the best there is.

    Parameters
    ----------
    setting
        What names it, for the error.

    Raises
    ------
    SettingsError
        There is no such device here.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError([f"{setting} cannot be used: {error}"]) from error
    return device
