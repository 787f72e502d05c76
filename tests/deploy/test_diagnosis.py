from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.diagnosis import annotate, explain

REPOSITORY = Path(__file__).parents[2]

# As Flower 1.26.1 with grpcio 1.7x writes them.
HANDSHAKE = (
    "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL "
    "routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: {}: OK"
)
FAILED = "WARNING :   Connection attempt failed, retrying in 0.61 seconds\n"


@pytest.mark.parametrize(
    ("log", "meaning"),
    [
        (HANDSHAKE.format("certificate has expired"), "has expired: make a new one"),
        (HANDSHAKE.format("certificate is not yet valid"), "clock"),
        (
            HANDSHAKE.format("unable to get local issuer certificate"),
            "copy the federation's ca.pem",
        ),
        ("Hostname Verification Check failed.", "does not name the address"),
        ("OPENSSL_internal:WRONG_VERSION_NUMBER", "one side speaks TLS"),
        (
            "Activation failed: No SuperNode found with the given public key.",
            "flwr supernode register",
        ),
        ('details = "Invalid node ID"', "was revoked"),
        ('details = "Invalid timestamp"', "5 minutes"),
        ("SuperNode with node ID 5 could not be activated.", "after 60 s"),
        ("Failed to receive message 4f: ...", "start it again"),
        ("status = StatusCode.RESOURCE_EXHAUSTED", "larger than gRPC's limit"),
        ("Port 9092 is already in use", "another process uses the port"),
        (3 * FAILED, "python -m deploy.preflight"),
    ],
)
def test_a_known_failure_has_one_meaning(log: str, meaning: str) -> None:
    [found] = explain(f"INFO : Starting\n{log}\nmore")
    assert meaning in found


def test_a_log_without_failures_means_nothing() -> None:
    assert explain("INFO :      SuperNode ID: 13\nINFO :      Sent successfully") == []
    assert explain(2 * FAILED) == []
    assert explain(3 * FAILED + "Connection successful after 8.29 seconds") == []


def test_each_failure_is_explained_once_until_the_node_recovers() -> None:
    lines = [
        *(4 * [FAILED]),
        "INFO :      Connection successful after 8.29 seconds and 5 tries.\n",
        *(3 * [FAILED]),
    ]
    told = list(annotate(lines))
    assert [line for line in told if not line.startswith(">>>")] == lines
    assert [i for i, line in enumerate(told) if line.startswith(">>>")] == [3, 9]


def test_as_a_filter() -> None:
    log = "INFO : Starting\ndetails = Invalid node ID\nend"
    command = [sys.executable, "-m", "deploy.diagnosis"]
    done = subprocess.run(
        command, input=log, capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    first, second, third, last = done.stdout.splitlines()
    assert (first, second, last) == tuple(log.splitlines())
    assert third.startswith(">>> SuperLink knows this SuperNode no more")
