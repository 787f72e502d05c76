"""What stays on the client between rounds, and how it survives.

In a simulation the state lives in Flower's ``Context.state``. On a deployed node that
is only in the memory of the SuperNode and gone with it; so with ``state-dir`` the state
is a file per round trained, ``state-dir/<experiment>/<client>/round-<t>.safetensors``.
A server that resumes may repeat rounds; the states from before them are kept for that,
and what was trained in rounds that were lost with the server is void.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from flwr.common import ConfigRecord, RecordDict
from safetensors.numpy import save

from common.files import read_record, read_tensors, remove_leftovers, write_atomically
from common.locks import one_writer
from common.protocol import from_record, to_record
from common.state import State

SCHEMA: Final = 2
_ARRAYS, _INFO = "personal", "personal-info"
_REMEDY = "choose another experiment name, or move the states away"
_SHARED = (
    "give each node a client-name or state-dir of its own, or end the other one first"
)


class StateError(ValueError):
    """A stored state cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalState:
    """Everything personal of one client.

    ``arrays`` holds the parameters that are not shared (``model.<name>``) and, where
    the optimizer state is personal, momentum (``momentum.<module>.<name>``).
    """

    method: str
    model: str
    run: str
    server_round: int
    """Round in which the state was trained."""
    rounds_trained: int
    """Number of rounds in which this client trained."""
    arrays: State = field(default_factory=dict)

    def part(self, prefix: str) -> State:
        """Return the arrays below a prefix, without it."""
        start = f"{prefix}."
        return {
            key.removeprefix(start): value
            for key, value in self.arrays.items()
            if key.startswith(start)
        }

    def check(self, method: str, model: str, where: str) -> None:
        """Raise :class:`StateError` where the state is of another method or model."""
        if (self.method, self.model) != (method, model):
            raise StateError(
                f"{where} belongs to method {self.method!r} with model {self.model!r}, "
                f"but this run uses {method!r} with {model!r}: {_REMEDY}"
            )

    def require_finite(self, where: str) -> None:
        """Raise :class:`StateError` where a value is NaN or infinite."""
        for key, value in self.arrays.items():
            if not np.isfinite(value).all():
                raise StateError(
                    f"training diverged, {key} holds NaN or infinite values; {where} "
                    "keeps its last good values: lower learning-rate or set "
                    "max-grad-norm"
                )


class MemoryStore:
    """Keeps the last state in Flower's ``Context.state``, under the run's id."""

    where = "the client's state in memory"

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    def lock(self, node: str, patience: float) -> AbstractContextManager[None]:
        """Nobody else can write: the memory is this node's own."""
        return nullcontext()

    def load(self, last_round: int) -> PersonalState | None:
        """Return the state; None before the first training.

        A server that resumes is a new run to Flower, with no such state, so there is
        never one to go back to.
        """
        if _INFO not in self._records:
            return None
        info = self._records.config_records[_INFO]
        return PersonalState(
            method=str(info["method"]),
            model=str(info["model"]),
            run=str(info["run"]),
            server_round=int(str(info["server-round"])),
            rounds_trained=int(str(info["rounds-trained"])),
            arrays=from_record(self._records.array_records[_ARRAYS]),
        )

    def save(self, state: PersonalState, checkpoint: int) -> None:
        """Replace the state."""
        self._records[_ARRAYS] = to_record(state.arrays)
        self._records[_INFO] = ConfigRecord(
            {
                "method": state.method,
                "model": state.model,
                "run": state.run,
                "server-round": state.server_round,
                "rounds-trained": state.rounds_trained,
            }
        )


