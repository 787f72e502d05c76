"""What every method has in common on the server: the round loop and its safeguards.

A method subclasses :class:`PersonalizedStrategy` and overrides only what differs:
:meth:`~PersonalizedStrategy.instruct_training` (what clients get beside the shared
parameters) and :meth:`~PersonalizedStrategy.absorb` (what becomes of what they send
beside them).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from logging import INFO, WARNING
from typing import Any

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
from flwr.serverapp.strategy import Result, Strategy

from common.protocol import (
    NUM_EXAMPLES,
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
from server_app.checkpoint import Checkpoint, CheckpointStore
from server_app.errors import QuorumMissed
from server_app.evaluation import Evaluation
from server_app.exchange import exchange
from server_app.phase import Phase, Tally, round_line
from server_app.progress import Progress
from server_app.results import Results
from server_app.roster import Client, Roster
from server_app.vetting import RefusedReply, vet_count, vet_training


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """What one client gets beside the shared parameters."""

    groups: Mapping[str, State] = field(default_factory=dict)
    values: Mapping[str, Numbers] = field(default_factory=dict)


class PersonalizedStrategy(Strategy):
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
        self.settings = settings
        self.results = results
        self.roster = Roster(
            settings.run.min_available_nodes, settings.run.wait_timeout
        )
        self.num_rounds = settings.run.num_server_rounds
        self.timeout = settings.run.round_timeout
        self._template: State = {}
        self._phase = Phase("training", 0, [])
        self._progress = Progress(1, self.num_rounds)
        self._saved_round = 0

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

    def absorb(self, client: str, reply: Reply) -> None:
        """Take in what a client sent beside the shared parameters.

        Called once per valid reply of a round that counts, in the order of the names.
        """

    def state(self) -> Mapping[str, State]:
        """Return what the method keeps on the server between rounds, by name."""
        return {}

    def restore(self, groups: Mapping[str, State]) -> None:
        """Take back what :meth:`state` returned."""

    def round_report(self) -> Mapping[str, Any]:
        """Return what the method adds to the round's record."""
        return {}

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
        self._phase = Phase("training", server_round, clients)
        if not self._template:
            self._template = from_record(arrays)
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
        phase.mean = OrderedMean([client.name for client in phase.clients])
        uploads = self.uploads()
        losses, counts = [], []
        for name, reply in self._vetted(
            replies, lambda _, reply: vet_training(reply, self._template, uploads)
        ):
            assert reply.shared is not None
            count = vet_count(reply.metrics, NUM_EXAMPLES)
            phase.mean.add(name, reply.shared, count)
            phase.accepted[name] = Reply(metrics=reply.metrics, groups=reply.groups)
        shared = phase.mean.result()
        phase.mean = None
        needed = max(1, math.ceil(self.settings.run.quorum * len(phase.clients)))
        if shared is None or len(phase.accepted) < needed:
            log(
                WARNING,
                "round %d does not count: %d valid replies, %d needed",
                server_round,
                len(phase.accepted),
                needed,
            )
            return None, None
        for name, reply in sorted(phase.accepted.items()):
            self.absorb(name, reply)
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
        evaluation = Evaluation(phase.accepted, macs)
        if self.results is not None:
            self.results.add_clients(evaluation.rows(server_round))
        return MetricRecord(evaluation.summary())

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds; parameters as in Flower's ``Strategy.start``.

        However the run ends, the results folder holds the shared parameters and a
        summary that says how.

        Raises
        ------
        TooFewClients
            ``min-available-nodes`` clients were not there within ``wait-timeout`` at
            the start, or nobody later.
        QuorumMissed
            ``max-failed-rounds`` rounds in a row had no quorum.
        """
        self.num_rounds, self.timeout = num_rounds, timeout
        self._template = from_record(initial_arrays)
        self.summary()
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        result = Result(arrays=initial_arrays)
        if evaluate_fn and (metrics := evaluate_fn(0, initial_arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = metrics
        tally, first_round = Tally(), 1
        if (checkpoint := self._last_checkpoint()) is not None:
            first_round = checkpoint.server_round + 1
            tally = Tally(**checkpoint.tally)
            result.arrays = to_record(checkpoint.shared)
            self.restore(checkpoint.groups)
            log(INFO, "Resuming after round %d", checkpoint.server_round)
        self._progress = Progress(first_round, num_rounds)
        try:
            for server_round in range(first_round, num_rounds + 1):
                record: dict[str, Any] = {"round": server_round}
                record["train"] = self._train(grid, server_round, result, train_config)
                record["method"] = self.round_report()
                if self._evaluates(server_round):
                    record["evaluate"] = self._evaluate(
                        grid, server_round, result, evaluate_config
                    )
                if evaluate_fn:
                    metrics = evaluate_fn(server_round, result.arrays)
                    if metrics is not None:
                        result.evaluate_metrics_serverapp[server_round] = metrics
                tally.count(record)
                if self.results is not None:
                    self.results.add_round(record)
                self._save(server_round, result, tally)
                self._progress.finished(server_round, round_line(record))
                if tally.failed_in_a_row >= self.settings.run.max_failed_rounds:
                    raise QuorumMissed(
                        f"{tally.failed_in_a_row} rounds in a row had no quorum, the "
                        f"last one round {server_round}; see the warnings above for "
                        "each client's reason"
                    )
            tally.ended = "finished"
        except BaseException as error:
            tally.ended = f"{type(error).__name__}: {error}"
            raise
        finally:
            if self.results is not None:
                self.results.finish(from_record(result.arrays), tally.summary())
        return result

    # ---- parts -----------------------------------------------------------------------

    def _train(
        self, grid: Grid, server_round: int, result: Result, config: ConfigRecord
    ) -> dict[str, Any]:
        start = time.monotonic()
        messages = self.configure_train(server_round, result.arrays, config, grid)
        replies = self._exchange(grid, messages)
        arrays, metrics = self.aggregate_train(server_round, replies)
        record = self._phase.record()
        if arrays is not None and metrics is not None:
            result.arrays = arrays
            result.train_metrics_clientapp[server_round] = metrics
            record |= dict(metrics)
        record["counts"] = arrays is not None
        record["seconds"] = time.monotonic() - start
        return record

    def _evaluate(
        self, grid: Grid, server_round: int, result: Result, config: ConfigRecord
    ) -> dict[str, Any]:
        start = time.monotonic()
        messages = self.configure_evaluate(server_round, result.arrays, config, grid)
        replies = self._exchange(grid, messages)
        metrics = self.aggregate_evaluate(server_round, replies)
        record = self._phase.record()
        if metrics is not None:
            result.evaluate_metrics_clientapp[server_round] = metrics
            record |= dict(metrics)
        record["seconds"] = time.monotonic() - start
        return record

    def _last_checkpoint(self) -> Checkpoint | None:
        """Return where to go on; forget what was recorded after it."""
        if self.results is None or not self.settings.run.resume:
            return None
        checkpoint = self._checkpoints(self.results).latest(self.settings.method)
        self._saved_round = checkpoint.server_round if checkpoint else 0
        self.results.go_back_to(self._saved_round)
        return checkpoint

    def _checkpoints(self, results: Results) -> CheckpointStore:
        folder = results.folder / "checkpoints"
        return CheckpointStore(folder, self.settings.run.checkpoints_kept)

    def _save(self, server_round: int, result: Result, tally: Tally) -> None:
        every = self.settings.run.checkpoint_every
        if self.results is None or not every:
            self._saved_round = server_round  # nobody can ask for an earlier round
        elif server_round % every == 0 or server_round == self.num_rounds:
            self._checkpoints(self.results).save(
                Checkpoint(
                    method=self.settings.method,
                    server_round=server_round,
                    shared=from_record(result.arrays),
                    groups=self.state(),
                    tally=asdict(tally),
                )
            )
            self._saved_round = server_round

    def _clients(self, grid: Grid) -> list[Client]:
        clients, news = self.roster.refresh(grid)
        if news and self.results is not None:
            self.results.add_identities(
                {client.name: client.identity for client in clients}
            )
        return clients

    def _evaluates(self, server_round: int) -> bool:
        due = server_round % self.settings.run.evaluate_every == 0
        wanted = self.settings.run.fraction_evaluate > 0
        return wanted and (due or server_round == self.num_rounds)

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
        phase = self._phase
        messages = []
        shared_bytes = num_bytes(from_record(arrays))
        for client, instruction in zip(phase.clients, instructions, strict=True):
            request = Request(
                experiment=self.results.experiment if self.results else "",
                run=self.results.run if self.results else "",
                server_round=phase.server_round,
                checkpoint=self._saved_round,
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

    def _exchange(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Message]:
        phase = self._phase
        names = {client.node_id: client.name for client in phase.clients}
        return exchange(
            grid,
            messages,
            timeout=self.timeout,
            reply_bytes=num_bytes(self._template),
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
