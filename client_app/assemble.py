"""A client's personal network after a run, put together from files.

The shared part comes from the run's folder, the personal part from the client's own
state. On a device the run's folder may be a copy of ``settings.json`` and
``shared.safetensors`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from torch import nn

from client_app.personal_state import FileStore, PersonalState
from common.data import DataSpec, data_spec
from common.files import STATE_FOLDER, read_tensors
from common.models import build_network
from common.schema import SettingsError
from common.settings import Settings, parse_settings
from common.sharing import keys_to_share
from common.starts import read_starts
from common.state import State, check_keys, write_state

_LAST = 2**62  # later than any round


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A client's personal network, on the CPU, ready for inference."""

    network: nn.Module
    """In evaluation mode, without gradients."""
    settings: Settings
    """Settings of the run."""
    spec: DataSpec
    """What the network reads."""
    model: str
    """Name of the network's architecture."""
    client: str
    server_round: int
    """Round in which the client trained last; 0 where it has no state of its own."""
    rounds_trained: int
    """Rounds in which this client trained; 0 means initial personal parameters."""


def assemble(run: Path, client: str, state_dir: Path | None = None) -> Assembled:
    """Put a client's personal network together from a finished run.

    FedPer and X-FED: the shared backbone with the client's exits, each as it trained
    them last (X-FED's last exit is the client's own, whatever ``xfed.evaluate-exit``
    says). FedAvg: the shared network. pFedES and standalone: the client's network; the
    shared extractor is not part of it.

    Parameters
    ----------
    run
        The run's results folder ``output-dir/<experiment>``, or a copy of its
        ``settings.json`` and ``shared.safetensors``.
    client
        The client's name as in ``roster.json``.
    state_dir
        Folder of personal states that the client trained with. None looks for ``state``
        in the run's folder, then takes the run's setting ``state-dir``.

    Raises
    ------
    ValueError
        A file is missing or damaged, the state is of another run, method or model, or
        there is no such client.
    """
    settings, run_id = read_run(run)
    roster = _roster(run)
    if roster and client not in roster:
        raise ValueError(
            f"client {client!r} took no part in {run}, but {_shorten(sorted(roster))}"
        )
    state = _personal_state(run, settings, run_id, client, state_dir)
    model = state.model if state else settings.model
    if state is not None:
        state.check(settings.method, model, f"the state of {client}")
    if settings.shares in ("all", "backbone") and model != settings.model:
        raise ValueError(
            f"the state of {client} holds a network {model!r}, but {run} averaged "
            f"networks {settings.model!r}: they do not belong together"
        )
    spec = data_spec(settings.data)
    shared = {} if settings.shares in ("none", "extractor") else read_shared(run)
    network = personal_network(
        settings, spec, model, shared, state.part("model") if state else None
    )
    return Assembled(
        network=network.eval().requires_grad_(False),
        settings=settings,
        spec=spec,
        model=model,
        client=client,
        server_round=state.server_round if state else 0,
        rounds_trained=state.rounds_trained if state else 0,
    )


def personal_network(
    settings: Settings,
    spec: DataSpec,
    model: str,
    shared: State,
    personal: State | None,
) -> nn.Module:
    """Build a client's network from its shared and its personal parameters.

    Parameters
    ----------
    shared
        The shared parameters; not read where the network shares nothing (pFedES,
        standalone).
    personal
        All other entries of the network's ``state_dict``; None keeps the initial
        weights, equal for all clients of one architecture and seed.

    Raises
    ------
    ValueError
        Names or shapes are not those of the network.
    """
    network = build_network(model, spec, seed=settings.seed)
    keys = shared_names(network, settings)
    if settings.shares != "extractor":
        check_keys(shared, keys, "the shared parameters")
        write_state(network, shared)
    if personal is not None:
        check_keys(personal, network.state_dict().keys() - keys, "the stored state")
        write_state(network, personal)
    return network


