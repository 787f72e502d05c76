"""Tell a SuperLink what to do, and learn what became of it.

``python -m deploy.control --root-certificates ca.pem COMMAND``, on the machine of the
SuperLink: whoever reaches its Control API can run code on every node, so it should
listen on the loopback interface only.

===================  ================================================================
``wait``             wait until SuperLink answers, and nodes are online
``register``         register a node's public key under a name
``revoke``           take the named node's key back, for good
``nodes``            name, id and status of every registered node, as JSON
``runs``             the runs that have not ended, as JSON
``run``              run an app, show its log; the exit code tells how the run ended
===================  ================================================================

The first five are asked again without harm. ``run`` can be left with Ctrl-C, the run
goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from deploy.flower_cli import FlowerCli
from deploy.processes import FederationError, stop_all
from deploy.runs import FederationRun

NODES_INTERVAL = 2.0
"""Seconds between two questions for the status of the nodes."""


class Control:
    """Commands for one SuperLink.

    Parameters
    ----------
    folder
        Working folder: ``nodes/<name>.json`` says which node has which key.
    address
        Address ``host:port`` of SuperLink's Control API.
    root_certificates
        Certificate of the authority that signed SuperLink's.
    """

    def __init__(self, folder: Path, address: str, root_certificates: Path) -> None:
        self._folder = folder.resolve()
        self._records = self._folder / "nodes"
        self._records.mkdir(parents=True, exist_ok=True)
        self._address = address
        self._root_certificates = root_certificates.resolve()
        self._flwr = FlowerCli(
            self._folder / "flwr", address, self._root_certificates, self._folder
        )

    def wait(self, timeout: float) -> None:
        """Wait until SuperLink answers.

        SuperLink opens its database at the first request, which has to be alone; this
        makes it.

        Raises
        ------
        FederationError
            If it does not within `timeout` seconds.
        """
        credentials = grpc.ssl_channel_credentials(self._root_certificates.read_bytes())
        options = [("grpc.enable_http_proxy", 0)]
        with grpc.secure_channel(self._address, credentials, options) as channel:
            list_nodes = channel.unary_unary("/flwr.proto.Control/ListNodes")
            try:
                list_nodes(b"", timeout=timeout, wait_for_ready=True)
            except grpc.RpcError as error:
                raise FederationError(
                    f"SuperLink at {self._address} did not answer within {timeout:.0f} "
                    f"s: {error.details()}"
                ) from None

    def wait_for_nodes(self, names: Sequence[str], timeout: float) -> None:
        """Wait until the named nodes are online.

        Raises
        ------
        FederationError
            If they are not within `timeout` seconds; it says what each one is.
        """
        deadline = time.monotonic() + timeout
        while True:
            nodes = self.nodes()
            missing = [
                f"{name} ({nodes[name]['status'] if name in nodes else 'unregistered'})"
                for name in names
                if name not in nodes or nodes[name]["status"] != "online"
            ]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise FederationError(
                    f"not online after {timeout:.0f} s: {', '.join(missing)}; their "
                    "logs tell why"
                )
            time.sleep(NODES_INTERVAL)

    def register(self, name: str, public_key: Path) -> dict[str, Any]:
        """Register a node's key and remember it under `name`.

        Returns
        -------
        dict
            ``changed`` and the ``node-id``.

        Raises
        ------
        FederationError
            If another key is registered under that name, or SuperLink refuses the key,
            as it does for one that was revoked.
        """
        key = " ".join(public_key.read_text(encoding="utf-8").split()[:2])
        record = self._records / f"{name}.json"
        if record.exists():
            known = json.loads(record.read_text(encoding="utf-8"))
            if known["public-key"] != key:
                raise FederationError(
                    f"node {name} is registered with another key: revoke that first"
                )
            return {"changed": False, "node-id": known["node-id"]}
        answer = self._flwr.ask(
            "supernode", "register", str(public_key), self._flwr.CONNECTION
        )
        node = {"node-id": str(answer["node-id"]), "public-key": key}
        record.write_text(json.dumps(node), encoding="utf-8")
        return {"changed": True, "node-id": node["node-id"]}

    def revoke(self, name: str) -> dict[str, Any]:
        """Unregister the named node; SuperLink never takes its key again.

        Returns
        -------
        dict
            ``changed``: false where no node of that name is registered.
        """
        record = self._records / f"{name}.json"
        if not record.exists():
            return {"changed": False}
        node_id = json.loads(record.read_text(encoding="utf-8"))["node-id"]
        if node_id in self._statuses():
            self._flwr.ask("supernode", "unregister", node_id, self._flwr.CONNECTION)
        record.unlink()
        return {"changed": True}

    def nodes(self) -> dict[str, dict[str, str]]:
        """Return ``node-id`` and ``status`` per registered name."""
        statuses = self._statuses()
        return {
            record.stem: {
                "node-id": (node_id := json.loads(record.read_text())["node-id"]),
                "status": statuses.get(node_id, "unknown to SuperLink"),
            }
            for record in sorted(self._records.glob("*.json"))
        }

    def _statuses(self) -> dict[str, str]:
        answer = self._flwr.ask("supernode", "list", self._flwr.CONNECTION)
        return {
            str(node["node-id"]): str(node["status"])
            for node in answer["nodes"]
            if node["status"] != "unregistered"
        }

    def runs(self) -> dict[str, str]:
        """Return the status per run that has not ended."""
        answer = self._flwr.ask("list", self._flwr.CONNECTION)
        return {
            str(run["run-id"]): str(run["status"])
            for run in answer["runs"]
            if not str(run["status"]).startswith("finished")
        }

    def stop(self, run_id: str) -> dict[str, Any]:
        """Stop a run; the rounds that it has finished stay.

        Returns
        -------
        dict
            ``changed``: false where no run of that number goes on.
        """
        if run_id not in self.runs():
            return {"changed": False}
        self._flwr.ask("stop", run_id, self._flwr.CONNECTION)
        return {"changed": True}

    def run(self, app: Path, run_config: str, timeout: float) -> bool:
        """Run an app, show its log, and return whether it succeeded."""
        log = self._folder / "logs" / f"run-{time.strftime('%Y%m%d-%H%M%S')}.log"
        given = Path(run_config) if run_config.endswith(".toml") else run_config
        try:
            result = FederationRun(self._flwr, app, given, log).wait(timeout)
        finally:
            stop_all(self._flwr.groups)
        print(f"Run {result.run_id}: {result.status}, {result.seconds:.0f} s")
        return result.succeeded


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        control = Control(options.folder, options.address, options.root_certificates)
        if options.command == "wait":
            control.wait(options.timeout)
            if options.nodes:
                control.wait_for_nodes(options.nodes, options.timeout)
        elif options.command == "run":
            app, config = options.app, options.run_config
            return 0 if control.run(app, config, options.timeout) else 1
        elif options.command == "register":
            print(json.dumps(control.register(options.name, options.public_key)))
        elif options.command == "revoke":
            print(json.dumps(control.revoke(options.name)))
        elif options.command == "stop":
            print(json.dumps(control.stop(options.run_id)))
        else:
            answer = control.nodes() if options.command == "nodes" else control.runs()
            print(json.dumps(answer))
    except (FederationError, OSError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Left; what was started goes on.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.control", description="Tell a SuperLink what to do."
    )
    parser.add_argument("--folder", type=Path, default=Path(), help="working folder")
    parser.add_argument(
        "--address", default="127.0.0.1:9093", help="SuperLink's Control API"
    )
    parser.add_argument("--root-certificates", type=Path, required=True)
    commands = parser.add_subparsers(dest="command", required=True)
    wait = commands.add_parser("wait", help="wait until SuperLink answers")
    wait.add_argument("--timeout", type=float, default=60.0, help="in seconds")
    wait.add_argument(
        "--nodes", nargs="+", default=[], metavar="NAME", help="nodes to be online"
    )
    register = commands.add_parser("register", help="register a node's public key")
    register.add_argument("name")
    register.add_argument("public_key", type=Path)
    revoke = commands.add_parser("revoke", help="take a node's key back, for good")
    revoke.add_argument("name")
    commands.add_parser("nodes", help="list the registered nodes")
    commands.add_parser("runs", help="list the runs that have not ended")
    stop = commands.add_parser("stop", help="stop a run")
    stop.add_argument("run_id", metavar="RUN_ID", help="as `runs` lists it")
    run = commands.add_parser("run", help="run an app and wait for its end")
    run.add_argument("--app", type=Path, required=True, help="folder of the app")
    run.add_argument("--run-config", default="", metavar="'KEY=VALUE ...' | FILE.toml")
    run.add_argument(
        "--timeout", type=float, default=7 * 86400.0, help="longest run, in seconds"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
