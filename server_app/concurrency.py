"""How many simulated clients run at once: what cores, GPUs and memory allow."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from typing import Final

import torch

from client_app.footprint import SHARE
from client_app.memory import free_memory
from client_app.methods import TRAINERS
from client_app.trainer import Client
from common.data import ClientData, Split, data_spec
from common.settings import HETEROGENEOUS, SINGLE_EXIT_MODELS, Settings

WORKER: Final = 700 * 2**20
"""Bytes of main memory that a worker takes before it trains: PyTorch, Flower, Ray."""

SERVER: Final = 1536 * 2**20
"""Bytes that the server and Ray's own processes take."""

GPU_CONTEXT: Final = 600 * 2**20
"""Bytes of a GPU that each process takes before it trains."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a simulation may use; memory in bytes, None where nobody tells."""

    cores: int
    memory: int | None
    gpus: int = 0
    gpu_memory: int | None = None
    """Free memory of the GPU that has least."""


def this_machine() -> Machine:
    """Look at this machine."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    gpus = torch.cuda.device_count()
    free = [free_memory(torch.device("cuda", index)) for index in range(gpus)]
    known = [size for size in free if size is not None]
    return Machine(
        cores=cores or 1,
        memory=free_memory(torch.device("cpu")),
        gpus=gpus,
        gpu_memory=min(known, default=None),
    )


def training_bytes(settings: Settings) -> int:
    """Estimate what one client takes to train, whole batches at once, in bytes.

    Where clients have networks of different architectures, the largest counts.
    """
    spec = data_spec(settings.data)
    dtype = torch.uint8 if spec.kind == "image" else torch.int32
    size = settings.training.batch_size
    split = Split(
        torch.zeros((size, *spec.shape), dtype=dtype),
        torch.zeros(size, dtype=torch.int64),
    )
    model = settings.model
    if model == HETEROGENEOUS:
        model = SINGLE_EXIT_MODELS[0]
    data = ClientData(spec=spec, train=split, test=split, name="")
    client = Client("", model, data, torch.device("cpu"))
    plan = TRAINERS[settings.method](settings, client).first_plan()
    return plan.needed(plan.batch) if plan else 0


@dataclass(frozen=True, slots=True)
class Fit:
    """How clients share a machine."""

    clients: int
    """How many run at once."""
    cpus: float
    """Cores for each, which is how Ray is told."""
    reason: str
    """What sets the limit."""


def fit(machine: Machine, needed: int, *, cpus: float, gpus: float) -> Fit:
    """Return how many clients run at once.

    Parameters
    ----------
    needed
        Bytes that one client takes to train.
    cpus, gpus
        CPU cores and share of a GPU that one client asks for.

    Raises
    ------
    ValueError
        Not even one client fits.
    """
    if cpus <= 0 or gpus < 0:
        raise ValueError(f"cpus = {cpus}, gpus = {gpus}: must be above 0")
    limits = [(int(machine.cores / cpus), f"{machine.cores} cores, {cpus:g} each")]
    if gpus:
        share = f"{machine.gpus} GPUs, {gpus:g} each"
        limits.append((int(machine.gpus / gpus), share))
        if machine.gpu_memory is not None:
            each = GPU_CONTEXT + needed
            count = int(SHARE * machine.gpu_memory) // each * machine.gpus
            limits.append((count, _memory(machine.gpu_memory, each, "of the GPU")))
    if machine.memory is not None:
        each = WORKER + (0 if gpus else needed)
        count = (int(SHARE * machine.memory) - SERVER) // each
        limits.append((count, _memory(machine.memory, each, "of main memory")))
    clients, reason = min(limits, key=lambda limit: limit[0])
    if clients < 1:
        raise ValueError(
            f"not even one client can train here ({reason}): lower batch-size, choose "
            "a smaller model or image-size, give a client fewer cores or less of a "
            "GPU, or free memory"
        )
    if clients < limits[0][0]:  # more cores each: fewer at once
        cpus = math.ceil(machine.cores / clients)
        clients = machine.cores // cpus
    return Fit(clients, cpus, reason)


def _memory(free: int, each: int, where: str) -> str:
    return (
        f"{free / 2**30:.1f} GiB {where} free, a client takes about "
        f"{each / 2**30:.1f} GiB"
    )
