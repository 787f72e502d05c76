"""What leaves a client, from the bytes of a whole run of every method.

Two things are tested: a message holds exactly what is declared here, name by name, in
exactly the bytes that this takes; and no private parameter, momentum, sample or label
count occurs anywhere in these bytes, at any offset, in any usual number format.
Trainers that leak show that either is noticed.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc_stream
import numpy as np
import numpy.typing as npt
import pytest
import small
import torch
from flwr.common import ConfigRecord, Context, Message, RecordDict
from flwr.common.inflatable_utils import inflate_object_from_contents
from flwr.proto.message_pb2 import PushObjectRequest
from google.protobuf.message import DecodeError
from leaks import found_arrays, found_numbers, wire
from safetensors.numpy import load_file
from tls_recorder import TlsRecorder
from torch import nn

from client_app.methods import TRAINERS, FedPer
from client_app.personal_state import MemoryStore
from client_app.trainer import Trainer
from common.data import data_spec, to_model_input
from common.models import build_extractor, build_network, early_exit_macs
from common.protocol import EPSILONS, TELEMETRY, Reply
from common.settings import Settings
from common.state import State, read_state
from common.versions import version_line
from deploy.federation import LocalFederation, NodeSpec

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("standalone", "fedavg", "fedper", "pfedes", "xfed")
NOISE = {"evaluation_noise": 0.1}  # so that evaluations report all they ever do
LAST_EXIT = ("exits.2.weight", "exits.2.bias")
CLASS_COUNTS = {  # per client: training samples of each class, test samples of each
    "client-0": ([13, 9, 1, 0, 0, 0, 0, 0, 0, 7], [4, 3, 1, 0, 0, 0, 0, 0, 0, 2]),
    "client-1": ([0, 0, 17, 2, 0, 11, 0, 0, 0, 0], [0, 0, 5, 1, 0, 3, 0, 0, 0, 0]),
    "client-2": ([0, 3, 0, 0, 19, 0, 6, 5, 1, 0], [0, 2, 0, 0, 6, 0, 2, 1, 1, 0]),
}


@dataclass(frozen=True)
class Sent:
    """One reply as it left a client, and the personal state that stayed behind."""

    client: str
    kind: str
    server_round: int
    request: RecordDict
    content: RecordDict
    parts: list[bytes]
    private: State


@functools.cache
def samples() -> dict[str, dict[str, npt.NDArray[Any]]]:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (10, 8, 8))
    clients = {}
    for client, counts in CLASS_COUNTS.items():
        held: dict[str, npt.NDArray[Any]] = {}
        for split, numbers in zip(("train", "test"), counts, strict=True):
            labels = rng.permutation(np.repeat(np.arange(10), numbers))
            noise = rng.integers(-60, 61, (len(labels), 8, 8))
            images = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
            held[f"{split} images"], held[f"{split} labels"] = images, labels
        clients[client] = held
    return clients


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("skewed")
    for client, held in samples().items():
        (root / client).mkdir()
        for split in ("train", "test"):
            images, labels = held[f"{split} images"], held[f"{split} labels"]
            np.savez(root / client / f"{split}.npz", images=images, labels=labels)
    return root


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


# ---- first line: what is declared, and nothing else ----


def undeclared(method: str, run: Settings, sent: Sent) -> Iterator[str]:
    """Yield everything in a reply that is not declared, or not as declared."""
    train, test = (sum(counts) for counts in CLASS_COUNTS[sent.client])
    if sent.kind == "query":
        content = RecordDict({"identity": sent.content["identity"]})
        expected = identity(method, run, sent.client)
        yield from differences("identity", dict(content["identity"]), expected)
    else:
        training = sent.kind == "train"
        reply = Reply.from_records(sent.content)
        content = reply.to_records()
        arrays = {"arrays": reply.shared or {}, **reply.groups}
        allowed = declared_arrays(method, run) if training else {}
        for name in sorted(arrays.keys() | allowed.keys()):
            shapes = {k: (v.dtype, v.shape) for k, v in arrays.get(name, {}).items()}
            yield from differences(name, shapes, allowed.get(name, {}))
        found = {
            key: kind(value)
            for key, value in reply.metrics.items()
            if not (key in TELEMETRY and isinstance(value, int | float))
        }
        exits = 1 if method == "pfedes" else 3
        declared = declared_metrics(training, exits)
        if not training and sent.server_round == run.run.num_server_rounds:
            declared["latency"] = "2 float"
        yield from differences("metrics", found, declared)
        numbers = {
            "num-examples": train if training else test,
            # All clients train in every round here.
            "state-round": sent.server_round - training,
        }
        yield from differences(
            "values", {key: reply.metrics.get(key) for key in numbers}, numbers
        )
    # Records made anew from what was read lack whatever else was in the bytes.
    if {*wire(content)} != {*wire(sent.content)}:
        yield "bytes beyond what they decode to"


def declared_arrays(method: str, run: Settings) -> dict[str, Any]:
    """Return the arrays of a reply to ``train``: by group, type and shape by name."""
    spec = data_spec(run.data)
    network = build_network("convnet", spec, seed=0).state_dict()
    backbone = [key for key in network if key.startswith("blocks.")]
    if method == "pfedes":
        extractor = build_extractor(spec, seed=0).state_dict()
        return {"arrays": _forms(extractor, list(extractor))}
    declared = {
        "standalone": {},
        "fedavg": {"arrays": list(network)},
        "fedper": {"arrays": backbone},
        "xfed": {"arrays": backbone, "exit": LAST_EXIT},
    }[method]
    return {name: _forms(network, keys) for name, keys in declared.items()}


def _forms(entries: dict[str, torch.Tensor], keys: Sequence[str]) -> dict[str, Any]:
    return {key: (np.dtype("float32"), tuple(entries[key].shape)) for key in keys}


def declared_metrics(training: bool, exits: int) -> dict[str, str]:
    """Return the metrics of a reply with their types; per exit, never per class."""
    always = {"num-examples": "int", "state-round": "int"}
    if training:
        return {**always, "train-loss": "float"}
    per_exit = {"correct": f"{exits} int", "taken": f"{exits} int"}
    outcome = {**per_exit, "early-correct": "int"}
    return {
        **always,
        **outcome,
        **{f"noisy-{key}": value for key, value in outcome.items()},
        "loss": f"{exits} float",
        "epsilon-correct": f"{len(EPSILONS)} int",
        "epsilon-taken": f"{len(EPSILONS) * exits} int",
    }


def kind(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} {'/'.join(sorted({kind(v) for v in value}))}"
    return type(value).__name__


def identity(method: str, run: Settings, client: str) -> dict[str, Any]:
    """Return what a client tells the server when it is first asked."""
    train, test = (sum(counts) for counts in CLASS_COUNTS[client])
    number = int(client.removeprefix("client-"))
    model = f"cnn-{number + 1}" if method == "pfedes" else "convnet"
    spec = data_spec(run.data)
    return {
        "client": client,
        "num_train": train,
        "num_test": test,
        "model": model,
        "macs": list(early_exit_macs(build_network(model, spec, seed=0), spec)),
        "device": "cpu",
        "versions": version_line(),
    }


def differences(
    what: str, found: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[str]:
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            yield f"{what}: {key} is {found.get(key)}, declared {expected.get(key)}"


# ---- second line: what must not occur in the bytes ----


def leaked(method: str, run: Settings, client: str, sent: list[Sent]) -> Iterator[str]:
    """Yield what of a client's private things occurs in what it sent in a whole run."""
    own = [one for one in sent if one.client == client]
    parts = [part for one in own for part in one.parts]
    public = {f"model.{key}" for key in LAST_EXIT} if method == "xfed" else set()
    private = {
        f"{key}, message {number}": array
        for number, one in enumerate(own)
        for key, array in one.private.items()
        if key not in public
    }
    held = samples()[client]
    for split in ("train", "test"):
        images = held[f"{split} images"]
        pixels = torch.from_numpy(images)[:, None]
        private[f"{split} images"] = images
        private[f"{split} inputs"] = to_model_input(
            pixels, data_spec(run.data), run.data
        ).numpy()
    yield from found_arrays(private, parts)
    train, test = CLASS_COUNTS[client]
    counts = {
        "class counts of train": train,
        "class counts of test": test,
        "class counts": np.add(train, test).tolist(),
        "labels of train": held["train labels"][:12].tolist(),
        "labels of test": held["test labels"][:12].tolist(),
    }
    yield from found_numbers(counts, parts)