def shared_names(network: nn.Module, settings: Settings) -> set[str]:
    """Return the names of what a client's network shares; all else is personal."""
    if settings.shares == "extractor":
        return set()
    return set(keys_to_share(network, settings))


def clients_with_state(folder: Path) -> list[str]:
    """Return the clients that have a state in ``state-dir/<experiment>``."""
    found = sorted(folder.glob("client-*/round-*.safetensors"))
    names = {unquote(path.parent.name.removeprefix("client-")) for path in found}
    return sorted(names)


def _personal_state(
    run: Path, settings: Settings, run_id: str, client: str, state_dir: Path | None
) -> PersonalState | None:
    """Return the client's last state; None where it can do without one."""
    folder = _state_folder(run, settings, state_dir)
    if folder is not None:
        # With the starts, what was trained in rounds that were lost with the server is
        # left out.
        starts = read_starts(run / "checkpoints")
        state = FileStore(folder, client, run_id, starts).load(_LAST)
        if state is not None:
            return state
    if settings.shares == "all" and settings.training.batch_norm == "shared":
        return None  # FedAvg: nothing that inference needs is personal
    if settings.shares == "backbone" and _never_trained(run, client):
        return None
    if _never_trained(run, client):
        raise ValueError(
            f"client {client!r} was never sampled in {run}: all of its network is "
            "personal and still has its initial weights"
        )
    where = folder or state_dir or run / STATE_FOLDER
    known = clients_with_state(folder) if folder else []
    raise ValueError(
        f"there is no personal state of client {client!r} in {where}; "
        + (
            f"there are those of {_shorten(known)}"
            if known
            else "name the state-dir that this client trained with; the states of a "
            "run without one were kept in memory only and are gone"
        )
    )


def _state_folder(run: Path, settings: Settings, state_dir: Path | None) -> Path | None:
    """Return ``state-dir/<experiment>``; None where there is no such folder."""
    roots = [state_dir] if state_dir else [run / STATE_FOLDER]
    if state_dir is None and settings.run.state_dir:
        roots.append(Path(settings.run.state_dir).expanduser())
    names = dict.fromkeys([settings.run.experiment, run.resolve().name])
    places = [root / name for root in roots for name in names if name]
    return next((place for place in places if place.is_dir()), None)


def _never_trained(run: Path, client: str) -> bool:
    """Tell whether the run's records show that the client was never sampled."""
    rounds = run / "rounds.jsonl"
    if not rounds.exists() or client not in _roster(run):
        return False
    lines = rounds.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]  # one may just be written
    return not any(client in json.loads(line)["train"]["clients"] for line in whole)


def _roster(run: Path) -> Mapping[str, Any]:
    path = run / "roster.json"
    return _read_json(path) if path.exists() else {}


def read_run(run: Path) -> tuple[Settings, str]:
    """Return a run's settings and what identifies it to the clients.

    Raises
    ------
    ValueError
        ``settings.json`` is missing, damaged, or of another version of the app.
    """
    info = _read_json(run / "settings.json")
    try:
        return parse_settings(info["settings"]), str(info.get("run", ""))
    except (KeyError, SettingsError) as error:
        raise ValueError(
            f"{run / 'settings.json'} was not written by this version of the app: "
            f"{error}"
        ) from error


def read_shared(run: Path) -> State:
    """Return a run's final shared parameters.

    Raises
    ------
    ValueError
        ``shared.safetensors`` is missing or damaged.
    """
    path = run / "shared.safetensors"
    if not path.is_file():
        raise ValueError(
            f"{path} is missing: the server writes it when the run ends; copy it here "
            "beside settings.json"
        )
    try:
        return read_tensors(path, "")[1]
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again") from error


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise ValueError(
            f"{path} is missing: name the folder of a run, <output-dir>/<experiment>"
        )
    try:
        content = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON ({error}): copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object: copy it again")
    return content


def _shorten(names: list[str]) -> str:
    listed = ", ".join(names[:8])
    return listed if len(names) <= 8 else f"{listed}, ... ({len(names)})"
