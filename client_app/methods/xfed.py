"""X-FED, client half.

Source: "Federated Personalization of Early-Exit Networks" (CIKM 2026), Sec. 4. The
client receives the backbone φ^t, the teacher exit h̄_i and the set S_i of its student
exits, and trains Σ_{j∈S_i} w_j (CE_j + λ·KD_j) (Eq. 5).
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from client_app.batches import Batch, LocalData
from client_app.losses import xfed_loss
from client_app.personal_state import PersonalState
from client_app.trainer import Trainer
from common.models import Network, last_exit_keys
from common.protocol import ProtocolError, Reply, Request
from common.settings import XFedSettings
from common.state import State, read_state, write_state


class XFed(Trainer):
    """Trains the backbone, the last exit and the students; shallow exits stay here."""

    def network(self, request: Request, state: PersonalState | None) -> Network:
        """Build φ^t with the personal exits."""
        network = super().network(request, state)
        assert isinstance(network, Network)
        return network

    def train(
        self, request: Request, state: PersonalState | None
    ) -> tuple[Reply, PersonalState]:
        """Train for one round; φ_i, h_im and n_i go up."""
        xfed = self.settings.of(XFedSettings)
        network = self.network(request, state)
        num_exits = network.num_exits
        last_keys = last_exit_keys(network)
        teacher_exit = _teacher_exit(request, last_keys)
        students = _students(request, num_exits)
        kd_weight = xfed.lambda_ / (num_exits if xfed.kd_weight == "paper" else 1)
        distils = len(students) > 1 and kd_weight > 0

        teacher = _Teacher(self.training_data, self.inference_batch)
        if xfed.last_exit == "aggregated":
            write_state(network, teacher_exit)
        if distils and xfed.teacher == "frozen":
            teacher.freeze(network, teacher_exit)

        def loss(batch: Batch) -> Tensor:
            logits = network(batch.inputs, [exit_ - 1 for exit_ in students])
            return xfed_loss(
                logits,
                batch.targets,
                teacher.logits(batch, live=logits[-1]) if distils else None,
                students,
                ce_weight=1 / num_exits,
                kd_weight=kd_weight,
                temperature=xfed.temperature,
            )

        mean_loss, momentum = self.fit(network, loss, request, state)
        reply = self.reply(
            network, mean_loss, groups={"exit": read_state(network, last_keys)}
        )
        return reply, self.remember(network, momentum, request, state)

    def evaluate(self, request: Request, state: PersonalState | None) -> Reply:
        """Evaluate φ with the personal exits, or with h̄_i as the last one."""
        network = self.network(request, state)
        if "teacher" in request.groups:
            write_state(network, _teacher_exit(request, last_exit_keys(network)))
        return self.evaluation(network, request)


class _Teacher:
    """Logits to distil from: of the model as received (Eq. 9), or live.

    The received model is frozen before training starts. Where images are not augmented,
    its logits are the same in every epoch and are computed once.
    """

    def __init__(self, data: LocalData, batch_size: int) -> None:
        self._data = data
        self._batch_size = batch_size
        self._frozen: nn.Module | None = None
        self._stored: Tensor | None = None

    @torch.no_grad()
    def freeze(self, network: Network, teacher_exit: State) -> None:
        """Keep (φ^t, h̄_i) as they are now."""
        frozen = deepcopy(network)
        write_state(frozen, teacher_exit)
        frozen.eval().requires_grad_(False)
        if self._data.augmented:
            self._frozen = frozen
        else:
            portions = self._data.ordered(self._batch_size)
            self._stored = torch.cat([_last_logits(frozen, b) for b in portions])

    def logits(self, batch: Batch, *, live: Tensor | None) -> Tensor:
        """Return the teacher's logits of a batch, shape (n, classes)."""
        if self._stored is not None:
            return self._stored[batch.rows]
        if self._frozen is not None:
            with torch.no_grad():
                return _last_logits(self._frozen, batch)
        assert live is not None
        return live.detach()


def _last_logits(network: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(network, Network)
    logits = network(batch.inputs, [network.num_exits - 1])[-1]
    assert isinstance(logits, Tensor)
    return logits


def _teacher_exit(request: Request, keys: tuple[str, ...]) -> State:
    teacher = request.groups.get("teacher", {})
    if teacher.keys() != set(keys):
        raise ProtocolError(f"teacher holds {sorted(teacher)}, expected {sorted(keys)}")
    return teacher


def _students(request: Request, num_exits: int) -> list[int]:
    students = request.values.get("students")
    valid = isinstance(students, list) and all(
        isinstance(exit_, int) and 1 <= exit_ <= num_exits for exit_ in students
    )
    if not valid or num_exits not in students:  # type: ignore[operator]
        raise ProtocolError(
            f"students = {students!r}: must be exits from 1 to {num_exits}, the last "
            "one among them"
        )
    return [int(exit_) for exit_ in students]  # type: ignore[union-attr]