class FileStore:
    """Keeps states in safetensors files, one per round trained, written atomically.

    Parameters
    ----------
    folder
        ``state-dir/<experiment>``.
    client
        The client's name.
    run
        Identifies the run; the states of another are neither used nor overwritten.
    starts
        The round after which each start of the run began. A state trained later than
        that in an earlier start is void: its round was lost with the server. Without
        starts every state counts.
    """

    def __init__(
        self, folder: Path, client: str, run: str, starts: Sequence[int] = ()
    ) -> None:
        self._run = run
        self._starts = starts
        self._folder = folder / f"client-{quote(client, safe=' ')}"
        self.where = str(self._folder)

    def lock(self, node: str, patience: float) -> AbstractContextManager[None]:
        """Keep other nodes off from loading the state until the new one is saved.

        Parameters
        ----------
        node
            Flower's id of the node. An earlier message of the same node, e.g. of a run
            whose server died, is waited for.
        patience
            Longest such wait, in seconds.

        Raises
        ------
        FolderError
            On entering, where another node trains this client.
        """
        return one_writer(self._folder, f"node {node}", _SHARED, patience)

    def load(self, last_round: int) -> PersonalState | None:
        """Return the last state trained in `last_round` or before.

        None where there is none: the client had not trained by then, or it lost what it
        had. The server, which knows, says so.

        Raises
        ------
        StateError
            A file is truncated, of another kind, of an unknown schema or of another
            run; the client is further than the message; or the server went back
            further than states are kept.
        """
        stored = self._stored()
        for _, info in stored:
            self._check_run(info)
        valid = [(path, info) for path, info in stored if not self._void(info)]
        if valid and (newest := valid[-1][1]["server_round"]) > last_round + 1:
            raise StateError(
                f"{self._folder} holds a state of round {newest} already: this message "
                "came too late and does not count"
            )
        fitting = [path for path, info in valid if info["server_round"] <= last_round]
        if fitting:
            return _load(fitting[-1])
        from_the_start = bool(self._starts) and self._starts[-1] == 0
        if stored and stored[0][1]["rounds_trained"] > 1 and not from_the_start:
            raise StateError(
                f"{self._folder} holds no state from before round {last_round + 1}, "
                f"the oldest is of round {stored[0][1]['server_round']}: the server "
                f"went back further than its checkpoints; {_REMEDY}"
            )
        return None

    def save(self, state: PersonalState, checkpoint: int) -> None:
        """Write the state, then remove those no resumed server can ask for.

        Parameters
        ----------
        checkpoint
            Last round the server can go back to.
        """
        info = {
            "schema": SCHEMA,
            "method": state.method,
            "model": state.model,
            "run": state.run,
            "server_round": state.server_round,
            "rounds_trained": state.rounds_trained,
            "start": len(self._starts),
        }
        content = save(state.arrays, metadata={_INFO: json.dumps(info)})
        name = f"round-{state.server_round:06d}.safetensors"
        write_atomically(self._folder / name, content, private=True)
        stored = self._stored()
        needed = [
            path
            for path, info in stored
            if info["server_round"] <= checkpoint and not self._void(info)
        ]
        void = [path for path, info in stored if self._void(info)]
        for path in [*void, *needed[:-1]]:
            path.unlink()
        remove_leftovers(self._folder)

    def model(self) -> str | None:
        """Return the network that the newest state belongs to, whatever its run."""
        stored = self._stored()
        return str(stored[-1][1]["model"]) if stored else None

    def _stored(self) -> list[tuple[Path, dict[str, Any]]]:
        """Return what is stored, by round."""
        paths = sorted(self._folder.glob("round-*.safetensors"))
        return [(path, _info(path)) for path in paths]

    def _check_run(self, info: dict[str, Any]) -> None:
        if info["run"] != self._run:
            raise StateError(
                f"{self._folder} belongs to run {info['run']!r} of this experiment, "
                f"but this is run {self._run!r}, which starts anew: {_REMEDY}"
            )
        if self._starts and info["start"] > len(self._starts):
            raise StateError(
                f"{self._folder} was written after the server was started again, this "
                "message is from before and does not count"
            )

    def _void(self, info: dict[str, Any]) -> bool:
        """Tell whether a later start went back to before the state's round."""
        later = self._starts[info["start"] :]
        return bool(info["server_round"] > min(later, default=math.inf))


Store = MemoryStore | FileStore


def _info(path: Path) -> dict[str, Any]:
    try:
        info = read_record(path, _INFO)
    except ValueError as error:
        raise StateError(
            f"{path} is damaged ({error}): restore it from a backup, or move it away: "
            "this client then goes on with its state before that, or starts anew"
        ) from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        raise StateError(
            f"{path} is no personal state of schema {SCHEMA}: move it away, or use the "
            "version of the app that wrote it"
        )
    return info


def _load(path: Path) -> PersonalState:
    info, arrays = read_tensors(path, _INFO)
    del info["schema"], info["start"]
    return PersonalState(**info, arrays=arrays)
