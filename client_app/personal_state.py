"""What stays on the client between rounds, and how it survives.

In a simulation the state lives in Flower's ``Context.state``. On a deployed node that
is only in the memory of the SuperNode and gone with it; so with ``state-dir`` in the
node's configuration the state is a file,
``state-dir/<experiment>/<client>.safetensors``.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
from flwr.common import ConfigRecord, RecordDict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from common.protocol import from_record, to_record
from common.state import State

SCHEMA: Final = 1
_ARRAYS, _INFO = "personal", "personal-info"


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
    rounds_trained: int
    arrays: State = field(default_factory=dict)

    def part(self, prefix: str) -> State:
        """Return the arrays below a prefix, without it."""
        start = f"{prefix}."
        return {
            key.removeprefix(start): value
            for key, value in self.arrays.items()
            if key.startswith(start)
        }

    def check(self, method: str, model: str, run: str, where: str) -> None:
        """Raise :class:`StateError` where the state is not of this run."""
        remedy = "choose another experiment name, or move the state away"
        if (self.method, self.model) != (method, model):
            raise StateError(
                f"{where} belongs to method {self.method!r} with model {self.model!r}, "
                f"but this run uses {method!r} with {model!r}: {remedy}"
            )
        if self.run != run:
            raise StateError(
                f"{where} belongs to run {self.run!r} of this experiment, but this is "
                f"run {run!r}, which starts anew: {remedy}"
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
    """Keeps the state in Flower's ``Context.state``, under the run's id."""

    where = "the client's state in memory"

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    def load(self) -> PersonalState | None:
        """Return the stored state; None before the first training."""
        if _INFO not in self._records:
            return None
        info = self._records.config_records[_INFO]
        return PersonalState(
            method=str(info["method"]),
            model=str(info["model"]),
            run=str(info["run"]),
            rounds_trained=int(str(info["rounds-trained"])),
            arrays=from_record(self._records.array_records[_ARRAYS]),
        )

    def save(self, state: PersonalState) -> None:
        """Replace the stored state."""
        self._records[_ARRAYS] = to_record(state.arrays)
        self._records[_INFO] = ConfigRecord(
            {
                "method": state.method,
                "model": state.model,
                "run": state.run,
                "rounds-trained": state.rounds_trained,
            }
        )


class FileStore:
    """Keeps the state in a safetensors file, replaced atomically.

    Parameters
    ----------
    folder
        ``state-dir/<experiment>``.
    client
        The client's name.
    """

    def __init__(self, folder: Path, client: str) -> None:
        self._path = folder / f"{quote(client, safe=' ')}.safetensors"
        self.where = str(self._path)

    def load(self) -> PersonalState | None:
        """Return the stored state; None where there is no file.

        Raises
        ------
        StateError
            The file is truncated, of another kind, or of an unknown schema.
        """
        if not self._path.exists():
            return None
        try:
            with safe_open(self._path, framework="numpy") as file:
                info = json.loads((file.metadata() or {}).get("state", "null"))
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise StateError(
                f"{self._path} is damaged ({error}): restore it from a backup, or move "
                "it away to start this client anew"
            ) from error
        if not isinstance(info, dict) or info.get("schema") != SCHEMA:
            raise StateError(
                f"{self._path} is no personal state of schema {SCHEMA}: move it away, "
                "or use the version of the app that wrote it"
            )
        return PersonalState(
            method=info["method"],
            model=info["model"],
            run=info["run"],
            rounds_trained=info["rounds_trained"],
            arrays=arrays,
        )

    def save(self, state: PersonalState) -> None:
        """Write the state beside the old one, flush it to the disk, then replace."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        info = {
            "schema": SCHEMA,
            "method": state.method,
            "model": state.model,
            "run": state.run,
            "rounds_trained": state.rounds_trained,
        }
        content = save(state.arrays, metadata={"state": json.dumps(info)})
        handle, temporary = tempfile.mkstemp(
            dir=self._path.parent, prefix=f".{self._path.name}."
        )
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


Store = MemoryStore | FileStore
