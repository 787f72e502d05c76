"""Memory of this machine: how much is free, and the C library's heap."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h> of glibc
_LIMIT = 2**30  # bytes
_UNREADABLE = (OSError, ValueError, KeyError)


def keep_heap() -> None:
    """Keep freed memory in the process instead of handing it back after every step.

    By default glibc returns large blocks to the kernel, which zeroes them again for the
    next batch; training a small convolutional network on a CPU loses about a sixth of
    its time to that. Affects this process alone; does nothing where the C library is
    not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _LIMIT)
        mallopt(_M_MMAP_THRESHOLD, _LIMIT)


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that training on a device can still take.

    A GPU with memory of its own tells that. The GPU of a Jetson shares the memory of
    the CPU, for which :func:`host_memory` counts, as for a CPU. None where the system
    does not tell.
    """
    if device.type != "cuda" or torch.cuda.get_device_properties(device).is_integrated:
        return host_memory()
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def host_memory(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the bytes of main memory that this process can still take.

    The least of what Linux reckons to be available, what the limits of the process's
    control groups leave, and what the limit of its address space (``ulimit -v``)
    leaves. Swap does not count. None where the system does not tell.

    Parameters
    ----------
    proc, cgroups
        Where procfs and the control groups (version 2, 1, or both) are mounted.
    """
    free = []
    with suppress(*_UNREADABLE):
        free.append(_kibibytes(proc / "meminfo", "MemAvailable"))
    free += _left_by_groups(proc, cgroups)
    with suppress(*_UNREADABLE):
        limit = _address_space(proc)
        if limit is not None:
            free.append(limit - _kibibytes(proc / "self/status", "VmSize"))
    return max(0, min(free)) if free else None


def _left_by_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield what the limit of each control group above this process leaves."""
    groups = []
    with suppress(*_UNREADABLE):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = Path(path.lstrip("/"))
            if not controllers:
                groups.append((cgroups, inside, "max", "current", "inactive_file"))
            elif "memory" in controllers.split(","):
                names = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
                groups.append((cgroups / "memory", inside, *names))
    for root, inside, limit, usage, cache in groups:
        # In a container the group's own folder may be the root.
        for folder in (root / part for part in (inside, *inside.parents)):
            with suppress(*_UNREADABLE):  # no limit reads "max", no number
                left = int((folder / f"memory.{limit}").read_text())
                left -= int((folder / f"memory.{usage}").read_text())
                lines = (folder / "memory.stat").read_text().splitlines()
                yield left + int(dict(line.split() for line in lines)[cache])


def _kibibytes(path: Path, key: str) -> int:
    """Return a line of procfs such as ``VmSize:  123 kB`` in bytes."""
    lines = path.read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(values[key].split()[0]) * 1024


def _address_space(proc: Path) -> int | None:
    """Return the limit of this process's address space in bytes, if it has one."""
    for line in (proc / "self/limits").read_text().splitlines():
        if line.startswith("Max address space"):
            soft = line.split()[3]
            return None if soft == "unlimited" else int(soft)
    return None
