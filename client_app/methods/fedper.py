"""FedPer, client half (Arivazhagan et al., arXiv 1912.00818)."""

from __future__ import annotations

from client_app.trainer import Trainer


class FedPer(Trainer):
    """Trains backbone and exits jointly, Σ_j w_j CE_j; the exits stay here."""
