"""Memory and open files of all processes of a run, sampled while it goes on (Linux).

The processes are found by a variable in their environment, which every descendant
inherits: Ray and Flower start daemons that are nobody's children any more.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

_VARIABLE = "FL_PROCESS_WATCH"
_ROLES = (
    ("ray::", "clients (Ray actors)"),
    ("flower-simulation", "server (flower-simulation)"),
    ("flower-superlink", "SuperLink"),
    ("flower-supernode", "SuperNodes"),
    ("flower-superexec", "SuperExec"),
    ("flwr-serverapp", "ServerApp"),
    ("flwr-clientapp", "ClientApps"),
    ("/ray/", "Ray's own"),
)


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment."""

    pid: int
    role: str
    resident: int
    """Bytes of physical memory, shared pages included."""
    private: int
    """Bytes of physical memory that are neither of a file nor shared."""
    files: int
    """Open file descriptors."""


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes at one moment."""

    seconds: float
    """Since the watch began."""
    round_: int
    """Rounds finished by then."""
    processes: tuple[Process, ...]

    def resident(self, role: str = "") -> int:
        """Return the bytes of resident memory, of one role or of all."""
        return sum(p.resident for p in self.processes if role in ("", p.role))

    def private(self, role: str = "") -> int:
        """Return the bytes of private memory, of one role or of all."""
        return sum(p.private for p in self.processes if role in ("", p.role))

    def files(self) -> int:
        """Return the number of open files."""
        return sum(p.files for p in self.processes)

    def roles(self) -> Counter[str]:
        """Return the number of processes per role."""
        return Counter(p.role for p in self.processes)


@dataclass
class ProcessWatch:
    """Samples this program's future descendants in a thread; a context manager.

    Parameters
    ----------
    rounds
        Returns how many rounds are finished.
    interval
        Seconds between two samples.
    """

    rounds: Callable[[], int]
    interval: float = 1.0
    samples: list[Sample] = field(default_factory=list)

    def __enter__(self) -> ProcessWatch:
        self._mark = uuid.uuid4().hex
        os.environ[_VARIABLE] = self._mark
        self._start = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        del os.environ[_VARIABLE]

    def left(self, patience: float = 15.0) -> list[Process]:
        """Return the processes that are still there after `patience` seconds."""
        deadline = time.monotonic() + patience
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def processes(self) -> list[Process]:
        """Return the marked processes that run now, this one not among them."""
        mark = f"{_VARIABLE}={self._mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            try:
                if pid != os.getpid() and mark in (folder / "environ").read_bytes():
                    found.append(_process(pid, folder))
            except (OSError, ValueError):  # ended meanwhile, or a zombie
                continue
        return found

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            processes = tuple(self.processes())
            elapsed = time.monotonic() - self._start
            self.samples.append(Sample(elapsed, self.rounds(), processes))


def _process(pid: int, folder: Path) -> Process:
    status = (folder / "status").read_text()
    sizes = {
        key: 1024 * int(re.search(rf"{key}:\s+(\d+) kB", status)[1])  # type: ignore[index]
        for key in ("VmRSS", "RssAnon")
    }
    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    role = next((role for text, role in _ROLES if text in command), "others")
    files = len(list((folder / "fd").iterdir()))
    return Process(pid, role, sizes["VmRSS"], sizes["RssAnon"], files)
