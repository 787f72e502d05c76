"""What a client may send, and what of its private things must not be in it.

Two things can be tested of what left a client: a message holds exactly what is declared
here, name by name, in exactly the bytes that this takes; and no private parameter,
momentum, sample or label count occurs anywhere in these bytes, at any offset, in any
usual number format.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.common import RecordDict
from leaks import found_arrays, found_numbers, wire

from common.data import data_spec, to_model_input
from common.models import build_extractor, build_network, early_exit_macs
from common.protocol import EPSILONS, TELEMETRY, Reply
from common.settings import Settings
from common.state import State
from common.versions import version_line

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


def write_data(root: Path) -> Path:
    for client, held in samples().items():
        (root / client).mkdir()
        for split in ("train", "test"):
            images, labels = held[f"{split} images"], held[f"{split} labels"]
            np.savez(root / client / f"{split}.npz", images=images, labels=labels)
    return root


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
