"""FedAvg, server half (McMahan et al., AISTATS 2017): the whole network is averaged."""

from __future__ import annotations

from server_app.strategy import PersonalizedStrategy


class FedAvg(PersonalizedStrategy):
    """φ^{t+1} = Σ n_k φ_k / Σ n_k over the sampled clients; nothing is personal."""
