"""TensorBoard event files of a run: the scalars of each round's record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.schema import SettingsError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class EventFiles:
    """Writes scalars for TensorBoard, round by round.

    Parameters
    ----------
    folder
        Where the event files go.

    Raises
    ------
    SettingsError
        The package ``tensorboard`` is missing.
    """

    def __init__(self, folder: Path) -> None:
        if find_spec("tensorboard") is None:
            raise SettingsError(
                [
                    "tensorboard = true: needs the package tensorboard on the server: "
                    "pip install '.[tensorboard]'"
                ]
            )
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._first_round = 1

    def go_back_to(self, server_round: int) -> None:
        """Let later rounds that were written earlier count for nothing."""
        self._first_round = server_round + 1

    def add_round(self, record: Mapping[str, Any]) -> None:
        """Write a round's scalars, flushed to the disk."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(
                str(self._folder), purge_step=self._first_round
            )
        for tag, value in scalars(record):
            self._writer.add_scalar(tag, value, record["round"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file of this process."""
        if self._writer is not None:
            self._writer.close()


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield tag and value of all that is one number per round.

    Tags are ``train/…``, ``evaluate/…`` and ``method/…``; of figures per exit there is
    one for each, counted from 1 (``evaluate/exit-accuracy-mean/1``); of clients and
    failures their number.
    """
    for phase in ("train", "evaluate", "method"):
        for name, value in record.get(phase, {}).items():
            if isinstance(value, int | float):
                yield f"{phase}/{name}", float(value)
            elif name in ("clients", "replied", "failures"):
                yield f"{phase}/{name}", float(len(value))
            elif name.startswith("exit-") or name.endswith("_per_exit"):
                for exit_, number in enumerate(value, start=1):
                    yield f"{phase}/{name}/{exit_}", float(number)
