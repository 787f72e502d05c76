r"""Examine a node from the inside: whether it can take part, and what to do if not.

On the machine of a SuperNode, as the user and with the arguments of its SuperNode::

    python -m deploy.doctor --superlink fl.example.org:9092 \
        --root-certificates ca.pem --auth-supernode-private-key node.key \
        --node-config "client-name='site-3' data-path='/srv/data'"

One line per check; exit code 1 if one failed. Where no SuperNode runs with the key, the
node counts as online for the moment that the check of the registration takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from client_app.memory import host_memory
from client_app.node import NodeConfig
from common.data.files import LAYOUT, find_parts
from common.versions import version_line
from deploy.diagnosis import explain
from deploy.preflight import check_connection, check_node_key

Status = Literal["ok", "warning", "failed"]

GIB = 2**30

GPU_FILES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvmap")
"""Present where the driver of an NVIDIA GPU is, the last two on a Jetson."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    check: str
    status: Status
    message: str
    """The state, or the problem and its remedy."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the SuperNode is started with."""

    superlink: str
    root_certificates: Path
    private_key: Path
    config: NodeConfig
    health_address: str = ""


Outcome = tuple[Status, str]


def check_versions(_: Subject) -> Outcome:
    """Check Python and that every package has what it needs."""
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        return "failed", (
            f"Python {platform.python_version()} is not supported: make the virtual "
            "environment with Python 3.10, 3.11 or 3.12"
        )
    pip = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    answer = subprocess.run(pip, capture_output=True, text=True, check=False)
    if answer.returncode:
        problems = (answer.stdout or answer.stderr).strip().splitlines()[:3]
        return "failed", (
            f"{'; '.join(problems)}: install again with the constraints file"
        )
    return "ok", version_line()


