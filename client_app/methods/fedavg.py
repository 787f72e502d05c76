"""FedAvg, client half (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from client_app.trainer import Trainer


class FedAvg(Trainer):
    """Trains the received network, all exits jointly, and sends all of it back."""
