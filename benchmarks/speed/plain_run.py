"""A whole run in the manner of a research script: one process, client after client.

A stand-in to compare with: X-FED with a live teacher, contiguous layout, ``DataLoader``
over lists of tensors, all threads for one client, all clients evaluated every second
round. Usage: ``python -m benchmarks.speed.plain_run FOLDER ROUNDS``.
"""

from __future__ import annotations

import copy
import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.speed.training import BATCH, PlainConvNet

Samples = list[tuple[Tensor, int]]


def read(path: Path) -> Samples:
    """Return the images of a file, normalised."""
    with np.load(path) as content:
        images = torch.from_numpy(content["images"]).permute(0, 3, 1, 2).float()
        return list(
            zip(
                (images / 127.5 - 1).contiguous(),
                content["labels"].tolist(),
                strict=True,
            )
        )


def train(network: PlainConvNet, data: Samples, students: set[int], lr: float) -> None:
    """Train for one epoch with distillation from the last exit."""
    optimizer = torch.optim.SGD(
        network.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4
    )
    for images, labels in DataLoader(data, batch_size=BATCH, shuffle=True):  # type: ignore[arg-type]
        optimizer.zero_grad()
        logits = network(images)
        loss = torch.zeros(())
        for exit_ in students:
            loss = loss + F.cross_entropy(logits[exit_], labels) / 3
            if exit_ < 2:
                loss = loss + 4 * F.kl_div(
                    F.log_softmax(logits[exit_] / 2, 1),
                    F.softmax(logits[-1].detach() / 2, 1),
                    reduction="batchmean",
                )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.no_grad()
def evaluate(network: PlainConvNet, data: Samples) -> list[int]:
    """Return the right answers of every exit."""
    right = [0, 0, 0]
    for images, labels in DataLoader(data, batch_size=BATCH):  # type: ignore[arg-type]
        for index, logits in enumerate(network(images)):
            right[index] += int((logits.argmax(1) == labels).sum())
    return right


def main() -> None:
    """Run."""
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    random.seed(0)
    data = {
        client: (read(client / "train.npz"), read(client / "test.npz"))
        for client in sorted(folder.iterdir())
    }
    shared = PlainConvNet().state_dict()
    personal: dict[Path, dict[str, Tensor]] = {}
    for round_ in range(1, rounds + 1):
        chosen = random.sample(sorted(data), len(data) // 2)
        share = min(2 * round_ / rounds, 1.0)
        students = {2, *range(int(2 * share))}
        total: dict[str, Tensor] = {}
        samples = 0
        for client in chosen:
            network = PlainConvNet()
            network.load_state_dict({**shared, **personal.get(client, {})})
            train(network, data[client][0], students, 0.1 * 0.99**round_)
            state = copy.deepcopy(network.state_dict())
            personal[client] = {k: v for k, v in state.items() if "exits" in k}
            for key, value in state.items():
                weighted = value * len(data[client][0])
                total[key] = total[key] + weighted if key in total else weighted
            samples += len(data[client][0])
        shared = {key: value / samples for key, value in total.items()}
        if round_ % 2 == 0:
            for client, (_, test) in data.items():
                network = PlainConvNet()
                network.load_state_dict({**shared, **personal.get(client, {})})
                evaluate(network, test)


if __name__ == "__main__":
    main()
