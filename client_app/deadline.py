"""A client that hangs ends itself once nobody waits for it any longer."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STDERR = 2  # also where Flower puts something else into sys.stderr


@contextmanager
def end_after(seconds: float) -> Iterator[None]:
    """End this process, with a stack trace, if the block takes longer than `seconds`.

    A SuperNode handles one message at a time, so a ClientApp that hangs would keep the
    node out of the federation until somebody notices. Does nothing where the process is
    not one that SuperNode started for this message, as in a simulation.
    """
    if Path(sys.argv[0]).name != "flwr-clientapp":
        yield
        return
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
