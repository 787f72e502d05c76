"""Flower's commands: where they are, their environment, and the answers of ``flwr``."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from common.files import write_atomically
from deploy.processes import POLL_INTERVAL, ProcessGroup

Scalar = bool | int | float | str

EXECUTABLES = Path(sys.executable).parent
"""Folder of Flower's commands: the one of this Python, whatever ``PATH`` says."""

COMMAND_TIMEOUT = 60.0
"""Seconds that a ``flwr`` command may take, other than the stream of a run's log."""


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment for a Flower process.

    Parameters
    ----------
    home
        ``FLWR_HOME`` of the process. Each one needs its own: two processes that unpack
        the same app into one folder at the same time disturb each other.
    """
    return {
        **os.environ,
        # SuperLink and SuperNode start further commands by name.
        "PATH": f"{EXECUTABLES}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_LOG_LEVEL": "INFO",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        "no_grpc_proxy": "127.0.0.1,localhost",
    }


def format_config(config: Mapping[str, Scalar]) -> str:
    """Return a configuration as the ``key=value`` pairs that Flower's commands read.

    Raises
    ------
    ValueError
        If a key or a string cannot be expressed in Flower's syntax.
    """
    for key in config:
        # Flower would drop the part before a space without a word.
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", key):
            raise ValueError(f"key {key!r}: use letters, digits, '-', '_' and '.'")
    return " ".join(f"{key}={_format(key, value)}" for key, value in config.items())


def _format(key: str, value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, int):
        return str(int(value))
    if any(ord(character) < 32 for character in value) or (
        "'" in value and ('"' in value or "\\" in value)
    ):
        raise ValueError(
            f"{key} = {value!r} cannot be given to Flower: no line breaks, and beside "
            "an apostrophe neither quotation mark nor backslash; use a TOML file"
        )
    return f'"{value}"' if "'" in value else f"'{value}'"


class FlowerCli:
    """The ``flwr`` command, connected to one SuperLink.

    Parameters
    ----------
    home
        ``FLWR_HOME``: Flower's configuration goes there.
    address
        Address of SuperLink's Control API.
    root_certificates
        Certificate of the authority that signed SuperLink's.
    cwd
        Working folder.
    """

    CONNECTION = "federation"

    def __init__(
        self, home: Path, address: str, root_certificates: Path, cwd: Path
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        # Another command may read the file meanwhile. A JSON string is a TOML string.
        config = (
            f"[superlink]\ndefault = {json.dumps(self.CONNECTION)}\n\n"
            f"[superlink.{self.CONNECTION}]\n"
            f"address = {json.dumps(address)}\n"
            f"root-certificates = {json.dumps(str(root_certificates))}\n"
        )
        write_atomically(home / "config.toml", config.encode())
        self._home = home
        self._address = address
        self._root_certificates = root_certificates
        self._cwd = cwd
        self.groups: list[ProcessGroup] = []
        """The commands that run."""

    def wait_until_ready(self, superlink: ProcessGroup, timeout: float) -> None:
        """Wait until SuperLink answers.

        SuperLink opens its database at the first request, and requests that come at the
        same time break that and each other. So the first one is made here, alone and as
        soon as the port answers: an empty ``ListNodesRequest``.

        Parameters
        ----------
        superlink
            SuperLink's processes.
        timeout
            Longest wait in seconds.

        Raises
        ------
        FederationError
            If SuperLink ends before, or does not answer in time.
        """
        credentials = grpc.ssl_channel_credentials(self._root_certificates.read_bytes())
        options = [("grpc.enable_http_proxy", 0)]
        deadline = time.monotonic() + timeout
        while superlink.alive and time.monotonic() < deadline:
            with grpc.secure_channel(self._address, credentials, options) as channel:
                list_nodes = channel.unary_unary("/flwr.proto.Control/ListNodes")
                try:
                    list_nodes(b"", timeout=timeout)
                    return
                except grpc.RpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        raise superlink.failure(f"answered {error.details()}") from None
            time.sleep(POLL_INTERVAL)
        raise superlink.failure("did not start")

    def start(self, *arguments: str, log: Path) -> ProcessGroup:
        """Start ``flwr`` with `arguments`."""
        group = ProcessGroup(
            f"flwr {arguments[0]}",
            [str(EXECUTABLES / "flwr"), *arguments],
            log=log,
            cwd=self._cwd,
            env=flower_environment(self._home),
        )
        self.groups = [other for other in self.groups if not other.gone] + [group]
        return group

    def answer(self, command: ProcessGroup) -> dict[str, Any]:
        """Return the answer of a command that was started with ``--format json``.

        Raises
        ------
        FederationError
            If the command fails.
        """
        command.wait(COMMAND_TIMEOUT)
        # A failed command ends with exit code 0 and says "success": false.
        text = command.output()
        try:
            answer = json.loads(text[text.index("{") : text.rindex("}") + 1])
        except ValueError:
            raise command.failure("failed") from None
        if not isinstance(answer, dict) or not answer.get("success"):
            raise command.failure("failed")
        return answer

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Run ``flwr`` with `arguments` and return its answer, see :meth:`answer`."""
        log = self._cwd / "logs" / "flwr.log"
        return self.answer(self.start(*arguments, "--format", "json", log=log))