def check_clock(_: Subject) -> Outcome:
    """Check that something keeps the clock right."""
    show = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    try:
        answer = subprocess.run(
            show, capture_output=True, text=True, check=False, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        answer = "unknown"
    if answer == "yes":
        return "ok", "synchronised"
    return "warning", (
        "the clock is not known to be synchronised, and SuperLink refuses a node whose "
        "clock is 5 minutes off: set up NTP (timedatectl set-ntp true, or chrony)"
    )


def check_superlink(node: Subject) -> Outcome:
    """Check that SuperLink is reached under a name in its certificate, over TLS."""
    if problems := check_connection(node.superlink, node.root_certificates):
        return "failed", "; ".join(problems)
    return "ok", f"{node.superlink} answers, certificate and name are right"


def check_key(node: Subject) -> Outcome:
    """Check the private key file and who can read it."""
    if problems := check_node_key(node.private_key):
        return "failed", "; ".join(problems)
    if node.private_key.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        return "failed", (
            f"every user of this machine can read {node.private_key}: revoke it and "
            "make a new one, readable by its owner and the service only"
        )
    return "ok", f"{node.private_key} is an EC key, not open to others"


def check_registration(node: Subject) -> Outcome:
    """Ask SuperLink whether it knows the key, by asking to be let in."""
    import grpc
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.client.grpc_rere_client.node_auth_client_interceptor import (
        NodeAuthClientInterceptor,
    )
    from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
    from flwr.proto.fleet_pb2_grpc import FleetStub
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key = load_ssh_private_key(node.private_key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    public = key.public_key()
    trusted = grpc.ssl_channel_credentials(node.root_certificates.read_bytes())
    with grpc.secure_channel(node.superlink, trusted) as plain:
        signed = grpc.intercept_channel(plain, NodeAuthClientInterceptor(key, public))
        fleet = FleetStub(signed)  # type: ignore[no-untyped-call,unused-ignore]
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(public),
            heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL,
        )
        try:
            answer = fleet.ActivateNode(request, timeout=20)
            fleet.DeactivateNode(
                DeactivateNodeRequest(node_id=answer.node_id), timeout=20
            )
        except grpc.RpcError as error:
            details = str(error.details())
            if "could not be activated" in details:
                return "ok", "registered, and online"
            return "failed", "; ".join(explain(details)) or (
                f"SuperLink answers {error.code().name}, {details}: see its log"
            )
    return "ok", f"registered as node {answer.node_id}, and offline"


def check_service(node: Subject) -> Outcome:
    """Check that the SuperNode runs."""
    from deploy.health import answers

    if not answers(node.health_address):
        return "failed", (
            f"no SuperNode answers at {node.health_address}: look into its log, "
            "then start the service"
        )
    return "ok", "the SuperNode runs"


def check_device(node: Subject) -> Outcome:
    """Compute something on the device that training will use."""
    import torch

    cuda = torch.cuda.is_available()
    name = node.config.device or ("cuda" if cuda else "cpu")
    try:
        device = torch.device(name)
        (torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()
    except (RuntimeError, AssertionError) as error:
        return "failed", (
            f"device {name!r} cannot compute ({str(error).splitlines()[0]}): install a "
            "PyTorch built for it, or give the node another device"
        )
    if device.type == "cuda":
        return "ok", f"{name}: {torch.cuda.get_device_name(device)}"
    if not cuda and (found := [f for f in GPU_FILES if Path(f).exists()]):
        return "warning", (
            f"{found[0]} tells of a GPU, which PyTorch {torch.__version__} cannot use: "
            "install a build for its CUDA version, and let the service's user into the "
            "groups video and render"
        )
    return "ok", f"{name}: {torch.get_num_threads()} threads"


def check_disk(node: Subject) -> Outcome:
    """Check that the folders can be written and have space."""
    state = node.config.state_dir
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = [cache, *([Path(state).expanduser()] if state else [])]
    notes = []
    for folder in folders:
        existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        if not os.access(existing, os.W_OK):
            return "failed", (
                f"{existing} cannot be written: give it to the user of the service"
            )
        free = shutil.disk_usage(existing).free / GIB
        if free < 1:
            return "failed", (
                f"{free:.1f} GiB free at {folder}: a gigabyte is needed, remove old "
                "experiments there"
            )
        notes.append(f"{free:.0f} GiB free at {folder}")
    if not state:
        return "warning", (
            "personal states stay in memory and are lost with the process: set "
            "state-dir in the node configuration"
        )
    return "ok", ", ".join(notes)


def check_memory(_: Subject) -> Outcome:
    """Check that a process with PyTorch fits into memory, a container's limit seen."""
    free = host_memory()
    if free is None:
        return "warning", "this system does not tell: see that 2 GiB are free"
    text = f"{free / GIB:.1f} GiB available"
    if free < 0.75 * GIB:
        return "failed", f"{text}: end other programs, or raise the limit of this one"
    if free < 2 * GIB:
        return "warning", f"{text}: enough for small networks only"
    return "ok", text


def check_data(node: Subject) -> Outcome:
    """Check that the client's own data are there and can be read."""
    if not node.config.data_path:
        return _shared_data(node)
    folder = Path(node.config.data_path).expanduser()
    try:
        parts = find_parts(folder)
        if not any(part.name == "train" for part in parts):
            return "failed", f"{folder} holds no training data: put there {LAYOUT}"
        for path in (path for part in parts for path in part.files):
            with path.open("rb") as file:
                if not file.read(1):
                    return "failed", f"{path} is empty: copy it again"
    except (OSError, ValueError) as error:
        return "failed", f"{error}: let the user of the service read {folder}"
    found = ", ".join(f"{p.name}: {len(p.files)} ({p.format})" for p in parts)
    return "ok", f"files in {folder}, {found}"


def _shared_data(node: Subject) -> Outcome:
    if node.config.partition_id < 0:
        return "failed", (
            "the node configuration has neither data-path (data of its own) nor "
            "partition-id and num-partitions (a part of a common data set)"
        )
    return "ok", f"part {node.config.partition_id} of {node.config.num_partitions}"


_LOCAL: dict[str, Callable[[Subject], Outcome]] = {
    "versions": check_versions,
    "clock": check_clock,
    "device": check_device,
    "disk": check_disk,
    "memory": check_memory,
    "data": check_data,
}


def examine(node: Subject) -> Iterator[Finding]:
    """Yield a finding per check."""
    for name, check in _LOCAL.items():
        yield Finding(name, *check(node))
    yield (superlink := Finding("superlink", *check_superlink(node)))
    yield (key := Finding("key", *check_key(node)))
    if superlink.status == key.status == "ok":
        yield Finding("registration", *check_registration(node))
    if node.health_address:
        yield Finding("service", *check_service(node))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, 1 if a check failed."""
    try:
        node, as_json = _parse(arguments)
    except ValueError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    findings = []
    for finding in examine(node):
        findings.append(finding)
        if not as_json:
            print(f"{finding.status:<8} {finding.check:<13} {finding.message}")
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    return 1 if any(finding.status == "failed" for finding in findings) else 0


def _parse(arguments: Sequence[str] | None) -> tuple[Subject, bool]:
    from flwr.common.config import parse_config_args

    parser = argparse.ArgumentParser(
        prog="python -m deploy.doctor",
        description="Examine a node; further arguments of flower-supernode are "
        "accepted and ignored.",
    )
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--root-certificates", required=True, type=Path)
    parser.add_argument("--auth-supernode-private-key", required=True, type=Path)
    parser.add_argument("--node-config", default="", metavar="'KEY=VALUE ...'")
    parser.add_argument(
        "--health-server-address", default="", help="ask also whether SuperNode runs"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options, _ = parser.parse_known_args(arguments)
    config = parse_config_args([options.node_config]) if options.node_config else {}
    node = Subject(
        options.superlink,
        options.root_certificates,
        options.auth_supernode_private_key,
        NodeConfig.parse(config),
        options.health_server_address,
    )
    return node, options.json


if __name__ == "__main__":
    sys.exit(main())
