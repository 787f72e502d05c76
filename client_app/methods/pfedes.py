"""pFedES, client half.

Source: "Model Heterogeneous Personalized Federated Learning with Feature Extractor
Sharing" (arXiv 2311.06879). F_k(ω) is the client's private network, G(θ) the small
shared extractor, image in, image out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from client_app.batches import Batch
from client_app.losses import joint_cross_entropy, network_loss
from client_app.personal_state import PersonalState
from client_app.trainer import Trainer
from client_app.training import frozen
from common.models import BATCH_NORM, build_extractor, logits_per_exit
from common.protocol import Reply, Request
from common.settings import PFedESSettings
from common.state import State, write_state


class PFedES(Trainer):
    """Trains F_k with G frozen, then G with F_k frozen; only θ_k and n_k go up."""

    def train(
        self, request: Request, state: PersonalState | None
    ) -> tuple[Reply, PersonalState]:
        """Run steps 1 and 2 of one round."""
        pfedes = self.settings.of(PFedESSettings)
        private = self.network(request, state)  # F_k
        extractor = self.extractor(request)  # G

        def step_2(batch: Batch) -> Tensor:
            """ℓ_θ = CE(F_k(G(x)), y)."""
            return network_loss(private, extractor(batch.inputs), batch.targets)

        loss, momentum = self.fit_private(private, extractor, request, state)
        with frozen(private):
            _, extractor_momentum = self.fit(
                extractor,
                step_2,
                request,
                state,
                purpose="extractor",
                epochs=pfedes.extractor_epochs or None,
                learning_rate=pfedes.extractor_learning_rate or None,
            )
        momentum |= extractor_momentum
        new_state = self.remember(private, momentum, request, state)
        return self.reply(extractor, loss), new_state

    def heaviest_loss(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return step 1's loss with all that step 2 keeps of G: more than either."""
        extractor = build_extractor(self.client.data.spec, seed=self.settings.seed)
        enhanced = self.place(extractor)(batch.inputs)
        return _private_loss(
            network, batch, enhanced, self.settings.of(PFedESSettings).mu
        )

    def extractor(self, request: Request) -> nn.Module:
        """Build G(θ) as received."""
        extractor = build_extractor(self.client.data.spec, seed=self.settings.seed)
        write_state(extractor, request.shared)
        return self.place(extractor)

    def fit_private(
        self,
        private: nn.Module,
        extractor: nn.Module,
        request: Request,
        state: PersonalState | None,
        epochs: int | None = None,
    ) -> tuple[float, State]:
        """Step 1: train F_k with G frozen; return what :meth:`fit` does."""
        mu = self.settings.of(PFedESSettings).mu

        def step_1(batch: Batch) -> Tensor:
            with torch.no_grad():
                enhanced = extractor(batch.inputs)
            return _private_loss(private, batch, enhanced, mu)

        with frozen(extractor):
            return self.fit(private, step_1, request, state, epochs=epochs)


def _private_loss(
    private: nn.Module, batch: Batch, enhanced: Tensor, mu: float
) -> Tensor:
    """ℓ_ω = (1-μ)·CE(F_k(x), y) + μ·CE(F_k(G(x)), y).

    x and G(x) pass through F_k together, which takes less time than one after the
    other; not where BatchNorm would mix their statistics.
    """
    samples = len(batch.targets)
    if any(isinstance(layer, BATCH_NORM) for layer in private.modules()):
        plain_nc = logits_per_exit(private, batch.inputs)
        enhanced_nc = logits_per_exit(private, enhanced)
    else:
        both = logits_per_exit(private, torch.cat([batch.inputs, enhanced]))
        plain_nc = [logits[:samples] for logits in both]
        enhanced_nc = [logits[samples:] for logits in both]
    plain_loss = joint_cross_entropy(plain_nc, batch.targets)
    enhanced_loss = joint_cross_entropy(enhanced_nc, batch.targets)
    return (1 - mu) * plain_loss + mu * enhanced_loss
