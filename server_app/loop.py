"""The round loop: training, evaluation, records and checkpoints, round by round."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from logging import INFO
from typing import Any

from flwr.common import ArrayRecord, ConfigRecord, Message, MetricRecord, log
from flwr.server import Grid
from flwr.serverapp.strategy import Result, Strategy

from common.protocol import from_record, to_record
from common.settings import Settings
from common.state import State
from server_app.checkpoint import Checkpoint, CheckpointStore
from server_app.errors import QuorumMissed
from server_app.phase import Phase, Tally
from server_app.progress import Progress
from server_app.results import Results


class RoundLoop(Strategy):
    """A Flower strategy whose run can be watched, cut off and resumed.

    Replaces the loop of Flower's ``Strategy.start``, which cannot resume, waits for
    every reply and holds all of them in memory.

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
        self.num_rounds = settings.run.num_server_rounds
        self.timeout = settings.run.round_timeout
        self.steps: Strategy = self
        """What configures and aggregates each round: this strategy, or a wrapper of
        Flower's around it, e.g. for differential privacy."""
        self._template: State = {}
        self._phase = Phase("training", 0, [])
        self._progress = Progress(1, self.num_rounds)
        self._oldest_round = 0
        self._starts: list[int] = []
        self._trained: dict[str, int] = {}

    # ---- what a method may override ------------------------------------------------

    def state(self) -> Mapping[str, State]:
        """Return what the method keeps on the server between rounds, by name."""
        return {}

    def restore(self, groups: Mapping[str, State]) -> None:
        """Take back what :meth:`state` returned."""

    def round_report(self) -> Mapping[str, Any]:
        """Return what the method adds to the round's record."""
        return {}

    # ---- what a strategy must bring ------------------------------------------------

    @abstractmethod
    def _exchange(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Message]:
        """Send the messages of a phase and yield the replies as they arrive."""

    # ---- the loop --------------------------------------------------------------------

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
            self._trained = dict(checkpoint.trained)
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
                self._progress.finished(record)
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
            self._progress.close()
            if self.results is not None:
                self.results.finish(from_record(result.arrays), tally.summary())
        return result

    def _train(
        self, grid: Grid, server_round: int, result: Result, config: ConfigRecord
    ) -> dict[str, Any]:
        start = time.monotonic()
        messages = self.steps.configure_train(server_round, result.arrays, config, grid)
        if server_round == self._progress.first_round:
            self._progress.begin()
        replies = self._exchange(grid, messages)
        arrays, metrics = self.steps.aggregate_train(server_round, self._for(replies))
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
        messages = self.steps.configure_evaluate(
            server_round, result.arrays, config, grid
        )
        replies = self._exchange(grid, messages)
        metrics = self.steps.aggregate_evaluate(server_round, self._for(replies))
        record = self._phase.record()
        if metrics is not None:
            result.evaluate_metrics_clientapp[server_round] = metrics
            record |= dict(metrics)
        record["seconds"] = time.monotonic() - start
        return record

    def _for(self, replies: Iterable[Message]) -> Iterable[Message]:
        """Return replies as they arrive; all at once to a wrapper: it reads twice."""
        return replies if self.steps is self else list(replies)

    def _last_checkpoint(self) -> Checkpoint | None:
        """Return where to go on; forget what was recorded after it."""
        if self.results is None:
            return None
        store, checkpoint = self._checkpoints(self.results), None
        if self.settings.run.resume:
            checkpoint = store.latest(self.settings.method)
        last_round = checkpoint.server_round if checkpoint else 0
        self.results.go_back_to(last_round)
        self._starts = store.begin(last_round)
        self._oldest_round = store.oldest()
        return checkpoint

    def _checkpoints(self, results: Results) -> CheckpointStore:
        folder = results.folder / "checkpoints"
        return CheckpointStore(folder, self.settings.run.checkpoints_kept)

    def _save(self, server_round: int, result: Result, tally: Tally) -> None:
        every = self.settings.run.checkpoint_every
        if self.results is None or not every:
            self._oldest_round = server_round  # nobody can ask for an earlier round
        elif server_round % every == 0 or server_round == self.num_rounds:
            store = self._checkpoints(self.results)
            store.save(
                Checkpoint(
                    method=self.settings.method,
                    server_round=server_round,
                    shared=from_record(result.arrays),
                    groups=self.state(),
                    trained=self._trained,
                    tally=asdict(tally),
                )
            )
            self._oldest_round = store.oldest()

    def _evaluates(self, server_round: int) -> bool:
        due = server_round % self.settings.run.evaluate_every == 0
        wanted = self.settings.run.fraction_evaluate > 0
        return wanted and (due or server_round == self.num_rounds)
