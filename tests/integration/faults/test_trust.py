"""Certificates and keys that do not fit: both sides learn what to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from relay import Relay
from watched_run import ROOT, wait_until

from deploy.certificates import KeyFiles, create_authority, create_server_certificate
from deploy.diagnosis import explain
from deploy.federation import FederationError, LocalFederation, NodeSpec
from deploy.preflight import check_server_files

pytestmark = [pytest.mark.integration, pytest.mark.faults]

Report = Callable[[str, str, float | None], None]
CONFIG = {"partition-id": 0, "num-partitions": 1}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    workdir = tmp_path_factory.mktemp("federation")
    with LocalFederation(ROOT, [], workdir, start_timeout=60) as running:
        yield running


def authority(federation: LocalFederation) -> KeyFiles:
    keys = federation.workdir / "flower" / "keys"
    return KeyFiles(keys / "ca.key", keys / "ca.pem")


def refusal(federation: LocalFederation, spec: NodeSpec) -> tuple[str, float]:
    """Return the first line of the error with which a node does not start."""
    start = time.monotonic()
    with pytest.raises(FederationError) as raised:
        federation.add_nodes([spec])
    assert federation.online_nodes() == []
    return str(raised.value).splitlines()[0], time.monotonic() - start


def test_wrong_authority(
    federation: LocalFederation, tmp_path: Path, report: Report
) -> None:
    stranger = create_authority(tmp_path)
    spec = NodeSpec("stranger", CONFIG, root_certificates=stranger.public)
    told, seconds = refusal(federation, spec)
    assert "not signed by the authority in" in told
    assert "copy ca.pem from the server" in told
    log = (federation.workdir / "logs" / "nodes" / "stranger.log").read_text()
    [meaning] = explain(log)
    assert "--root-certificates" in meaning
    # The server's own files are sound, and the check says so.
    keys = federation.workdir / "flower" / "keys"
    files = (keys / "ca.pem", keys / "server.pem", keys / "server.key")
    assert check_server_files(*files, ["127.0.0.1"]) == []
    report("wrong CA on a node", f"node does not start: {meaning}", seconds)


def test_expired_certificate(
    federation: LocalFederation, tmp_path: Path, report: Report
) -> None:
    old = create_server_certificate(
        tmp_path, authority(federation), ["127.0.0.1"], valid_days=0
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    pair = (old.private.read_bytes(), old.public.read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        spec = NodeSpec("late", CONFIG, superlink=f"127.0.0.1:{port}")
        told, seconds = refusal(federation, spec)
    finally:
        server.stop(None)
    assert "expired on" in told
    assert "make a new one and start SuperLink" in told
    log = (federation.workdir / "logs" / "nodes" / "late.log").read_text()
    [meaning] = explain(log)
    assert "has expired" in meaning
    ca = authority(federation).public
    [problem] = check_server_files(ca, old.public, old.private, ["127.0.0.1"])
    assert "expired on" in problem
    report("expired certificate", f"node does not start: {meaning}", seconds)


@pytest.mark.skipif(sys.platform != "linux", reason="needs the address 127.0.0.2")
def test_host_not_in_the_certificate(
    federation: LocalFederation, report: Report
) -> None:
    federation._start_timeout = 20  # Flower tries for ever
    with Relay(federation.fleet_address, host="127.0.0.2") as relay:
        spec = NodeSpec("misled", CONFIG, superlink="{}:{}".format(*relay.address))
        told, seconds = refusal(federation, spec)
        federation.stop_node("misled")
    federation._start_timeout = 60
    assert "names localhost, 127.0.0.1 and not 127.0.0.2" in told
    keys = federation.workdir / "flower" / "keys"
    files = (keys / "ca.pem", keys / "server.pem", keys / "server.key")
    [problem] = check_server_files(*files, ["127.0.0.2"])
    assert "and not 127.0.0.2" in problem
    report(
        "host name not in the certificate",
        "node does not connect: the certificate names localhost, 127.0.0.1 and not "
        "127.0.0.2",
        seconds,
    )


def test_unregistered_and_revoked_key(
    federation: LocalFederation, report: Report
) -> None:
    federation.add_nodes([NodeSpec("guest", CONFIG)])
    log = federation.workdir / "logs" / "nodes" / "guest.log"
    start = time.monotonic()
    federation.revoke_node("guest")
    wait_until(lambda: "Invalid node ID" in log.read_text(), "the node goes on")
    seconds = time.monotonic() - start
    [meaning] = explain(log.read_text())
    assert "its key was revoked" in meaning
    assert "flwr supernode register KEY.pub" in meaning
    assert federation.online_nodes() == []
    report("revoked key", f"node is turned down: {meaning}", seconds)

    start = time.monotonic()
    with pytest.raises(FederationError) as raised:
        federation.start_node("guest")
    seconds = time.monotonic() - start
    assert "is not registered with SuperLink" in str(raised.value)
    server = (federation.workdir / "logs" / "superlink.log").read_text()
    [meaning] = explain(server)
    assert "flwr supernode register KEY.pub" in meaning
    report("unregistered key", f"node does not start; both logs: {meaning}", seconds)
