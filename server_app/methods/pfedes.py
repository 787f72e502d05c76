"""pFedES, server half.

Source: "Model Heterogeneous Personalized Federated Learning with Feature Extractor
Sharing" (arXiv 2311.06879).
"""

from __future__ import annotations

from flwr.common import ArrayRecord

from server_app.strategy import PersonalizedStrategy


class PFedES(PersonalizedStrategy):
    """θ^t = Σ_{k∈S} n_k θ_k / Σ_{k∈S} n_k over the sampled clients S.

    θ, the small feature extractor, is all that travels. The paper's equation divides by
    the samples of all clients, which would shrink θ whenever C < 1; the sum over S is
    what its code does.
    """

    def evaluation_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        """F_k alone is evaluated, so nothing goes down."""
        return ArrayRecord()
