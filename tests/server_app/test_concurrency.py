from __future__ import annotations

import pytest

from common.settings import parse_settings
from server_app.concurrency import (
    GPU_CONTEXT,
    SERVER,
    WORKER,
    Machine,
    fit,
    training_bytes,
)

GIB = 2**30


def free_for(clients: float, each: int) -> int:
    """Memory of which the four fifths in use hold the server and so many clients."""
    return int((SERVER + clients * each) / 0.8) + 1


def test_cores_set_the_limit() -> None:
    found = fit(Machine(cores=6, memory=64 * GIB), GIB, cpus=2, gpus=0)
    assert (found.clients, found.cpus) == (3, 2)
    assert "6 cores, 2 each" in found.reason


@pytest.mark.parametrize(
    ("memory_for", "clients", "cpus"),
    [(8.0, 8, 1), (7.5, 4, 2), (4.0, 4, 2), (3.5, 2, 3), (1.0, 1, 8)],
)
def test_memory_sets_the_limit(memory_for: float, clients: int, cpus: int) -> None:
    # By hand: with 8 cores, 7 at once would need 8/7 cores each; Ray takes whole ones.
    machine = Machine(cores=8, memory=free_for(memory_for, WORKER + GIB))
    found = fit(machine, GIB, cpus=1, gpus=0)
    assert (found.clients, found.cpus) == (clients, cpus)


def test_too_little_memory_is_refused_with_figures() -> None:
    machine = Machine(cores=8, memory=free_for(0.5, WORKER + GIB))
    with pytest.raises(ValueError, match=r"not even one.*of main memory.*1\.7 GiB"):
        fit(machine, GIB, cpus=1, gpus=0)


def test_a_gpu_s_memory_counts_and_main_memory_holds_the_workers_alone() -> None:
    gpu_memory = int(5 * (GPU_CONTEXT + GIB) / 0.8) + 1
    machine = Machine(16, free_for(20, WORKER), gpus=1, gpu_memory=gpu_memory)
    found = fit(machine, GIB, cpus=1, gpus=0.1)
    assert (found.clients, found.cpus) == (4, 4)  # 5 would need 3.2 cores each
    assert "of the GPU" in found.reason


def test_no_gpu_where_one_is_asked_for() -> None:
    with pytest.raises(ValueError, match="0 GPUs, 1 each"):
        fit(Machine(cores=2, memory=None), 0, cpus=1, gpus=1)


def test_unknown_memory_is_no_limit() -> None:
    assert fit(Machine(cores=2, memory=None), 10**15, cpus=1, gpus=0).clients == 2


@pytest.mark.parametrize("cpus", [0, -1])
def test_cores_must_be_positive(cpus: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        fit(Machine(cores=2, memory=None), 0, cpus=cpus, gpus=0)


def test_larger_batches_and_networks_take_more() -> None:
    def needed(**options: object) -> int:
        config = {key.replace("_", "-"): value for key, value in options.items()}
        return training_bytes(parse_settings({"dataset": "cifar10", **config}))

    small = needed(method="fedavg", model="cnn-5", batch_size=8)
    assert small < needed(method="fedavg", model="cnn-5", batch_size=64)
    assert small < needed(method="fedavg", model="cnn-1", batch_size=8)
    mixed = needed(method="pfedes", model="heterogeneous", batch_size=8)
    assert mixed == needed(method="pfedes", model="cnn-1", batch_size=8)
