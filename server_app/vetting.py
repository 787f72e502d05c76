"""Checks of what a client sends, before any of it counts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from common.protocol import NUM_EXAMPLES, TRAIN_LOSS, Reply
from common.state import State

MAX_EXAMPLES = 2**31
"""A client that claims more training samples than this is refused."""


class RefusedReply(ValueError):
    """A reply that must not count; the message says why."""


def vet_state(state: State, template: State, what: str) -> None:
    """Check an uploaded state against what the method expects.

    Raises
    ------
    RefusedReply
        Missing or surplus names, another shape or dtype, a value that is not finite.
    """
    missing, surplus = template.keys() - state.keys(), state.keys() - template.keys()
    if missing or surplus:
        parts = [
            f"{word} {', '.join(sorted(names)[:3])}{' …' if len(names) > 3 else ''}"
            for word, names in (("missing", missing), ("unexpected", surplus))
            if names
        ]
        raise RefusedReply(f"{what}: {'; '.join(parts)}")
    for key, expected in template.items():
        value = state[key]
        if value.shape != expected.shape:
            raise RefusedReply(
                f"{what}: {key} has shape {value.shape}, expected {expected.shape}"
            )
        if value.dtype != expected.dtype:
            raise RefusedReply(
                f"{what}: {key} has dtype {value.dtype}, expected {expected.dtype}"
            )
        if not np.isfinite(value).all():
            raise RefusedReply(f"{what}: {key} holds NaN or infinite values")


def vet_training(reply: Reply, template: State, uploads: Mapping[str, State]) -> None:
    """Check a reply to ``train``.

    Parameters
    ----------
    template
        The shared parameters as they went down.
    uploads
        A template of each group of arrays the method asks for.

    Raises
    ------
    RefusedReply
        n_k, the loss, the shared parameters or a group is not as it must be.
    """
    vet_count(reply.metrics, NUM_EXAMPLES)
    loss = reply.metrics.get(TRAIN_LOSS, 0.0)
    if not isinstance(loss, int | float) or not math.isfinite(loss):
        raise RefusedReply(f"{TRAIN_LOSS} = {loss!r}: must be a finite number")
    if reply.shared is None:
        raise RefusedReply("no shared parameters in the reply")
    vet_state(reply.shared, template, "shared parameters")
    if reply.groups.keys() != uploads.keys():
        raise RefusedReply(f"groups {sorted(reply.groups)}, expected {sorted(uploads)}")
    for group, expected in uploads.items():
        vet_state(reply.groups[group], expected, group)


def vet_count(values: Mapping[str, object], key: str) -> int:
    """Return a positive number of samples.

    Raises
    ------
    RefusedReply
        The number is absent, not whole, below 1 or absurdly large.
    """
    count = values.get(key)
    if type(count) is not int or not 1 <= count <= MAX_EXAMPLES:
        raise RefusedReply(
            f"{key} = {count!r}: must be a whole number from 1 to {MAX_EXAMPLES}"
        )
    return count
