"""FedPer, server half (Arivazhagan et al., arXiv 1912.00818): exits stay personal."""

from __future__ import annotations

from server_app.strategy import PersonalizedStrategy


class FedPer(PersonalizedStrategy):
    """The backbone is averaged as in FedAvg; no exit is ever seen by the server."""
