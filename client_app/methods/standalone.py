"""Standalone training (Local), client half."""

from __future__ import annotations

from client_app.trainer import Trainer


class Standalone(Trainer):
    """Trains a network of its own, all exits jointly; no parameter is ever sent."""
