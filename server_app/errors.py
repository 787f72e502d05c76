"""What ends a run."""

from __future__ import annotations


class RunError(Exception):
    """The run cannot go on; the message says why and what to do.

    No ``RuntimeError``: Flower takes one that leaves a ServerApp for a failure of its
    own to start the run, and hides what happened.
    """


class TooFewClients(RunError):
    """Fewer clients than needed within the time allowed."""


class QuorumMissed(RunError):
    """Too many rounds in a row had no quorum."""
