"""What leaves a client, from the bytes of a whole run of every method.

Trainers that leak show that it would be noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import small
from flwr.common import ConfigRecord, Context, Message
from leaks import found_arrays, wire
from privacy import CLASS_COUNTS, NOISE, Sent, leaked, undeclared, write_data
from torch import nn

from client_app.methods import TRAINERS, FedPer
from client_app.personal_state import MemoryStore
from client_app.trainer import Trainer
from common.protocol import Reply
from common.settings import Settings
from common.state import State, read_state

METHODS = ("standalone", "fedavg", "fedper", "pfedes", "xfed")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("skewed"))


def record(run: Settings, rounds: int) -> list[Sent]:
    """Run a federation; return every reply with the client's state at the time."""
    sent: list[Sent] = []

    def handler(message: Message, context: Context) -> Message:
        reply = small.answer(message, context)
        asked, metadata = message.metadata, reply.metadata
        assert metadata.message_type == asked.message_type
        assert metadata.group_id == asked.group_id
        state = MemoryStore(context.state).load(0)
        sent.append(
            Sent(
                client=f"client-{context.node_config['partition-id']}",
                kind=asked.message_type,
                server_round=int(asked.group_id or 0),
                request=message.content,
                content=reply.content,
                parts=wire(reply),
                private={} if state is None else dict(state.arrays),
            )
        )
        return reply

    small.federation(run, rounds=rounds, handler=handler)
    return sent


@pytest.mark.parametrize("method", METHODS)
def test_a_run_sends_what_is_declared_and_nothing_private(
    method: str, data: Path
) -> None:
    run = small.settings(method, data_path=str(data), num_server_rounds=3, **NOISE)
    sent = record(run, rounds=3)
    kinds = Counter(one.kind for one in sent)
    assert kinds == {"query": 3, "train": 9, "evaluate": 9}
    assert [text for one in sent for text in undeclared(method, run, one)] == []
    for client in CLASS_COUNTS:
        assert list(leaked(method, run, client, sent)) == []


def test_no_client_gets_another_clients_exit(data: Path) -> None:
    sent = record(small.settings("xfed", data_path=str(data)), rounds=3)
    training = [one for one in sent if one.kind == "train"]
    exits = [
        (one.client, Reply.from_records(one.content).groups["exit"]) for one in training
    ]
    for one in training:
        others = {
            f"{key} of {client}": value
            for client, exit_ in exits
            for key, value in exit_.items()
            if client != one.client
        }
        assert found_arrays(others, wire(one.request)) == []


Leak = Callable[[Trainer, nn.Module, Reply], Reply]


def exit_in_a_group(trainer: Trainer, module: nn.Module, reply: Reply) -> Reply:
    return replace(reply, groups={"extra": read_state(module, ["exits.0.weight"])})


def exit_in_the_backbone(trainer: Trainer, module: nn.Module, reply: Reply) -> Reply:
    part = read_state(module, ["exits.0.weight"])["exits.0.weight"].ravel()[100:108]
    return _hidden(reply, part)


def pixels_in_the_backbone(trainer: Trainer, module: nn.Module, reply: Reply) -> Reply:
    batch = next(trainer.training_data.ordered(1))
    return _hidden(reply, batch.inputs.numpy().ravel()[:8])


def raw_pixels_in_the_backbone(
    trainer: Trainer, module: nn.Module, reply: Reply
) -> Reply:
    image = trainer.client.data.test.inputs[0].numpy().tobytes()
    return _hidden(reply, np.frombuffer(image, np.float32)[:8])


def counts_in_the_backbone(trainer: Trainer, module: nn.Module, reply: Reply) -> Reply:
    return _hidden(reply, _counts(trainer).astype(np.float32))


def counts_as_a_metric(trainer: Trainer, module: nn.Module, reply: Reply) -> Reply:
    return replace(reply, metrics={**reply.metrics, "seen": _counts(trainer).tolist()})


def a_count_in_place_of_n_k(trainer: Trainer, module: nn.Module, reply: Reply) -> Reply:
    first = int(_counts(trainer)[0])
    return replace(reply, metrics={**reply.metrics, "num-examples": first})


def _hidden(reply: Reply, values: npt.NDArray[Any]) -> Reply:
    shared = dict(reply.shared or {})
    key = "blocks.1.0.weight"
    array = shared[key].copy()
    array.reshape(-1)[501 : 501 + len(values)] = values
    return replace(reply, shared={**shared, key: array})


def _counts(trainer: Trainer) -> npt.NDArray[np.int64]:
    return np.bincount(trainer.client.data.train.targets.numpy(), minlength=10)


@pytest.mark.parametrize(
    ("leak", "finding"),
    [
        (exit_in_a_group, "extra: exits.0.weight is"),
        (exit_in_the_backbone, "model.exits.0.weight, message"),
        (pixels_in_the_backbone, "train inputs"),
        (raw_pixels_in_the_backbone, "test images"),
        (counts_in_the_backbone, "class counts of train"),
        (counts_as_a_metric, "metrics: seen is 10 int"),
        (a_count_in_place_of_n_k, "values: num-examples is "),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_trainer_that_leaks_is_caught(
    leak: Leak, finding: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leaking(FedPer):
        def reply(
            self, module: nn.Module, loss: float, groups: dict[str, State] | None = None
        ) -> Reply:
            return leak(self, module, super().reply(module, loss, groups))

    monkeypatch.setitem(TRAINERS, "fedper", Leaking)
    run = small.settings("fedper", data_path=str(data), fraction_evaluate=0.0)
    sent = record(run, rounds=1)
    found = [text for one in sent for text in undeclared("fedper", run, one)]
    found += [t for client in CLASS_COUNTS for t in leaked("fedper", run, client, sent)]
    assert [text for text in found if text.startswith(finding)]


def test_a_record_that_nobody_reads_is_caught(data: Path) -> None:
    run = small.settings("standalone", data_path=str(data), fraction_evaluate=0.0)
    train = next(one for one in record(run, rounds=1) if one.kind == "train")
    train.content["notes"] = ConfigRecord({"remark": "the patient of bed 3"})
    assert list(undeclared("standalone", run, train)) == [
        "bytes beyond what they decode to"
    ]
