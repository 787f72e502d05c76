"""What stays on the client between rounds, and how it survives.

In a simulation the state lives in Flower's ``Context.state``. On a deployed node that
is only in the memory of the SuperNode and gone with it; so with ``state-dir`` the state
is a file per round trained, ``state-dir/<experiment>/<client>/round-<t>.safetensors``.
A server that resumes may repeat rounds; the states from before them are kept for that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
from flwr.common import ConfigRecord, RecordDict
from safetensors.numpy import save

from common.files import read_tensors, write_atomically
from common.protocol import from_record, to_record
from common.state import State

SCHEMA: Final = 1
_ARRAYS, _INFO = "personal", "personal-info"
_REMEDY = "choose another experiment name, or move the states away"


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
    """

    def __init__(self, folder: Path, client: str, run: str) -> None:
        self._run = run
        self._folder = folder / f"client-{quote(client, safe=' ')}"
        self.where = str(self._folder)

    def load(self, last_round: int) -> PersonalState | None:
        """Return the last state trained in `last_round` or before.

        None where this client had not trained by then.

        Raises
        ------
        StateError
            The file is truncated, of another kind, of an unknown schema or of another
            run, or states that old are no longer kept.
        """
        paths = self._paths()
        if not paths:
            return None
        last = _load(paths[-1])
        if last.run != self._run:
            raise StateError(
                f"{self._folder} belongs to run {last.run!r} of this experiment, but "
                f"this is run {self._run!r}, which starts anew: {_REMEDY}"
            )
        if last.server_round <= last_round:
            return last
        fitting = [path for path in paths if _round(path) <= last_round]
        if fitting:
            return _load(fitting[-1])
        first = _load(paths[0])
        if first.rounds_trained > 1:
            raise StateError(
                f"{self._folder} holds no state from before round {last_round + 1}, "
                f"the oldest is of round {first.server_round}: the server went back "
                "further than its checkpoints; choose another experiment name"
            )
        return None

    def save(self, state: PersonalState, checkpoint: int) -> None:
        """Write the state, then remove those no resumed server can ask for.

        Parameters
        ----------
        checkpoint
            Last round the server can go back to.
        """
        info = {"schema": SCHEMA, **asdict(state)}
        del info["arrays"]
        content = save(state.arrays, metadata={"state": json.dumps(info)})
        name = f"round-{state.server_round:06d}.safetensors"
        write_atomically(self._folder / name, content)
        for path in self._paths():
            if _round(path) > state.server_round:
                path.unlink()  # of rounds that are being repeated
        needed = [path for path in self._paths() if _round(path) <= checkpoint]
        for path in needed[:-1]:
            path.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("round-*.safetensors"))


Store = MemoryStore | FileStore


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _load(path: Path) -> PersonalState:
    try:
        info, arrays = read_tensors(path, "state")
    except ValueError as error:
        raise StateError(
            f"{path} is damaged ({error}): restore it from a backup, or move the "
            "folder away to start this client anew"
        ) from error
    if not isinstance(info, dict) or info.pop("schema", None) != SCHEMA:
        raise StateError(
            f"{path} is no personal state of schema {SCHEMA}: move it away, or use the "
            "version of the app that wrote it"
        )
    return PersonalState(**info, arrays=arrays)
