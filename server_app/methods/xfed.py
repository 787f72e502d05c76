"""X-FED, server half.

Source: "Federated Personalization of Early-Exit Networks" (CIKM 2026), Sec. 4. A round:
sample S; select students (4.2); match teachers (4.3) and aggregate them (4.4); send φ,
h̄_i and S_i; average φ and store h_im and Δ_i of the replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common.data import data_spec
from common.models import Network, build_network, last_exit_keys
from common.protocol import STATE_ROUND, Reply
from common.seeding import derive_seed
from common.settings import Settings, XFedSettings
from common.state import State, read_state
from server_app.matching import (
    aggregate_teachers,
    cosine_similarity,
    flatten,
    match_teachers,
)
from server_app.results import Results
from server_app.selection import select_students
from server_app.strategy import Instruction, PersonalizedStrategy

_MAX_RECORDED = 64  # clients of a round up to which all teacher weights are recorded


class XFed(PersonalizedStrategy):
    """Averaged backbone, personal exits, teachers from similar clients.

    Down: φ, ``teacher`` = h̄_i, ``students`` = S_i (exits counted from 1). Up: φ_i and
    ``exit`` = h_im. No client's raw exit is ever sent to another.

    Parameters
    ----------
    settings
        Settings of the run, ``method = "xfed"``.
    initial_exit
        What counts as the last exit of a client that never sent one.
    num_exits
        Exits m of the network.
    results
        Folder for the results; None keeps none.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        initial_exit: State,
        num_exits: int,
        results: Results | None = None,
    ) -> None:
        super().__init__(settings, results=results)
        self.xfed = settings.of(XFedSettings)
        self.initial_exit = initial_exit
        self.num_exits = num_exits
        self.exits: dict[str, State] = {}
        self.updates: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
        self._received: dict[str, State] = {}
        self._report: dict[str, Any] = {}

    @classmethod
    def create(cls, settings: Settings, results: Results | None = None) -> XFed:
        """Build the strategy from the settings alone."""
        network = build_network(
            settings.model, data_spec(settings.data), seed=settings.seed
        )
        assert isinstance(network, Network)
        return cls(
            settings,
            initial_exit=read_state(network, last_exit_keys(network)),
            num_exits=network.num_exits,
            results=results,
        )

    def uploads(self) -> Mapping[str, State]:
        """Each client sends its last exit h_im."""
        return {"exit": self.initial_exit}

    def instruct_training(
        self, server_round: int, clients: Sequence[str]
    ) -> Sequence[Instruction]:
        """Select students, match and aggregate teachers for the sampled clients."""
        similarity = cosine_similarity([self.updates.get(c) for c in clients])
        students = select_students(
            self.xfed.schedule,
            server_round,
            self.num_rounds,
            self.num_exits,
            similarity,
            self._generator(server_round),
        )
        weights = self._weights(similarity)
        teachers = aggregate_teachers(weights, [self._exit(c) for c in clients])
        self._received = dict(zip(clients, teachers, strict=True))
        self._report = _report(weights, students, self.num_exits)
        return [
            Instruction(groups={"teacher": teacher}, values={"students": list(exits)})
            for teacher, exits in zip(teachers, students, strict=True)
        ]

    def instruct_evaluation(
        self, server_round: int, clients: Sequence[str]
    ) -> Sequence[Instruction]:
        """Send teachers where they, not the own last exits, are to be evaluated."""
        if self.xfed.evaluate_exit == "own":
            return super().instruct_evaluation(server_round, clients)
        similarity = cosine_similarity([self.updates.get(c) for c in clients])
        weights = self._weights(similarity)
        teachers = aggregate_teachers(weights, [self._exit(c) for c in clients])
        return [Instruction(groups={"teacher": teacher}) for teacher in teachers]

    def origins(self, client: str, reply: Reply) -> Mapping[str, State]:
        """Return what the client's last exit started from.

        With ``last-exit = own`` that is its last exit known here, or the initial one
        where the client has no state or lost it. Where a reply was lost since, the
        update spans what the client trained in between, too.
        """
        if self.xfed.last_exit == "aggregated":
            return {"exit": self._received[client]}
        if reply.metrics.get(STATE_ROUND) == 0:
            return {"exit": self.initial_exit}
        return {"exit": self._exit(client)}

    def absorb(self, client: str, reply: Reply) -> None:
        """Store h_im and Δ_i = h_im − what the client's last exit started from."""
        trained = reply.groups["exit"]
        start = self.origins(client, reply)["exit"]
        self.updates[client] = flatten(trained) - flatten(start)
        self.exits[client] = trained

    def state(self) -> Mapping[str, State]:
        """Return each client's last exit h_im and last update Δ_i."""
        return {
            **{f"exit/{client}": exit_ for client, exit_ in self.exits.items()},
            "updates": dict(self.updates),
        }

    def restore(self, groups: Mapping[str, State]) -> None:
        """Take back exits and updates."""
        self.updates = {
            client: update.astype(np.float64)
            for client, update in groups["updates"].items()
        }
        self.exits = {client: dict(groups[f"exit/{client}"]) for client in self.updates}

    def round_report(self) -> Mapping[str, Any]:
        """Report teacher weights and the number of students per exit."""
        return self._report

    def _generator(self, server_round: int) -> np.random.Generator | None:
        if self.xfed.selection == "conflict":
            return None
        return np.random.default_rng(
            derive_seed(self.settings.seed, "students", server_round)
        )

    def _weights(
        self, similarity: np.ndarray[Any, np.dtype[np.float64]]
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        size = len(similarity)
        if self.xfed.matching == "own":
            return np.eye(size)
        if self.xfed.matching == "average":
            return np.full((size, size), 1 / size)
        return match_teachers(similarity, self.xfed.mu)

    def _exit(self, client: str) -> State:
        return self.exits.get(client, self.initial_exit)


def _report(
    weights: np.ndarray[Any, np.dtype[np.float64]],
    students: Sequence[tuple[int, ...]],
    num_exits: int,
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "self_weight_mean": float(np.diag(weights).mean()),
        "students_per_exit": [
            sum(exit_ in chosen for chosen in students)
            for exit_ in range(1, num_exits + 1)
        ],
    }
    if len(weights) <= _MAX_RECORDED:
        report["teacher_weights"] = np.round(weights, 4).tolist()
    return report