# ---- the tests ----


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


# ---- the same of a real federation, from what goes through its TLS connection ----


@pytest.mark.integration
def test_a_recorded_federation_sends_what_is_declared_and_nothing_private(
    data: Path, tmp_path: Path
) -> None:
    run = small.settings(
        "xfed",
        **NOISE,
        min_available_nodes=1,
        num_server_rounds=2,
        evaluate_every=2,
        checkpoint_every=9,  # clients keep their states since the last checkpoint
        output_dir=str(tmp_path / "runs"),
        experiment="recorded",
    )
    workdir = tmp_path / "federation"
    keys = workdir / "flower" / "keys"
    shown = (keys / "server.pem", keys / "server.key", keys / "ca.pem")
    with (
        LocalFederation(ROOT, [], workdir) as federation,
        TlsRecorder(federation.fleet_address, *shown) as recorder,
    ):
        host, port = recorder.address
        node = {
            "client-name": "client-0",
            "data-path": str(data / "client-0"),
            "state-dir": str(tmp_path / "state"),
            "device": "cpu",
        }
        federation.add_nodes([NodeSpec("node", node, superlink=f"{host}:{port}")])
        result = federation.run(run.to_config(), timeout=900, echo=False)
        assert result.succeeded, result.log
    conversations = [grpc_stream.read(part) for part in recorder.sent()]
    messages = [message for one in conversations for message in one.messages]
    frames = [frame for one in conversations for frame in one.other]
    objects = dict(filter(None, map(pushed_object, messages)))
    states = [
        load_file(path) for path in sorted((tmp_path / "state").rglob("*.safetensors"))
    ]
    assert len(states) == 2
    sent = []
    for key, content in objects.items():
        if content.startswith(b"Message "):
            reply = inflate(key, dict(objects))
            sent.append(
                Sent(
                    client="client-0",
                    kind=reply.metadata.message_type,
                    server_round=int(reply.metadata.group_id or 0),
                    request=RecordDict(),
                    content=reply.content,
                    parts=wire(reply),
                    private={},
                )
            )
    kinds = Counter(one.kind for one in sent)
    assert kinds == {"query": 1, "train": 2, "evaluate": 1}
    assert [text for one in sent for text in undeclared("xfed", run, one)] == []
    # Every object that was sent belongs to one of these messages, and what else was
    # sent is too short for anything but ids, times and signatures.
    assert set(objects.values()) == {part for one in sent for part in one.parts}
    assert max(len(m) for m in messages if pushed_object(m) is None) < 6_000
    assert max(map(len, frames)) < 2_000
    # Nothing private in all the bytes together.
    everything = replace(sent[0], parts=messages + frames)
    sent = [replace(everything, private=state) for state in states]
    assert list(leaked("xfed", run, "client-0", sent)) == []


def pushed_object(message: bytes) -> tuple[str, bytes] | None:
    """Return id and content of the object in a gRPC message, if that is what it is."""
    try:
        request = PushObjectRequest.FromString(message)
    except DecodeError:
        return None
    digest = hashlib.sha256(request.object_content).hexdigest()
    if not request.object_content or digest != request.object_id:
        return None
    return request.object_id, request.object_content


def inflate(key: str, objects: dict[str, bytes]) -> Message:
    message = inflate_object_from_contents(key, objects)
    assert isinstance(message, Message)
    return message
