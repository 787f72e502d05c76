"""A whole federation on this machine: TLS, node authentication, real processes.

As a program it runs the app in the current folder::

    python -m deploy.federation --nodes 3 --run-config "method='xfed'"

SuperLink and every SuperNode run as they would on machines of their own, over gRPC with
TLS and authenticated by key; only certificates, keys, ports and folders are made up on
the spot. The working folder holds

=================  =================================================================
``runs/``          results, as a relative ``output-dir`` counts from here
``nodes/<name>/``  working folder of the node
``logs/``          a log per process and run
``flower/``        keys, database and Flower's own folders, made anew at every start
=================  =================================================================

Everything ends with this program, also on an error, Ctrl-C or SIGTERM. After a
``kill -9`` of this program SuperLink and SuperNodes go on; ``flower/pids`` lists their
process groups, which ``kill -- -PID`` ends.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from common.signals import exit_on_signals
from deploy.certificates import (
    create_authority,
    create_node_keys,
    create_server_certificate,
)
from deploy.flower_cli import (
    EXECUTABLES,
    FlowerCli,
    flower_environment,
    format_config,
)
from deploy.nodes import NodeSpec, numbered_nodes
from deploy.preflight import check_connection
from deploy.processes import (
    FederationError,
    ProcessGroup,
    exclusive_folder,
    reserve_port,
    stop_all,
    uninterrupted,
)
from deploy.runs import FederationRun, RunConfig, RunResult
from deploy.workdir import check_places, renew_flower_folder

__all__ = ["FederationError", "LocalFederation", "NodeSpec", "RunResult"]

HOST = "127.0.0.1"


class LocalFederation:
    """SuperLink and SuperNodes as processes of this machine; a context manager.

    Parameters
    ----------
    app
        Folder of the Flower app.
    nodes
        The SuperNodes.
    workdir
        Working folder as the module describes it, outside `app`; made if absent.
    start_timeout
        Seconds that SuperLink or a SuperNode may take to start.

    Attributes
    ----------
    node_ids
        Flower's node id per node name. It belongs to the key and stays the same when a
        node or SuperLink starts again.

    Raises
    ------
    ValueError
        If the arguments or the installation cannot make a federation.
    FederationError
        On entering, if a process does not start or another federation uses `workdir`.
    """

    def __init__(
        self,
        app: Path,
        nodes: Sequence[NodeSpec],
        workdir: Path,
        *,
        start_timeout: float = 60.0,
    ) -> None:
        self.app = app.resolve()
        self.workdir = workdir.resolve()
        self.node_ids: dict[str, int] = {}
        self._nodes: dict[str, NodeSpec] = {}
        self._first_nodes = list(nodes)
        self._start_timeout = start_timeout
        self._groups: dict[str, ProcessGroup] = {}
        self._flower = self.workdir / "flower"
        self._keys = self._flower / "keys"
        self._run_count = 0
        check_places(self.app, self.workdir)
        self._check_names(nodes)
        if not (EXECUTABLES / "flower-superlink").exists():
            raise ValueError(
                f"{EXECUTABLES} has no flower-superlink; use the Python of the "
                "environment in which Flower is installed"
            )

    def _check_names(self, nodes: Sequence[NodeSpec]) -> None:
        names = [*self._nodes, *(node.name for node in nodes)]
        if len(set(names)) < len(names):
            raise ValueError(f"node names must differ, got {names}")

    def __enter__(self) -> LocalFederation:
        """Make certificates and keys, start and register everything."""
        with ExitStack() as stack:
            stack.enter_context(exit_on_signals())
            self._start(stack)
            self._exit_stack = stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every process."""
        self._exit_stack.close()

    def _start(self, stack: ExitStack) -> None:
        stack.enter_context(exclusive_folder(self.workdir))
        self._pids = renew_flower_folder(self._flower)
        authority = create_authority(self._keys, valid_days=30)
        create_server_certificate(
            self._keys, authority, ["localhost", HOST], valid_days=30
        )
        self._root_certificates = authority.public
        self._addresses: dict[str, str] = {}
        self._reservations = stack.enter_context(ExitStack())
        for server in ("control", "fleet", "serverappio"):
            self._reserve(server)
        self._flwr = FlowerCli(
            self._flower / "cli",
            self._addresses["control"],
            self._root_certificates,
            self.workdir,
        )
        stack.callback(self._stop)
        self._start_superlink()
        self.add_nodes(self._first_nodes)

    def _reserve(self, server: str) -> None:
        port, reservation = reserve_port(HOST)
        self._reservations.callback(reservation.close)
        self._addresses[server] = f"{HOST}:{port}"

    def _stop(self) -> None:
        with uninterrupted():
            # SuperLink last: the nodes take their leave of it.
            superlink = self._groups.pop("superlink", None)
            stop_all([*self._flwr.groups, *self._groups.values()])
            stop_all([superlink] if superlink else [])
            self._groups.clear()

    def _start_group(
        self,
        name: str,
        command: list[str],
        log: Path,
        cwd: Path,
        prefix: Sequence[str] = (),
    ) -> ProcessGroup:
        cwd.mkdir(parents=True, exist_ok=True)
        group = self._groups[name] = ProcessGroup(
            f"{command[0]} {name}",
            [*prefix, str(EXECUTABLES / command[0]), *command[1:]],
            log=log,
            cwd=cwd,
            env=flower_environment(self._flower / "homes" / name),
        )
        with self._pids.open("a", encoding="utf-8") as file:
            file.write(f"{name} {group.pid}\n")
        return group

    # --- SuperLink ---

    def _start_superlink(self) -> None:
        superlink = self._start_group(
            "superlink",
            [
                "flower-superlink",
                f"--ssl-ca-certfile={self._root_certificates}",
                f"--ssl-certfile={self._keys / 'server.pem'}",
                f"--ssl-keyfile={self._keys / 'server.key'}",
                "--enable-supernode-auth",
                f"--database={self._flower / 'state.db'}",
                f"--control-api-address={self._addresses['control']}",
                f"--fleet-api-address={self._addresses['fleet']}",
                f"--serverappio-api-address={self._addresses['serverappio']}",
            ],
            log=self.workdir / "logs" / "superlink.log",
            cwd=self.workdir,
        )
        self._flwr.wait_until_ready(superlink, self._start_timeout)

    def restart_superlink(self, signum: signal.Signals = signal.SIGTERM) -> None:
        """End SuperLink with `signum` and start it again, same ports and database.

        A run in progress fails with it. SuperNodes connect again by themselves, except
        where the first request of one meets SuperLink while it opens its database: that
        SuperNode ends, which :meth:`alive` tells, and needs :meth:`start_node`.
        """
        self._groups["superlink"].stop(signum)
        self._start_superlink()

    # --- SuperNodes ---

    @property
    def fleet_address(self) -> tuple[str, int]:
        """Host and port where SuperLink listens for SuperNodes."""
        host, _, port = self._addresses["fleet"].rpartition(":")
        return host, int(port)

    def add_nodes(self, nodes: Sequence[NodeSpec]) -> None:
        """Register and start further SuperNodes, also while a run goes on.

        Raises
        ------
        ValueError
            If a name is taken.
        FederationError
            If a node does not start.
        """
        self._check_names(nodes)
        for node in nodes:
            self._nodes[node.name] = node
            self._reserve(node.name)
        self._register([node.name for node in nodes])
        for node in nodes:
            self._spawn_node(node.name)
        for node in nodes:
            self._wait_for_node(node.name)

    def _register(self, names: Sequence[str]) -> None:
        commands = {}
        for name in names:
            public_key = create_node_keys(self._keys, f"node-{name}").public
            commands[name] = self._flwr.start(
                *("supernode", "register", str(public_key), self._flwr.CONNECTION),
                *("--format", "json"),
                log=self._node_log(name),
            )
        for name, command in commands.items():
            self.node_ids[name] = int(self._flwr.answer(command)["node-id"])

    def _node_log(self, name: str) -> Path:
        return self.workdir / "logs" / "nodes" / f"{name}.log"

    def _spawn_node(self, name: str) -> None:
        node = self._nodes[name]
        command = [
            "flower-supernode",
            f"--superlink={node.superlink or self._addresses['fleet']}",
            f"--root-certificates={node.root_certificates or self._root_certificates}",
            f"--auth-supernode-private-key={self._keys / f'node-{name}'}",
            f"--clientappio-api-address={self._addresses[name]}",
        ]
        if node.config:
            command.append(f"--node-config={format_config(node.config)}")
        cwd = self.workdir / "nodes" / name
        log = self._node_log(name)
        self._start_group(name, command, log=log, cwd=cwd, prefix=node.prefix)

    def _wait_for_node(self, name: str) -> None:
        try:
            self._groups[name].wait_for_output(
                f"SuperNode ID: {self.node_ids[name]}", self._start_timeout
            )
        except FederationError as error:
            node = self._nodes[name]
            problems = check_connection(
                node.superlink or self._addresses["fleet"],
                node.root_certificates or self._root_certificates,
            )
            raise FederationError("\n".join([*problems, str(error)])) from None

    def start_node(self, name: str, timeout: float = 120.0) -> None:
        """Start an ended node again and wait until SuperLink has taken it in.

        A node that went without taking its leave (``kill -9``) counts as online until
        its heartbeat is overdue, 60 s, and SuperLink refuses it until then. The start
        is repeated for `timeout` seconds, as a service manager would.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._groups[name].stop()
            self._spawn_node(name)
            try:
                return self._wait_for_node(name)
            except FederationError:
                refused = "could not be activated" in self._groups[name].output()
                if not refused or time.monotonic() > deadline:
                    raise
                time.sleep(2)

    def revoke_node(self, name: str) -> None:
        """Revoke a node's key, as an operator does: SuperLink knows it no more."""
        node_id = str(self.node_ids[name])
        self._flwr.ask("supernode", "unregister", node_id, self._flwr.CONNECTION)

    def stop_node(self, name: str, signum: signal.Signals = signal.SIGTERM) -> None:
        """End a node with `signum`, and its ClientApp with it."""
        self._groups[name].stop(signum)

    def online_nodes(self) -> list[str]:
        """Ask SuperLink for the nodes that it takes for online."""
        answer = self._flwr.ask("supernode", "list", self._flwr.CONNECTION)
        online = {n["node-id"] for n in answer["nodes"] if n["status"] == "online"}
        return [name for name, key in self.node_ids.items() if str(key) in online]

    def alive(self) -> dict[str, bool]:
        """Return for ``superlink`` and every node whether its process runs."""
        return {name: group.alive for name, group in self._groups.items()}

    # --- Runs ---

    def start_run(self, run_config: RunConfig = "") -> FederationRun:
        """Submit a run and return without waiting for its end.

        Parameters
        ----------
        run_config
            Overrides of the app's configuration.

        Raises
        ------
        FederationError
            If the run cannot be submitted.
        """
        self._run_count += 1
        log = self.workdir / "logs" / f"run-{self._run_count}.log"
        return FederationRun(self._flwr, self.app, run_config, log)

    def run(
        self,
        run_config: RunConfig = "",
        *,
        timeout: float = 3600.0,
        echo: bool = True,
    ) -> RunResult:
        """Run the app and wait for its end, see :class:`FederationRun`.

        A run that fails raises nothing: ask the result.
        """
        return self.start_run(run_config).wait(timeout, echo=echo)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, 1 if a run failed."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.federation",
        description="Run the Flower app as a federation of processes on this machine.",
    )
    parser.add_argument("--app", type=Path, default=Path(), help="folder of the app")
    parser.add_argument("--nodes", type=int, default=3, help="number of SuperNodes")
    parser.add_argument(
        "--workdir", type=Path, help="working folder (default: a temporary folder)"
    )
    parser.add_argument(
        "--run-config",
        action="append",
        metavar="'KEY=VALUE ...' | FILE.toml",
        help="settings of a run; given several times: several runs after one another",
    )
    parser.add_argument(
        "--timeout", type=float, default=3600.0, help="longest run, in seconds"
    )
    options = parser.parse_args(arguments)
    workdir = options.workdir or Path(tempfile.mkdtemp(prefix="federation-"))
    print("Starting a SuperLink with TLS and nodes with keys of their own ...")
    failed = False
    try:
        with LocalFederation(
            options.app, numbered_nodes(options.nodes, workdir), workdir
        ) as federation:
            print(f"{options.nodes} nodes are online; logs: {workdir / 'logs'}")
            for run_config in options.run_config or [""]:
                if run_config.endswith(".toml"):
                    run_config = Path(run_config)
                result = federation.run(run_config, timeout=options.timeout)
                print(f"Run {result.run_id}: {result.status}, {result.seconds:.1f} s")
                failed = failed or not result.succeeded
    except (FederationError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; every process was ended.", file=sys.stderr)
        return 130
    print(f"Results: {workdir / 'runs'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
