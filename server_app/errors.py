"""What ends a run."""

from __future__ import annotations

import re


class RunError(Exception):
    """The run cannot go on; the message says why and what to do.

    No ``RuntimeError``: Flower takes one that leaves a ServerApp for a failure of its
    own to start the run, and hides what happened.
    """


class TooFewClients(RunError):
    """Fewer clients than needed within the time allowed."""


class QuorumMissed(RunError):
    """Too many rounds in a row had no quorum."""


_SENTENCES = {
    "Message Unavailable": "no answer in time",
    "Reply expired": "no answer in time",
    "Node Unavailable": "not reachable: its node sent no sign of life for a minute",
    "ClientApp stopped responding": "its process was killed or hung; the log of its "
    "node tells more",
    "attempting to load `ClientApp`": "the app does not start there: a package is "
    "missing or of another version; the log of its node tells more",
}
"""Words of Flower's own error replies, and what they mean."""


def essence(reason: str) -> str:
    """Return one line that says what went wrong.

    Parameters
    ----------
    reason
        Of a Flower error reply: ``<class 'X'>:<'text'>``, maybe around a stack trace
        with colours, or a sentence of SuperLink's.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", reason.replace("\\n", "\n")).strip()
    for words, meaning in _SENTENCES.items():
        if words in plain:
            return meaning
    lines = [line.strip(" '\">") for line in plain.splitlines() if line.strip(" '\">")]
    if not lines:
        return "no reason given"
    if "Traceback" in plain or "File " in plain:
        return lines[-1]
    wrapped = re.fullmatch(r"<class '(?:.*\.)?(\w+)'>:<'(.*)'>", plain, re.DOTALL)
    if wrapped:
        return f"{wrapped[1]}: {' '.join(wrapped[2].split())}"
    return " ".join(lines)
