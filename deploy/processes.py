"""Process groups that are ended as a whole, and what goes with them on one machine.

SuperLink and SuperNode start further processes (SuperExec, which starts ServerApp and
ClientApp processes). All of them stay in the process group of the first, so a signal to
the group reaches every one, also after the first has died.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from deploy.diagnosis import explain

POLL_INTERVAL = 0.05
"""Seconds between two looks at a process or its log."""

STOP_GRACE = 10.0
"""Seconds that a group has to end by itself before it is killed. Flower forces its own
processes to exit after 5 s."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class FederationError(RuntimeError):
    """A process of the federation failed; the message carries the end of its log."""


class ProcessGroup:
    """A running command, its descendants, and the file that they log to.

    Parameters
    ----------
    name
        Name for messages.
    command
        The command with its arguments.
    log
        File to which standard output and error are appended.
    cwd
        Working folder.
    env
        The whole environment.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        cwd: Path,
        env: Mapping[str, str],
    ) -> None:
        self.name = name
        self.log = log
        self._gone = False
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._log_start = file.tell()
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Id of the first process and of the group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the first process; negative signal number; None: it runs."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether the first process runs."""
        return self.exit_code is None

    @property
    def gone(self) -> bool:
        """Whether no process of the group is left."""
        # Remembered, as the system may give the number to a stranger's group later.
        if not self._gone:
            self._gone = not self.alive and not _group_exists(self.pid)
        return self._gone

    def output(self) -> str:
        """Return what the group has logged since its start, without colours."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return without_colours(file.read().decode("utf-8", errors="replace"))

    def follow(self) -> Iterator[str]:
        """Yield the log as it grows until the first process has ended.

        Yields an empty string several times a second where nothing is new.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            while True:
                alive = self.alive
                yield decoder.decode(file.read())
                if not alive:
                    return
                time.sleep(POLL_INTERVAL)

    def failure(self, what: str) -> FederationError:
        """Return an error that says `what` went wrong, why, and how the log ends."""
        known = "".join(f"{meaning}.\n" for meaning in explain(self.output()))
        tail = "\n".join(f"  | {line}" for line in self.output().splitlines()[-25:])
        state = "runs" if self.alive else f"ended with exit code {self.exit_code}"
        return FederationError(
            f"{self.name} {what} (it {state}).\n{known}"
            f"End of {self.log}:\n{tail or '  | -'}"
        )

    def wait_for_output(self, pattern: str, timeout: float) -> re.Match[str]:
        """Wait until the log matches a regular expression.

        Raises
        ------
        FederationError
            If the first process ends before, or after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            alive = self.alive
            if match := re.search(pattern, self.output()):
                return match
            if not alive:
                raise self.failure("ended before it was ready")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready after {timeout:.0f} s")
            time.sleep(POLL_INTERVAL)

    def wait(self, timeout: float) -> None:
        """Wait until the first process ends.

        Raises
        ------
        FederationError
            If it does not within `timeout` seconds.
        """
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self.failure(f"did not end within {timeout:.0f} s") from None

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal to every process that is left of the group."""
        # macOS answers "not permitted" where only zombies are left.
        with suppress(ProcessLookupError, PermissionError):
            if not self.gone:
                os.killpg(self.pid, signum)

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> None:
        """Send `signum` to the group and wait until none of it is left."""
        # Once only: the second SIGTERM would cut Flower's orderly exit short.
        self.send_signal(signum)
        # A stopped process (SIGSTOP) does not see the signal until it goes on.
        self.send_signal(signal.SIGCONT)
        self._wait_or_kill()

    def _wait_or_kill(self) -> None:
        if not self._wait_until_gone(STOP_GRACE):
            self.send_signal(signal.SIGKILL)
            if not self._wait_until_gone(STOP_GRACE):
                raise self.failure("could not be killed")

    def _wait_until_gone(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not self.gone:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL)
        return True


def without_colours(text: str) -> str:
    """Return a text without the colour codes for a terminal."""
    return _COLOURS.sub("", text)


def stop_all(groups: Sequence[ProcessGroup]) -> None:
    """Stop several groups at the same time."""
    for group in groups:
        group.send_signal(signal.SIGTERM)
        group.send_signal(signal.SIGCONT)
    for group in groups:
        group._wait_or_kill()


def _group_exists(group: int) -> bool:
    """Return whether a process group has a member other than zombies."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    if sys.platform != "linux":
        return True
    # An orphan that nobody reaps (a container without init) stays as a zombie.
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, member_of = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(member_of) == group and state not in "ZX":
            return True
    return False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP for the time of a clean-up."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            previous[signum] = signal.signal(signum, signal.SIG_IGN)
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """Make a folder if it is absent and keep others of this program out of it.

    Raises
    ------
    FederationError
        If another one is in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FederationError(
                f"another federation uses {folder}; choose another working folder"
            ) from None
        yield


def reserve_port(host: str) -> tuple[int, socket.socket]:
    """Find a free TCP port for a gRPC server and keep it while the socket is open.

    gRPC binds with SO_REUSEPORT, so a server of this user can take the port, and nobody
    else gets it: no other reservation, no outgoing connection, also not while the
    server is down for a restart. On other systems than Linux Flower's own check of the
    port would fail then; there the socket comes closed and the port is merely free.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind((host, 0))
    port: int = reservation.getsockname()[1]
    if sys.platform != "linux":
        reservation.close()
    return port, reservation
