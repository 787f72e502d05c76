"""Runs on a SuperLink: submit, follow, wait for the end, and learn how it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.flower_cli import COMMAND_TIMEOUT, FlowerCli, Scalar, format_config
from deploy.processes import FederationError, without_colours

STATUS_INTERVAL = 2.0
"""Seconds between two questions for the status of a run."""

RunConfig = Mapping[str, Scalar] | str | Path
"""Overrides of the app's configuration: a mapping, ``key=value`` pairs as one string as
``flwr run --run-config`` takes them, or a TOML file."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    run_id: int
    status: str
    """``finished:completed``, ``finished:failed`` or ``finished:stopped``."""
    log: str
    """What ``flwr run`` and the ServerApp printed, without colours. Last lines can be
    missing, as SuperLink may end the stream before it has read them."""
    seconds: float
    """From the submission until the end was known."""

    @property
    def succeeded(self) -> bool:
        """Whether the ServerApp came to its end without an exception."""
        return self.status == "finished:completed"


class FederationRun:
    """A submitted run.

    Parameters
    ----------
    flwr
        Connection to SuperLink.
    app
        Folder of the Flower app.
    run_config
        Overrides of the app's configuration.
    log
        File for the log.

    Raises
    ------
    FederationError
        If the run cannot be submitted.
    """

    def __init__(
        self, flwr: FlowerCli, app: Path, run_config: RunConfig, log: Path
    ) -> None:
        arguments = ["run", str(app), flwr.CONNECTION, "--stream"]
        if isinstance(run_config, Mapping):
            run_config = format_config(run_config)
        elif isinstance(run_config, Path):
            run_config = str(run_config.resolve())
        if run_config:
            arguments += ["--run-config", run_config]
        self._flwr = flwr
        self._started_at = time.monotonic()
        self._stream = flwr.start(*arguments, log=log)
        submitted = self._stream.wait_for_output(
            r"Successfully started run (\d+)", COMMAND_TIMEOUT
        )
        self.run_id = int(submitted[1])

    def status(self) -> str:
        """Ask SuperLink for the status: ``pending``, ``starting``, ``running``, ..."""
        run_id = str(self.run_id)
        answer = self._flwr.ask("list", self._flwr.CONNECTION, "--run-id", run_id)
        return str(answer["runs"][0]["status"])

    def stop(self) -> None:
        """Stop the run."""
        self._flwr.ask("stop", str(self.run_id), self._flwr.CONNECTION)

    def wait(self, timeout: float, *, echo: bool = True) -> RunResult:
        """Wait for the end of the run.

        Parameters
        ----------
        timeout
            Seconds after which the run is stopped and given up.
        echo
            Whether the log goes to standard output as it comes.

        Raises
        ------
        FederationError
            If the run does not end in time or SuperLink cannot be asked.
        """
        deadline = time.monotonic() + timeout
        for text in self._stream.follow():
            if echo and text:
                text = text if sys.stdout.isatty() else without_colours(text)
                print(text, end="", flush=True)
            if time.monotonic() > deadline:
                raise self._given_up(timeout)
        # The end of the stream does not tell how the run ended, nor that it did: the
        # stream also breaks with SuperLink, and its exit code is 0 for a failed run.
        while not (status := self.status()).startswith("finished"):
            if time.monotonic() > deadline:
                raise self._given_up(timeout)
            time.sleep(STATUS_INTERVAL)
        seconds = time.monotonic() - self._started_at
        return RunResult(self.run_id, status, self._stream.output(), seconds)

    def _given_up(self, timeout: float) -> FederationError:
        self.stop()
        return self._stream.failure(f"was not finished after {timeout:.0f} s")
