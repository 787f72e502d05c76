"""A control group that limits the memory of what is started in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A control group with a limit, of version 2 or 1."""

    def __init__(self, folder: Path, limit: str, peak: str) -> None:
        self.folder = folder
        self.limit, self._peak = folder / limit, folder / peak

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command that enters the group and goes on as the command behind it."""
        script = f'echo $$ >"{self.folder}/cgroup.procs" && exec "$@"'
        return ("/bin/sh", "-c", script, "sh")

    @property
    def peak(self) -> int:
        """Largest use so far, in bytes; 0 where the kernel does not tell."""
        return int(self._peak.read_text()) if self._peak.exists() else 0


@contextmanager
def memory_limit(size: int) -> Iterator[MemoryLimit]:
    """Make a control group limited to `size` bytes; skip where that is not allowed."""
    name = f"flower-personalized-{os.getpid()}"
    if (CGROUPS / "cgroup.controllers").exists():
        group = MemoryLimit(CGROUPS / name, "memory.max", "memory.peak")
    else:
        names = ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
        group = MemoryLimit(CGROUPS / "memory" / name, *names)
    try:
        group.folder.mkdir()
        try:
            group.limit.write_text(str(size))
        except OSError:
            group.folder.rmdir()
            raise
    except OSError as error:
        pytest.skip(f"needs root and control groups for memory: {error}")
    try:
        yield group
    finally:
        group.folder.rmdir()
