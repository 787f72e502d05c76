"""Standalone training (Local), server half: the server only keeps time and score."""

from __future__ import annotations

from server_app.strategy import PersonalizedStrategy


class Standalone(PersonalizedStrategy):
    """Clients train on their own; messages carry no parameters."""
