"""A run of a real federation whose clients fail when a test says so."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faulty_model
import small

from deploy.federation import LocalFederation, NodeSpec
from deploy.runs import RunResult

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = float(os.environ.get("FAULTS_PATIENCE", "600"))
"""Seconds after which a test gives up; no test passes or fails by being faster."""


@contextmanager
def federation(workdir: Path, nodes: int) -> Iterator[LocalFederation]:
    """Start a federation of clients with `faulty_model`."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # the nodes inherit it
    try:
        specs = [node(workdir, number) for number in range(nodes)]
        with LocalFederation(ROOT, specs, workdir, start_timeout=PATIENCE) as running:
            yield running
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def node(workdir: Path, number: int, **options: Any) -> NodeSpec:
    name = f"client-{number}"
    config = {
        "client-name": name,
        "data-path": str(small.data() / f"client-{number % 3}"),
        "state-dir": str(workdir / "states" / name),
    }
    return NodeSpec(name, config, **options)


ROUND_TIMEOUT = float(os.environ.get("FAULTS_ROUND_TIMEOUT", "75"))
"""Deadline of a round in seconds: SuperLink gives a node up after 60 s of silence, and
a machine on which an ordinary round takes longer needs more."""

NO_REPLY = ("no answer in time", f"no reply within {ROUND_TIMEOUT:g} s")
"""What SuperLink and the server itself say of a client that missed the deadline."""


class WatchedRun:
    """A run over tiny networks, and the means to disturb it.

    Parameters
    ----------
    method
        By default one whose clients can fail to order, see `faulty_model`.
    changes
        Settings, `experiment` among them.
    """

    def __init__(
        self, federation: LocalFederation, method: str = "pfedes", **changes: Any
    ) -> None:
        self.federation = federation
        self.folder = federation.workdir / "runs" / changes["experiment"]
        own = {"model": "faulty_model:net"} if method == "pfedes" else {}
        changes = {"round_timeout": ROUND_TIMEOUT, **changes}
        self._config = small.settings(method, **own, **changes).to_config()
        del self._config["data-path"]
        self._run = federation.start_run(self._config)

    def resume(self, **changes: Any) -> None:
        """Start the run again under other settings."""
        config = {**self._config, "resume": True}
        config |= {key.replace("_", "-"): value for key, value in changes.items()}
        self._run = self.federation.start_run(config)

    def wait(self) -> RunResult:
        return self._run.wait(PATIENCE, echo=False)

    def stop(self) -> None:
        self._run.stop()
        self.wait()

    def kill_server_app(self) -> None:
        """Kill the process that holds the results folder, and nothing else."""
        holder = json.loads((self.folder / ".holder.json").read_text())
        os.kill(holder["process"], signal.SIGKILL)

    @property
    def last_round(self) -> int:
        return max((int(record["round"]) for record in self.records()), default=0)

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    def order(self, client: str, fault: str) -> None:
        """Let a client fail in its next training."""
        (self._place(client) / faulty_model.ORDER).write_text(fault)

    def wait_for_training(self, client: str) -> None:
        """Wait until a client starts its next training."""
        sign = self._place(client) / faulty_model.SIGN
        sign.unlink(missing_ok=True)
        wait_until(sign.exists, f"{client} does not train")

    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "rounds.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(
        self, condition: Callable[[Mapping[str, Any]], bool], after: int = 0
    ) -> dict[str, Any]:
        """Wait for the record of a round after round `after` that fits."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found.extend(
                r for r in self.records() if r["round"] > after and condition(r)
            )
            return bool(found)

        wait_until(look, f"no such round after {after} in {self.folder}")
        return found[0]

    def wait_for_failure(self, client: str, after: int = 0) -> dict[str, Any]:
        return self.wait_for(lambda r: client in r["train"]["failures"], after)

    def wait_for_reply(self, client: str, after: int = 0) -> dict[str, Any]:
        return self.wait_for(lambda r: client in r["train"]["replied"], after)

    def _place(self, client: str) -> Path:
        return self.federation.workdir / "nodes" / client


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
