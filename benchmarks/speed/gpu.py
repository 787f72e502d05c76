"""Training on a GPU: the app beside a plain PyTorch loop and the card's limit."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from benchmarks.records import Figure, compared
from benchmarks.speed.measure import fresh, together
from benchmarks.speed.training import (
    Task,
    app_rate,
    app_times,
    matmul_rate,
    plain_data,
    plain_epoch,
)
from common.data import data_spec
from common.models import build_network
from common.settings import parse_settings

FLOP_PER_SAMPLE = 2 * (3 * 557_940_000 - 3 * 64 * 9 * 32 * 32)
"""Of ResNet-18 on images of 32x32; as of the ConvNet in :mod:`.training`."""

AT_ONCE = (1, 4, 16)
"""How many clients train on the card at a time, one process each."""

_START = 60.0
"""Seconds in which all processes have imported PyTorch and trained once."""

TASK = Task(model="resnet18", dataset="cifar100", samples=2048, device="cuda")


def throughput(repeats: int = 3) -> list[Figure]:
    """Measure ResNet-18 on images like CIFAR-100's; nothing where there is no GPU."""
    if not torch.cuda.is_available():
        print("gpu: there is no CUDA device here, nothing is measured")
        return []
    return measured(TASK, repeats=repeats, passes=3, size=8192)


def measured(task: Task, *, repeats: int, passes: int, size: int) -> list[Figure]:
    """Compare the throughput of training.

    Parameters
    ----------
    passes
        Rounds of a client per measurement.
    size
        Of the matrices that show the card's limit.
    """
    rounded = replace(task, precision="bfloat16")
    names = ("float32", "bfloat16")
    app: dict[str, list[float]] = {name: [] for name in names}
    limit: dict[str, list[float]] = {name: [] for name in names}
    plain = []
    for _ in range(repeats):
        for name, one in zip(names, (task, rounded), strict=True):
            app[name].append(fresh(app_rate, one, passes))
            dtype = getattr(torch, name)
            rate = fresh(matmul_rate, 20, size, task.device, dtype)
            limit[name].append(rate / FLOP_PER_SAMPLE)
        plain.append(fresh(plain_rate, task, passes))
    what, unit = "gpu/ResNet-18, B = 64", "samples/s"
    theirs = statistics.median(plain)
    figures = []
    for name in names:
        ours = (f"app, {name}", statistics.median(app[name]))
        most = (f"matrix-multiply limit, {name}", statistics.median(limit[name]))
        figures += compared(what, ours, ("plain loop", theirs), unit)
        figures += compared(what, ours, most, unit)[1:]
    for clients in AT_ONCE:
        rates = [at_once(task, clients, passes) for _ in range(repeats)]
        figures.append(
            Figure(
                name=f"{what}, {task.samples:,} samples/{clients} clients at once",
                value=statistics.median(rates),
                unit="clients/s",
            )
        )
    return list({figure.name: figure for figure in figures}.values())


def at_once(task: Task, clients: int, passes: int) -> float:
    """Return clients/s of several processes that begin to train at the same time."""
    begin = time.monotonic() + _START
    times = together(clients, app_times, task, passes, begin)
    if max(start for start, _ in times) > begin + 1:
        raise RuntimeError(f"{clients} processes took over {_START} s to start")
    return clients * passes / (max(end for _, end in times) - begin)


def plain_rate(task: Task, passes: int) -> float:
    """Return samples/s of a plain loop: contiguous layout, ``DataLoader``, float32."""
    spec = data_spec(parse_settings({"dataset": task.dataset}).data)
    data = plain_data(task.samples, spec)
    network = build_network(task.model, spec, seed=0).to(task.device)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
    )
    plain_epoch(network, optimizer, data, task.device)
    start = time.perf_counter()
    for _ in range(passes):
        plain_epoch(network, optimizer, data, task.device)
    float(next(network.parameters()).detach().sum())  # waits for the GPU
    return passes * task.samples / (time.perf_counter() - start)
