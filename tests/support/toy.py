"""A toy federation: clients that send back known numbers, no network in sight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.common import Context, Message, MessageType
from local_grid import LocalGrid

from common.protocol import EPSILONS, Identity, Reply, Request, to_record
from common.settings import Settings, parse_settings
from common.state import State

Train = Callable[[str, Request], Reply]
INITIAL: State = {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}


def settings(**changes: Any) -> Settings:
    config = {
        "method": "fedavg",
        "wait-timeout": 5.0,
        "round-timeout": 5.0,
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    return parse_settings(config)


def number(name: str) -> int:
    return int(name.rsplit("-", 1)[1])


def add_number(name: str, request: Request) -> Reply:
    """Client i adds i to all parameters and claims i + 1 samples."""
    shift = np.float32(number(name))
    shared = {key: np.asarray(value + shift) for key, value in request.shared.items()}
    return Reply(
        shared=shared, metrics={"num-examples": number(name) + 1, "train-loss": 0.5}
    )


def evaluation(name: str, request: Request) -> Reply:
    """Client i gets i of 10 test samples right at both of its two exits."""
    right = number(name) % 11
    return Reply(
        metrics={
            "num-examples": 10,
            "correct": [right, right],
            "loss": [1.0, 0.5],
            "taken": [4, 6],
            "early-correct": right,
            "epsilon-correct": [right] * len(EPSILONS),
            "epsilon-taken": [10, 0] + [4, 6] * (len(EPSILONS) - 1),
        }
    )


def handler(
    train: Train = add_number, evaluate: Train = evaluation
) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        name = str(context.node_config["client-name"])
        if message.metadata.message_type == MessageType.QUERY:
            identity = Identity(
                client=name,
                num_train=number(name) + 1,
                num_test=10,
                model="toy",
                macs=[10, 30],
                device="cpu",
                versions="",
            )
            return Message(identity.to_records(), reply_to=message)
        request = Request.from_records(message.content)
        act = train if message.metadata.message_type == MessageType.TRAIN else evaluate
        reply: Any = act(name, request)
        if not isinstance(reply, Reply):
            return reply  # type: ignore[no-any-return]
        return Message(reply.to_records(), reply_to=message)

    return handle


def grid(count: int, train: Train = add_number, **options: Any) -> LocalGrid:
    nodes = {f"client-{i}": {"client-name": f"client-{i}"} for i in range(count)}
    return LocalGrid(nodes, handler(train), **options)


def initial() -> Any:
    return to_record(INITIAL)
