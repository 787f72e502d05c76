"""Bytes on the wire, per client and round, beside the payload of the arrays.

    python -m benchmarks.wire

The payload is what the models say. The bytes are counted by a relay between one
SuperNode and SuperLink, over gRPC with TLS and an authenticated node, so that framing,
heartbeats and polling are in them. Figures go to ``benchmarks/results/wire.json`` and
``wire.md``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.records import RESULTS, Figure, markdown, write_figures
from common.data import data_spec
from common.models import Network, build_network, last_exit_keys
from common.schema import Scalar
from common.settings import Settings, parse_settings
from common.sharing import initial_shared
from common.state import num_bytes, read_state
from deploy.federation import LocalFederation, NodeSpec
from server_app.simulate import APP
from tests.support.relay import Relay

ROUNDS = 4
"""Rounds 2 and 4 end with an evaluation."""


@dataclass(frozen=True, slots=True)
class Case:
    """A method with a network on images of 32x32x3."""

    method: str
    model: str
    num_classes: int = 10

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.method}, {self.model}, {self.num_classes} classes"

    def config(self) -> dict[str, Scalar]:
        """Return the run configuration that makes the network."""
        return {
            "method": self.method,
            "model": self.model,
            "dataset": "custom",
            "num-classes": self.num_classes,
            "image-size": 32,
            "channels": 3,
        }


CASES = (
    Case("standalone", "convnet"),
    Case("fedavg", "convnet"),
    Case("fedper", "convnet"),
    Case("xfed", "convnet"),
    Case("pfedes", "cnn-1"),
    Case("fedper", "resnet18", 100),
    Case("xfed", "resnet18", 100),
)


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes of the arrays that travel, per client."""

    train_down: int
    train_up: int
    evaluate_down: int


def payload(settings: Settings) -> Payload:
    """Return the bytes of the arrays of one round, as the models say.

    X-FED adds the teacher exit downwards and the last exit upwards. For its evaluation
    pFedES needs nothing, the others the shared parameters.
    """
    shared = num_bytes(initial_shared(settings))
    exit_ = 0
    if settings.method == "xfed":
        network = build_network(settings.model, data_spec(settings.data), seed=0)
        assert isinstance(network, Network)
        exit_ = num_bytes(read_state(network, last_exit_keys(network)))
    evaluate = 0 if settings.method == "pfedes" else shared
    return Payload(shared + exit_, shared + exit_, evaluate)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one node sent and received: up and down."""

    start: tuple[int, int]
    """Once per run: the app, the query, the first look for messages."""
    train: tuple[int, int]
    """Per round of training."""
    evaluate: tuple[int, int]
    """Per evaluation."""
    seconds: float
    """That the round of training took; polling goes on meanwhile."""


def measure(federation: LocalFederation, relay: Relay, case: Case) -> Traffic:
    """Run a case on the only node of a federation and count its bytes."""
    folder = federation.workdir / "runs" / f"{case.method}-{case.model}"
    config: dict[str, Scalar] = {
        **case.config(),
        "batch-size": 8,
        "num-server-rounds": ROUNDS,
        "evaluate-every": 2,
        "min-available-nodes": 1,
        "wait-timeout": 3600.0,
        "output-dir": str(folder.parent),
        "experiment": folder.name,
    }
    before = _count(relay)
    marks: list[tuple[float, ...]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            if len(marks) < _lines(folder / "rounds.jsonl"):
                marks.append(_count(relay))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    result = federation.run(config, timeout=7200, echo=False)
    time.sleep(1)
    done.set()
    watcher.join()
    assert result.succeeded, result.log
    assert len(marks) == ROUNDS, marks
    steps = np.diff(np.array([before, *marks]), axis=0)
    train = steps[2]  # round 3
    evaluate = steps[[1, 3]].mean(axis=0) - train
    start = steps[0] - train
    return Traffic(_pair(start), _pair(train), _pair(evaluate), float(train[2]))


def _count(relay: Relay) -> tuple[float, ...]:
    return relay.bytes_up, relay.bytes_down, time.monotonic()


def _pair(values: npt.NDArray[np.float64]) -> tuple[int, int]:
    return round(values[0]), round(values[1])


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def idle(relay: Relay, seconds: float) -> tuple[float, float]:
    """Return the bytes per second, up and down, of a node that has nothing to do."""
    before = np.array(_count(relay))
    time.sleep(seconds)
    up, down, elapsed = np.array(_count(relay)) - before
    return float(up / elapsed), float(down / elapsed)


@contextmanager
def one_node() -> Iterator[tuple[LocalFederation, Relay]]:
    """Start a federation whose only node reaches SuperLink through a relay."""
    with tempfile.TemporaryDirectory(prefix="wire-") as name:
        folder = Path(name)
        write_data(folder / "data")
        with (
            LocalFederation(APP, [], folder / "federation") as federation,
            Relay(federation.fleet_address) as relay,
        ):
            host, port = relay.address
            config = {
                "client-name": "client-0",
                "data-path": str(folder / "data"),
                "state-dir": str(folder / "state"),
            }
            node = NodeSpec("client-0", config, superlink=f"{host}:{port}")
            federation.add_nodes([node])
            yield federation, relay


def write_data(folder: Path) -> None:
    """Write a few random images: bytes do not depend on them."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for split, count in (("train", 16), ("test", 8)):
        images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        labels = rng.integers(0, 10, count)
        np.savez(folder / f"{split}.npz", images=images, labels=labels)


