"""Several hosts on one machine: each with systemd, sshd and an address of its own.

A host is a systemd container in a network namespace. Its root is this machine's, with
an overlay in memory on top, so it has this machine's system and a disk of its own. All
are linked to a bridge in a further namespace, the hub, where the controller is. Nothing
of it is reachable from outside, and nothing changes on this machine itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

NETWORK = "10.231.77"
TOOLS = {
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "systemd-nspawn": "systemd-container",
    "logrotate": "logrotate",
}


def missing() -> str | None:
    """Return what this machine lacks for such hosts, or None."""
    if os.uname().sysname != "Linux" or os.geteuid() != 0:
        return "needs root on Linux, for network namespaces and containers"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    lacking = sorted(
        p for tool, p in TOOLS.items() if not shutil.which(tool, path=path)
    )
    return f"needs: apt-get install {' '.join(lacking)}" if lacking else None


def call(*command: str | Path, **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


class Machines:
    """The hosts; a context manager.

    Parameters
    ----------
    names
        Host names; ``names[i]`` gets the address ``10.231.77.(i + 10)``.
    shared
        Folder of this machine that every host sees, at the same place, as its own: what
        it writes there stays on that host.
    """

    def __init__(self, names: Sequence[str], shared: dict[Path, str]) -> None:
        self.addresses = {name: f"{NETWORK}.{10 + i}" for i, name in enumerate(names)}
        self._shared = shared
        self._tag = f"fl{os.getpid()}"
        self.hub = f"{self._tag}-hub"
        self._stack = ExitStack()

    def __enter__(self) -> Machines:
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="test-hosts-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            call("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", self.folder)
            stack.callback(subprocess.run, ["umount", "-l", str(self.folder)])
            self.key = self.folder / "id"
            call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key)
            self._make_hub(stack)
            for name in self.addresses:
                self._make_network(name, stack)
                self._boot(name, stack)
            for name in self.addresses:
                self._wait_for_ssh(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _namespace(self, name: str, stack: ExitStack) -> str:
        namespace = f"{self._tag}-{name}"
        call("ip", "netns", "add", namespace)
        stack.callback(subprocess.run, ["ip", "netns", "del", namespace])
        call("ip", "-n", namespace, "link", "set", "lo", "up")
        return namespace

    def _make_hub(self, stack: ExitStack) -> None:
        hub = self._namespace("hub", stack)
        call("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", hub, "address", "add", f"{NETWORK}.1/24", "dev", "bridge")
        call("ip", "-n", hub, "link", "set", "bridge", "up")

    def _make_network(self, name: str, stack: ExitStack) -> None:
        host = self._namespace(name, stack)
        ends = ["link", "add", name, "type", "veth", "peer", "name", "eth0"]
        call("ip", "-n", self.hub, *ends, "netns", host)
        call("ip", "-n", self.hub, "link", "set", name, "master", "bridge", "up")
        address = f"{self.addresses[name]}/24"
        call("ip", "-n", host, "address", "add", address, "dev", "eth0")
        call("ip", "-n", host, "link", "set", "eth0", "up")

    def _boot(self, name: str, stack: ExitStack) -> None:
        here = self.folder / name
        root = here / "root"
        for folder in ("root", "upper", "work"):
            (here / folder).mkdir(parents=True)
        layers = f"lowerdir=/,upperdir={here}/upper,workdir={here}/work"
        call("mount", "-t", "overlay", "overlay", "-o", layers, root)
        stack.callback(subprocess.run, ["umount", "-l", str(root)])
        self._prepare(root)
        overlays = []
        for number, (source, target) in enumerate(self._shared.items()):
            layer = here / f"shared-{number}"
            layer.mkdir()
            (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
            overlays.append(f"--overlay={source}:{layer}:{target}")
        with (self.folder / f"{name}.log").open("wb") as log:
            container = subprocess.Popen(
                [
                    *("systemd-nspawn", "--quiet", "--boot", "--register=no"),
                    *("--keep-unit", "--console=pipe", "--link-journal=no"),
                    *(f"--machine={self._tag}-{name}", f"--hostname={name}"),
                    f"--directory={root}",
                    f"--network-namespace-path=/run/netns/{self._tag}-{name}",
                    *overlays,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        stack.callback(self._power_off, container)

    def _prepare(self, root: Path) -> None:
        """Leave nothing of this machine's services but sshd, and let the key in."""
        wanted = root / "etc/systemd/system/multi-user.target.wants"
        for unit in wanted.iterdir():
            if unit.name != "ssh.service":
                unit.unlink()
        names = [f"{address} {name}" for name, address in self.addresses.items()]
        hosts = "\n".join(["127.0.0.1 localhost", *names, ""])
        (root / "etc/hosts").write_text(hosts, encoding="utf-8")
        (root / "etc/hostname").write_text(f"{root.parent.name}\n", encoding="utf-8")
        ssh = root / "root/.ssh"
        ssh.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(f"{self.key}.pub", ssh / "authorized_keys")
        (ssh / "authorized_keys").chmod(0o600)

    def _power_off(self, container: subprocess.Popen[bytes]) -> None:
        container.terminate()
        try:
            container.wait(20)
        except subprocess.TimeoutExpired:
            container.kill()
            container.wait()

    def _wait_for_ssh(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while self.ssh(name, "true", check=False).returncode:
            if time.monotonic() > deadline:
                log = (self.folder / f"{name}.log").read_text(errors="replace")
                raise TimeoutError(f"{name} does not answer; it said:\n{log[-3000:]}")
            time.sleep(1)

    @property
    def ssh_options(self) -> list[str]:
        known = f"UserKnownHostsFile={self.folder}/known_hosts"
        return [
            *("-i", str(self.key), "-o", "StrictHostKeyChecking=accept-new"),
            *("-o", known, "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=5"),
        ]

    def on_hub(
        self, *command: str, check: bool = True, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of this machine where the hosts can be reached."""
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            ["ip", "netns", "exec", self.hub, *command],
            check=check,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options},
        )

    def ssh(
        self, name: str, command: str, *, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, as root."""
        target = f"root@{self.addresses[name]}"
        return self.on_hub("ssh", *self.ssh_options, target, command, check=check)

    def cut(self, name: str) -> None:
        """Cut the link of a host."""
        call("ip", "-n", self.hub, "link", "set", name, "down")

    def mend(self, name: str) -> None:
        """Mend the link of a host."""
        call("ip", "-n", self.hub, "link", "set", name, "up")
