"""Repeats, medians and fresh processes for measurements."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
CORES = len(os.sched_getaffinity(0))


def timed(function: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(
    repeats: int, *functions: Callable[[], float], warmup: bool = True
) -> list[float]:
    """Return the median of each function's figure; they take turns, A B A B ….

    So a machine that gets slower while it measures does so for all of them.
    """
    if warmup:
        for function in functions:
            function()
    rounds = [[function() for function in functions] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def fresh(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process, so that nothing is warm or left over."""
    return together(1, function, *arguments)[0]


def together(processes: int, function: Callable[..., T], *arguments: Any) -> list[T]:
    """Call a function in several new processes at once."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(function, *arguments) for _ in range(processes)]
        return [future.result() for future in futures]


def resident_memory() -> int:
    """Return this process's resident memory in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")