def claims() -> list[Figure]:
    """Return the two figures that the papers state, from the models themselves."""
    fedper = payload(parse_settings(Case("fedper", "resnet18", 100).config()))
    xfed = payload(parse_settings(Case("xfed", "resnet18", 100).config()))
    extractor = payload(parse_settings(Case("pfedes", "cnn-1").config()))
    overhead = 100 * (xfed.train_up / fedper.train_up - 1)
    return [
        Figure(
            name="payload: pFedES extractor, colour images",
            value=extractor.train_up,
            unit="bytes",
            target="1772",
            met=extractor.train_up == 1772,
        ),
        Figure(
            name="payload: X-FED above FedPer, ResNet-18, 100 classes",
            value=overhead,
            unit="%",
            target="0.45",
            met=abs(overhead - 0.45) < 0.01,
        ),
    ]


def case_figures(case: Case, theory: Payload, traffic: Traffic | None) -> list[Figure]:
    """Return the figures of one case."""
    found = [
        (f"payload: {case.name}, training up", theory.train_up),
        (f"payload: {case.name}, training down", theory.train_down),
        (f"payload: {case.name}, evaluation down", theory.evaluate_down),
    ]
    if traffic is not None:
        for what, (up, down) in (
            ("training", traffic.train),
            ("evaluation", traffic.evaluate),
            ("once per run", traffic.start),
        ):
            found += [
                (f"wire: {case.name}, {what} up", up),
                (f"wire: {case.name}, {what} down", down),
            ]
    figures = [Figure(name=name, value=value, unit="bytes") for name, value in found]
    if traffic is not None:
        name = f"wire: {case.name}, time of a round of training"
        figures.append(Figure(name=name, value=traffic.seconds, unit="s"))
    return figures


HEADER = (
    "method, network",
    "payload up",
    "wire up",
    "payload down",
    "wire down",
    "evaluation up",
    "evaluation down",
    "once up",
    "once down",
)


def table(path: Path) -> str:
    """Return the figures of all cases in a JSON file as a Markdown table."""
    values = {
        figure["name"]: figure["value"] for figure in json.loads(path.read_text())
    }
    rows = []
    for case in CASES:
        keys = (
            f"payload: {case.name}, training up",
            f"wire: {case.name}, training up",
            f"payload: {case.name}, training down",
            f"wire: {case.name}, training down",
            f"wire: {case.name}, evaluation up",
            f"wire: {case.name}, evaluation down",
            f"wire: {case.name}, once per run up",
            f"wire: {case.name}, once per run down",
        )
        cells = [f"{values[key]:,.0f}" if key in values else "-" for key in keys]
        rows.append((case.name, *cells))
    return markdown(HEADER, rows)


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire")
    parser.add_argument(
        "--methods",
        nargs="*",
        help="measure cases of these methods only; without a name none, which leaves "
        "the payload",
    )
    parser.add_argument("--models", nargs="*", help="measure these networks only")
    parser.add_argument("--idle", type=float, default=120.0, help="seconds at rest")
    parser.add_argument("--output", type=Path, default=RESULTS / "wire.json")
    options = parser.parse_args()
    measured = [
        case
        for case in CASES
        if (options.methods is None or case.method in options.methods)
        and (options.models is None or case.model in options.models)
    ]
    command = shlex.join(["python", "-m", "benchmarks.wire", *sys.argv[1:]])
    found = claims()
    for case in CASES:
        found += case_figures(case, payload(parse_settings(case.config())), None)
    write_figures(found, options.output, command)
    if measured:
        with one_node() as (federation, relay):
            rest = idle(relay, options.idle)
            for case in measured:
                traffic = measure(federation, relay, case)
                theory = payload(parse_settings(case.config()))
                found = case_figures(case, theory, traffic)
                write_figures(found, options.output, command)
        found = [
            Figure(name=f"wire: a node at rest, {way}", value=value, unit="bytes/s")
            for way, value in zip(("up", "down"), rest, strict=True)
        ]
        write_figures(found, options.output, command)
    text = table(options.output)
    options.output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
