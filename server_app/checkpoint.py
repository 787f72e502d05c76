"""What the server needs to go on after the last finished round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save

from common.files import read_tensors, remove_leftovers, write_atomically
from common.starts import read_starts, write_starts
from common.state import State
from server_app.errors import RunError

SCHEMA: Final = 2


class CheckpointError(RunError):
    """A checkpoint cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State of a run after a round.

    Sampling, batch order and schedules follow from seed and round, so no random state
    has to be kept.
    """

    method: str
    server_round: int
    shared: State
    groups: Mapping[str, State]
    """What the method keeps on the server, e.g. X-FED's exits and updates."""
    trained: Mapping[str, int]
    """By client: the last round in which its training counted."""
    tally: Mapping[str, Any]
    """Counts of the run so far."""


class CheckpointStore:
    """Checkpoints in a folder, one safetensors file per round, the last few kept.

    Beside them ``starts.json`` lists the round after which each start of the run began.

    Parameters
    ----------
    folder
        Made with the first checkpoint.
    keep
        Number of checkpoints kept, at least 1.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically, then remove those beyond the last few."""
        parts = [checkpoint.shared, *checkpoint.groups.values()]
        arrays = {
            f"{index}/{key}": np.asarray(value, order="C")
            for index, state in enumerate(parts)
            for key, value in state.items()
        }
        info = {
            "schema": SCHEMA,
            "method": checkpoint.method,
            "round": checkpoint.server_round,
            "groups": list(checkpoint.groups),
            "trained": dict(checkpoint.trained),
            "tally": dict(checkpoint.tally),
        }
        path = self._folder / f"round-{checkpoint.server_round:06d}.safetensors"
        write_atomically(path, save(arrays, metadata={"checkpoint": json.dumps(info)}))
        for old in self._paths()[: -self._keep]:
            old.unlink()
        remove_leftovers(self._folder)

    def begin(self, server_round: int) -> list[int]:
        """Note that the run starts, or starts again, after a round.

        Returns
        -------
        The round after which each start began, this one last.

        Raises
        ------
        CheckpointError
            The list of starts cannot be read.
        """
        try:
            starts = [*read_starts(self._folder), server_round]
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        write_starts(self._folder, starts)
        return starts

    def oldest(self) -> int:
        """Return the oldest round to go back to; 0 while none had to be removed."""
        paths = self._paths()
        return _round(paths[0]) if len(paths) >= self._keep else 0

    def latest(self, method: str) -> Checkpoint | None:
        """Return the last checkpoint; None where there is none.

        Raises
        ------
        CheckpointError
            It is truncated, of an unknown schema or of another method.
        """
        paths = self._paths()
        return _load(paths[-1], method) if paths else None

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("round-*.safetensors"))


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _load(path: Path, method: str) -> Checkpoint:
    try:
        info, arrays = read_tensors(path, "checkpoint")
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged ({error}): remove it to go on from the one before"
        ) from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path} is no checkpoint of schema {SCHEMA}: use the version of the app "
            "that wrote it"
        )
    if info["method"] != method:
        raise CheckpointError(
            f"{path} is of method {info['method']!r}, but this run uses {method!r}: "
            "choose another experiment name"
        )

    def part(index: int) -> State:
        start = f"{index}/"
        return {
            key.removeprefix(start): value
            for key, value in arrays.items()
            if key.startswith(start)
        }

    return Checkpoint(
        method=method,
        server_round=info["round"],
        shared=part(0),
        groups={name: part(i) for i, name in enumerate(info["groups"], start=1)},
        trained=info["trained"],
        tally=info["tally"],
    )
