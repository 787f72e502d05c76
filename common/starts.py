"""The list of a run's starts, which the server keeps beside its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from common.files import write_atomically

_NAME = "starts.json"


def read_starts(checkpoints: Path) -> list[int]:
    """Return the round after which each start of a run began, 0 for the first.

    Parameters
    ----------
    checkpoints
        The run's folder of checkpoints; where it holds no such list, none is returned.

    Raises
    ------
    ValueError
        The list is damaged.
    """
    path = checkpoints / _NAME
    if not path.exists():
        return []
    try:
        return [int(start) for start in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): write the rounds after which the run was "
            "started into it, at first [0]; in a copy of the run's folder, copy it "
            "again"
        ) from error


def write_starts(checkpoints: Path, starts: list[int]) -> None:
    """Write the list atomically."""
    write_atomically(checkpoints / _NAME, json.dumps(starts).encode())
