"""Local training: the app beside a plain PyTorch loop and the matrix-multiply limit."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.records import Figure, compared
from benchmarks.speed.measure import CORES, fresh, together
from client_app.memory import keep_heap
from client_app.methods import TRAINERS
from client_app.telemetry import peak_memory
from client_app.trainer import Client
from common.data import ClientData, DataSpec, Split, data_spec
from common.models import Network, build_network, last_exit_keys
from common.protocol import Request
from common.settings import parse_settings
from common.sharing import initial_shared
from common.state import read_state

BATCH = 64
SAMPLES = 8 * BATCH
FLOP_PER_SAMPLE = 2 * (3 * 30_391_680 - 3 * 128 * 9 * 30 * 30)
"""Forward, gradients of weights and of inputs of the ConvNet, but the first layer's
input has none; two operations per multiply-accumulate."""


def made_up_data(spec: DataSpec, samples: int) -> Split:
    """Return random images with random labels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (samples, *spec.shape), dtype=np.uint8)
    labels = rng.integers(0, spec.num_classes, samples)
    return Split(torch.from_numpy(images), torch.from_numpy(labels))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a client trains, and on what."""

    method: str = "fedper"
    model: str = "convnet"
    dataset: str = "cifar10"
    samples: int = SAMPLES
    device: str = "cpu"
    precision: str = "float32"


def app_rate(task: Task, passes: int) -> float:
    """Return samples/s of one client that trains with one thread, as in a run."""
    start, end = app_times(task, passes)
    return passes * task.samples / (end - start)


def app_times(task: Task, passes: int, begin: float = 0.0) -> tuple[float, float]:
    """Return when a client's rounds began and ended, on the machine's clock.

    Parameters
    ----------
    begin
        Not before this time, so that several processes train at once.
    """
    method = task.method
    settings = parse_settings(
        {
            "method": method,
            "dataset": task.dataset,
            "model": task.model,
            "batch-size": BATCH,
            "precision": task.precision,
        }
    )
    keep_heap()
    torch.set_num_threads(1)
    spec = data_spec(settings.data)
    split = made_up_data(spec, task.samples)
    data = ClientData(spec=spec, train=split, test=split, name="")
    client = Client("client", task.model, data, torch.device(task.device))
    trainer = TRAINERS[method](settings, client)
    network = build_network(task.model, spec, seed=0)
    assert isinstance(network, Network)
    request = Request(
        experiment="",
        run="",
        server_round=1,
        shared=initial_shared(settings),
        groups={"teacher": read_state(network, last_exit_keys(network))}
        if method == "xfed"
        else {},
        values={"students": [*range(1, network.num_exits + 1)]}
        if method == "xfed"
        else {},
    )
    _, state = trainer.train(request, None)
    time.sleep(max(0.0, begin - time.monotonic()))
    start = time.monotonic()
    for _ in range(passes):
        _, state = trainer.train(request, state)
    return start, time.monotonic()


class PlainConvNet(nn.Module):
    """The ConvNet with three exits as one would write it in a script."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 128, 3)
        self.conv2 = nn.Conv2d(128, 128, 3)
        self.conv3 = nn.Conv2d(128, 128, 3)
        self.exits = nn.ModuleList(nn.Linear(128, 10) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the logits of all exits."""
        logits = []
        convolutions = (self.conv1, self.conv2, self.conv3)
        for convolution, exit_ in zip(convolutions, self.exits, strict=True):
            x = F.max_pool2d(F.relu(convolution(x)), 2)
            logits.append(exit_(F.adaptive_avg_pool2d(x, 1).flatten(1)))
        return logits


def plain_data(samples: int, spec: DataSpec) -> list[tuple[Tensor, int]]:
    """Return a list of normalised images with their labels."""
    split = made_up_data(spec, samples)
    images = split.inputs.float() / 127.5 - 1
    return list(zip(images, split.targets.tolist(), strict=True))


def plain_rate(passes: int) -> float:
    """Return samples/s of a plain loop: one process, all threads, ``DataLoader``."""
    torch.set_num_threads(CORES)
    data = plain_data(SAMPLES, data_spec(parse_settings({"dataset": "cifar10"}).data))
    network = PlainConvNet()
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
    )
    plain_epoch(network, optimizer, data)
    start = time.perf_counter()
    for _ in range(passes):
        plain_epoch(network, optimizer, data)
    return passes * SAMPLES / (time.perf_counter() - start)


def plain_epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: list[tuple[Tensor, int]],
    device: str = "cpu",
) -> None:
    """Train for one epoch."""
    for batch in DataLoader(data, batch_size=BATCH, shuffle=True):  # type: ignore[arg-type]
        images, labels = (tensor.to(device) for tensor in batch)
        optimizer.zero_grad()
        exits = network(images)
        loss = sum(F.cross_entropy(logits, labels) / len(exits) for logits in exits)
        assert isinstance(loss, Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def matmul_rate(
    repeats: int,
    size: int = 2048,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> float:
    """Return FLOP/s of matrix multiplication, on one core or a GPU.

    On a GPU float32 is multiplied as PyTorch's convolutions do it, by default as TF32.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    torch.set_num_threads(1)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.mm(a, b)
    float(out[0, 0])  # waits for a GPU
    start = time.perf_counter()
    for _ in range(repeats):
        torch.mm(a, b, out=out)
    float(out[0, 0])
    return repeats * 2 * size**3 / (time.perf_counter() - start)


_KINDS = {
    "convolutions, forward": ("aten::mkldnn_convolution", "aten::conv2d"),
    "convolutions, backward": ("aten::convolution_backward",),
    "max-pools and the zeros of their gradients": (
        "aten::max_pool2d_with_indices",
        "aten::max_pool2d_with_indices_backward",
        "aten::fill_",
    ),
}


def where_time_goes() -> list[Figure]:
    """Profile a client that trains for X-FED, by PyTorch's profiler."""
    return fresh(_where_time_goes)


def _where_time_goes() -> list[Figure]:
    from torch.profiler import ProfilerActivity, profile

    app_rate(Task(method="xfed"), 1)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        app_rate(Task(method="xfed"), 2)
    times = {e.key: e.self_cpu_time_total for e in profiled.key_averages()}
    shares = {
        kind: sum(times.get(name, 0) for name in names) / sum(times.values())
        for kind, names in _KINDS.items()
    }
    shares["all else"] = 1 - sum(shares.values())
    what = "profile/X-FED with KD, ConvNet, B = 64"
    return [
        Figure(name=f"{what}/{kind}", value=100 * share, unit="% of the time")
        for kind, share in shares.items()
    ]


def throughput(repeats: int = 3) -> list[Figure]:
    """Compare training throughput with all cores busy."""
    app, distilling, plain, limit = [], [], [], []
    for _ in range(repeats):
        limit.append(sum(together(CORES, matmul_rate, 10)) / FLOP_PER_SAMPLE)
        app.append(sum(together(CORES, app_rate, Task(), 3)))
        plain.append(fresh(plain_rate, 3))
        distilling.append(sum(together(CORES, app_rate, Task(method="xfed"), 3)))
    ours, kd, theirs, most = map(statistics.median, (app, distilling, plain, limit))
    what = "training/ConvNet, B = 64"
    app_rate_, unit = ("app", ours), "samples/s"
    limit_ = ("matrix-multiply limit", most)
    return [
        *compared(what, app_rate_, ("plain loop", theirs), unit, at_least=1.6),
        *compared(what, app_rate_, limit_, unit, at_least=0.55)[1:],
        Figure(name=f"{what}/app, X-FED with KD", value=kd, unit=unit),
    ]


def _app_memory(model: str, dataset: str) -> int:
    """Train a client as deployed; return the peak of its resident memory, in bytes."""
    import flwr.clientapp  # noqa: F401 a deployed client has it loaded

    settings = parse_settings(
        {"method": "fedper", "dataset": dataset, "model": model, "batch-size": BATCH}
    )
    keep_heap()
    torch.set_num_threads(1)
    spec = data_spec(settings.data)
    split = made_up_data(spec, SAMPLES)
    data = ClientData(spec=spec, train=split, test=split, name="")
    trainer = TRAINERS["fedper"](
        settings, Client("client", model, data, torch.device("cpu"))
    )
    request = Request(
        experiment="", run="", server_round=1, shared=initial_shared(settings)
    )
    trainer.train(request, None)
    return peak_memory()


def _plain_memory(model: str, dataset: str) -> int:
    """Train the same network in a plain loop; return the peak, in bytes."""
    import flwr.clientapp  # noqa: F401

    torch.set_num_threads(1)
    spec = data_spec(parse_settings({"dataset": dataset}).data)
    network = build_network(model, spec, seed=0)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
    )
    plain_epoch(network, optimizer, plain_data(SAMPLES, spec))
    return peak_memory()


def memory() -> list[Figure]:
    """Compare the memory of a client with that of a plain loop."""
    figures = []
    for model, dataset in (("convnet", "cifar10"), ("resnet18", "cifar100")):
        figures += compared(
            f"memory/{model}, B = {BATCH}",
            ("client", fresh(_app_memory, model, dataset) / 2**20),
            ("plain loop", fresh(_plain_memory, model, dataset) / 2**20),
            "MiB",
            at_most=1.25,
        )
    return figures
