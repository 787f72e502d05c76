"""The server's mathematics: matching, selection, averaging."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from benchmarks.records import Figure, compared
from benchmarks.speed.measure import fresh, in_turn, resident_memory, timed
from client_app.telemetry import peak_memory
from common.data import DataSpec
from common.models import build_network
from common.state import State, num_bytes, read_state
from server_app.averaging import OrderedMean
from server_app.matching import cosine_similarity, match_teachers
from server_app.selection import least_conflicting

MU = 0.6
EXIT_PARAMETERS = 128 * 10 + 10


def updates(clients: int) -> list[npt.NDArray[np.float64]]:
    """Return made-up updates of last exits that go a little the same way."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=EXIT_PARAMETERS)
    return [0.3 * common + rng.normal(size=EXIT_PARAMETERS) for _ in range(clients)]


def general_solver(similarity: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return argmax kᵀc − μ‖k − 1/s‖² over the simplex for one client, by SLSQP."""
    size = len(similarity)
    solution = minimize(
        lambda k: MU * ((k - 1 / size) ** 2).sum() - k @ similarity,
        np.full(size, 1 / size),
        jac=lambda k: 2 * MU * (k - 1 / size) - similarity,
        bounds=[(0, None)] * size,
        constraints={
            "type": "eq",
            "fun": lambda k: k.sum() - 1,
            "jac": lambda k: np.ones(size),
        },
        method="SLSQP",
        options={"ftol": 1e-12},
    )
    weights: npt.NDArray[np.float64] = solution.x
    return weights


def matching() -> list[Figure]:
    """Compare teacher matching with one general QP per client."""
    figures = []
    for size in (10, 50, 100, 200, 2000):
        vectors = updates(size)

        def ours(vectors: list[npt.NDArray[np.float64]] = vectors) -> float:
            return timed(lambda: match_teachers(cosine_similarity(vectors), MU))

        (seconds,) = in_turn(5, ours)
        target, met = "", None
        if size == 2000:
            target, met = "under 1", seconds < 1
        figures.append(
            Figure(
                name=f"matching/s = {size}",
                value=seconds,
                unit="s",
                target=target,
                met=met,
            )
        )
        if size == 200:
            similarity = cosine_similarity(vectors)
            weights = match_teachers(similarity, MU)
            start = time.perf_counter()
            exact = [general_solver(similarity[i]) for i in range(size)]
            theirs = time.perf_counter() - start
            difference = float(np.abs(weights - exact).max())
            figures += compared(
                "matching/s = 200",
                ("one QP per client, SLSQP", theirs),
                ("similarities and all weights", seconds),
                "s",
                at_least=100,
            )
            figures.append(
                Figure(
                    name="matching/s = 200/largest difference",
                    value=difference,
                    unit="weight",
                    target="at most 1e-6",
                    met=difference <= 1e-6,
                )
            )
    return figures


def selection() -> list[Figure]:
    """Time the choice of half of 2,000 clients."""
    similarity = cosine_similarity(
        [np.random.default_rng(i).normal(size=64) for i in range(2000)]
    )
    (seconds,) = in_turn(5, lambda: timed(lambda: least_conflicting(similarity, 1000)))
    return [
        Figure(
            name="selection/s = 2000",
            value=seconds,
            unit="s",
            target="under 1",
            met=seconds < 1,
        )
    ]


def _resnet() -> State:
    network = build_network("resnet18", DataSpec("image", (3, 32, 32), 100), seed=0)
    return read_state(network, network.state_dict())


def _replies(count: int) -> Iterator[tuple[str, State]]:
    """Yield fresh states one at a time, as they come off the wire."""
    model = _resnet()
    content = {key: value.tobytes() for key, value in model.items()}
    for number in range(count):
        yield (
            f"client-{number:03d}",
            {
                key: np.frombuffer(bytearray(data), model[key].dtype).reshape(
                    model[key].shape
                )
                for key, data in content.items()
            },
        )


def _averaging(count: int) -> tuple[float, float, int]:
    """Return peak memory above idle in models, seconds per reply, bytes of a model."""
    replies = _replies(count + 1)
    names = [f"client-{number:03d}" for number in range(1, count + 1)]
    size = num_bytes(_resnet())
    next(replies)  # the model is built and the generator holds its bytes
    idle = resident_memory()
    mean, spent = OrderedMean(names), 0.0
    for name, state in replies:
        start = time.perf_counter()
        mean.add(name, state, 100)
        spent += time.perf_counter() - start
        del state
    mean.result()
    return (peak_memory() - idle) / size, spent / count, size


def _plain_add(count: int) -> float:
    """Return seconds of adding a float32 array of the model's size to another."""
    a = np.ones(num_bytes(_resnet()) // 4, np.float32)
    b = np.ones_like(a)
    a += b
    start = time.perf_counter()
    for _ in range(count):
        a += b
    return (time.perf_counter() - start) / count


def averaging() -> list[Figure]:
    """Measure memory and time of averaging 100 replies of ResNet-18."""
    models, seconds, size = fresh(_averaging, 100)
    plain = fresh(_plain_add, 100)
    return [
        Figure(
            name="averaging/100 ResNet-18/peak above idle",
            value=models,
            unit="models",
            target="under 4",
            met=models < 4,
        ),
        *compared(
            "averaging/ResNet-18",
            ("per reply", size / seconds / 1e9),
            ("plain NumPy add", size / plain / 1e9),
            "GB/s",
        ),
    ]
