"""What every method has in common on the server: sampling, messages, checks, averages.

A method subclasses :class:`PersonalizedStrategy` and overrides only what differs:
:meth:`~PersonalizedStrategy.instruct_training` (what clients get beside the shared
parameters) and :meth:`~PersonalizedStrategy.absorb` (what becomes of what they send
beside them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING

import numpy as np
from flwr.common import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    log,
)
from flwr.server import Grid
from flwr.serverapp.strategy import Strategy

from common.protocol import (
    NUM_EXAMPLES,
    STATE_ROUND,
    TRAIN_LOSS,
    Numbers,
    ProtocolError,
    Reply,
    Request,
    from_record,
    to_record,
)
from common.seeding import derive_seed
from common.settings import Settings
from common.state import State, num_bytes
from server_app.averaging import OrderedMean
from server_app.evaluation import Evaluation
from server_app.exchange import exchange
from server_app.loop import RoundLoop
from server_app.norms import scaled, squared_distance
from server_app.phase import Phase
from server_app.results import Results
from server_app.robust import FlowerAggregate
from server_app.roster import Client, Roster
from server_app.vetting import RefusedReply, vet_count, vet_training


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """What one client gets beside the shared parameters."""

    groups: Mapping[str, State] = field(default_factory=dict)
    values: Mapping[str, Numbers] = field(default_factory=dict)


class PersonalizedStrategy(RoundLoop):
    """Base of all methods: FedAvg over the shared parameters, done with care.

    Clients are sampled by name; replies are checked one by one, averaged as they
    arrive and summed in the order of the names; all clients are evaluated every k
    rounds; a round has a deadline and a quorum, and a client that fails or leaves
    never ends the run.

    Parameters
    ----------
    settings
        Settings of the run.
    results
        Folder for the results; None keeps none.
    """

    def __init__(self, settings: Settings, *, results: Results | None = None) -> None:
        super().__init__(settings, results=results)
        self.roster = Roster(
            settings.run.min_available_nodes, settings.run.wait_timeout
        )
        self.aggregator: Strategy | None = None
        """A robust strategy of Flower's whose rule takes the place of the mean."""
        self._sent: State = {}

    @classmethod
    def create(
        cls, settings: Settings, results: Results | None = None
    ) -> PersonalizedStrategy:
        """Build the strategy from the settings alone."""
        return cls(settings, results=results)

    # ---- what a method may override ------------------------------------------------

    def uploads(self) -> Mapping[str, State]:
        """Return a template of each group of arrays clients send beside the shared."""
        return {}

    def instruct_training(
        self, server_round: int, clients: Sequence[str]
    ) -> Sequence[Instruction]:
        """Return what each sampled client gets beside the shared parameters."""
        return [Instruction() for _ in clients]

    def instruct_evaluation(
        self, server_round: int, clients: Sequence[str]
    ) -> Sequence[Instruction]:
        """Return what each client to evaluate gets beside the shared parameters."""
        return [Instruction() for _ in clients]

    def evaluation_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return what of the shared parameters clients need for their evaluation."""
        return arrays

    def origins(self, client: str, reply: Reply) -> Mapping[str, State]:
        """Return what the client's training started from, for each group of uploads.

        Its update is measured, and bounded where ``update-norm-bound`` is set, from
        there.
        """
        return {}

    def absorb(self, client: str, reply: Reply) -> None:
        """Take in what a client sent beside the shared parameters.

        Called once per valid reply of a round that counts, in the order of the names.
        """

    # ---- Flower's interface ----------------------------------------------------------

    def summary(self) -> None:
        """Log what is about to run."""
        run, training = self.settings.run, self.settings.training
        log(
            INFO,
            "%s: %d rounds, C = %g, E = %d, B = %d, lr %g x %g^(t-1), seed %d",
            self.settings.method,
            self.num_rounds,
            run.fraction_train,
            training.local_epochs,
            training.batch_size,
            training.learning_rate,
            training.learning_rate_decay,
            self.settings.seed,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients by name and address a message to each."""
        clients = self._sample(
            "train", server_round, self._clients(grid), self.settings.run.fraction_train
        )
        refused = self.roster.refused
        self._phase = Phase("training", server_round, clients, refused=refused)
        self._sent = from_record(arrays)
        if not self._template:
            self._template = self._sent
        instructions = self.instruct_training(server_round, [c.name for c in clients])
        return self._messages(MessageType.TRAIN, arrays, config, instructions)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and average the replies as they come.

        Returns
        -------
        The new shared parameters and ``train-loss`` (mean over samples), or None twice
        where the quorum was missed.
        """
        phase = self._phase
        if self.aggregator is None:
            phase.mean = OrderedMean([client.name for client in phase.clients])
        else:
            phase.mean = FlowerAggregate(self.aggregator, server_round)
        uploads = self.uploads()
        losses, counts = [], []
        for name, reply in self._vetted(
            replies, lambda _, reply: vet_training(reply, self._template, uploads)
        ):
            reply = self._bounded(name, reply)
            assert reply.shared is not None
            count = vet_count(reply.metrics, NUM_EXAMPLES)
            phase.mean.add(name, reply.shared, count)
            phase.accepted[name] = Reply(metrics=reply.metrics, groups=reply.groups)
        shared = phase.mean.result()
        phase.mean = None
        phase.judge()
        needed = max(1, math.ceil(self.settings.run.quorum * len(phase.clients)))
        if shared is None or len(phase.accepted) < needed:
            log(
                WARNING,
                "round %d does not count: %d valid replies, %d needed%s",
                server_round,
                len(phase.accepted),
                needed,
                ""
                if len(phase.accepted) < needed
                else ", but the aggregation rule returned nothing",
            )
            return None, None
        for name, reply in sorted(phase.accepted.items()):
            self.absorb(name, reply)
            self._trained[name] = server_round
            if TRAIN_LOSS in reply.metrics:
                losses.append(reply.metrics[TRAIN_LOSS])
                counts.append(reply.metrics[NUM_EXAMPLES])
        metrics = MetricRecord()
        if losses:
            metrics[TRAIN_LOSS] = float(np.average(losses, weights=counts))
        return to_record(shared), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address a message to the clients to evaluate: all of them by default."""
        with_data = [c for c in self._clients(grid) if c.identity.num_test > 0]
        clients = self._sample(
            "evaluate", server_round, with_data, self.settings.run.fraction_evaluate
        )
        self._phase = Phase("evaluation", server_round, clients)
        instructions = self.instruct_evaluation(server_round, [c.name for c in clients])
        arrays = self.evaluation_arrays(arrays)
        return self._messages(MessageType.EVALUATE, arrays, config, instructions)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the mean and standard deviation over clients of their accuracies."""
        phase = self._phase
        macs = {client.name: client.identity.macs for client in phase.clients}
        for name, reply in self._vetted(
            replies, lambda name, reply: Evaluation.vet(reply, macs[name])
        ):
            phase.accepted[name] = reply
        if not phase.accepted:
            return None
        evaluation = Evaluation(phase.accepted, macs, self._trained)
        if self.results is not None:
            self.results.add_clients(evaluation.rows(server_round))
        return MetricRecord(evaluation.summary())

    # ---- parts -----------------------------------------------------------------------

    def _clients(self, grid: Grid) -> list[Client]:
        clients, news = self.roster.refresh(grid)
        if news and self.results is not None:
            self.results.add_identities(
                {client.name: client.identity for client in clients}
            )
        return clients

    def _sample(
        self, purpose: str, server_round: int, clients: list[Client], fraction: float
    ) -> list[Client]:
        count = min(max(1, round(fraction * len(clients))), len(clients))
        seed = derive_seed(self.settings.seed, "sample", purpose, server_round)
        chosen = np.random.default_rng(seed).choice(
            len(clients), size=count, replace=False
        )
        return [clients[i] for i in sorted(chosen)]

    def _messages(
        self,
        message_type: str,
        arrays: ArrayRecord,
        config: ConfigRecord,
        instructions: Sequence[Instruction],
    ) -> list[Message]:
        """Address a message to each client, those with the most samples first.

        Among equal networks they take longest: where clients take turns, none of them
        is the last to begin.
        """
        phase = self._phase
        messages = []
        shared_bytes = num_bytes(from_record(arrays))
        addressed = zip(phase.clients, instructions, strict=True)
        for client, instruction in sorted(
            addressed, key=lambda pair: -_samples(pair[0], message_type)
        ):
            request = Request(
                experiment=self.results.experiment if self.results else "",
                run=self.results.run if self.results else "",
                server_round=phase.server_round,
                checkpoint=self._oldest_round,
                starts=self._starts,
                shared={},
                groups=instruction.groups,
                values={**config, **instruction.values},
            )
            phase.down_bytes += shared_bytes + sum(
                num_bytes(state) for state in instruction.groups.values()
            )
            messages.append(
                Message(
                    request.to_records(arrays),
                    client.node_id,
                    message_type,
                    ttl=self.timeout,
                    group_id=str(phase.server_round),
                )
            )
        return messages

    def _compare_rounds(self, client: str, reply: Reply) -> None:
        """Note where a client no longer has the state of its last training."""
        trained, found = self._trained.get(client, 0), reply.metrics.get(STATE_ROUND)
        if type(found) is int and found < trained:
            self._phase.lose(client, trained, found)

    def _bounded(self, client: str, reply: Reply) -> Reply:
        """Note the norm of a client's update; scale it down where it is too large."""
        assert reply.shared is not None
        trained = {"": reply.shared, **reply.groups}
        start = {"": self._sent, **self.origins(client, reply)}
        if not any(trained.values()):
            return reply
        norm = math.sqrt(sum(squared_distance(trained[g], start[g]) for g in start))
        self._phase.norms[client] = norm
        bound = self.settings.run.update_norm_bound
        if not 0 < bound < norm:
            return reply
        self._phase.clip(client, norm, bound)
        trained |= {g: scaled(trained[g], start[g], bound / norm) for g in start}
        return replace(reply, shared=trained.pop(""), groups=trained)

    def _exchange(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Message]:
        phase = self._phase
        names = {client.node_id: client.name for client in phase.clients}
        return exchange(
            grid,
            messages,
            timeout=self.timeout,
            on_failure=lambda node_id, reason: phase.fail(names[node_id], reason),
        )

    def _vetted(
        self, replies: Iterable[Message], vet: Callable[[str, Reply], None]
    ) -> Iterator[tuple[str, Reply]]:
        phase = self._phase
        names = {client.node_id: client.name for client in phase.clients}
        for message in replies:
            name = names.get(message.metadata.src_node_id)
            if name is None or name in phase.accepted:
                continue
            if message.has_error():
                phase.fail(name, message.error.reason or "unknown error")
                continue
            try:
                reply = Reply.from_records(message.content)
                vet(name, reply)
            except (ProtocolError, RefusedReply) as error:
                phase.fail(name, str(error))
                continue
            self._compare_rounds(name, reply)
            phase.up_bytes += num_bytes(reply.shared or {}) + sum(
                num_bytes(state) for state in reply.groups.values()
            )
            yield name, reply
            self._progress.replies(
                phase.server_round,
                phase.name,
                len(phase.accepted),
                len(phase.clients),
            )


def _samples(client: Client, message_type: str) -> int:
    """Return how many samples a client goes through for a message."""
    trains = message_type == MessageType.TRAIN
    return client.identity.num_train if trains else client.identity.num_test
