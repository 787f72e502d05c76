r"""Checks before a start: the certificate is sound, this machine can connect.

On the machine of a SuperNode, with what it will be started with::

    python -m deploy.preflight node --superlink fl.example.org:9092 \
        --root-certificates ca.pem --auth-supernode-private-key client-0

On the server, with the names under which nodes reach it::

    python -m deploy.preflight superlink --ssl-ca-certfile ca.pem \
        --ssl-certfile server.pem --ssl-keyfile server.key --host fl.example.org

Each problem is one line with its remedy; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

# <openssl/x509_vfy.h>
_NOT_YET_VALID, _EXPIRED, _HOST_MISMATCH, _IP_MISMATCH = 9, 10, 62, 64


def check_connection(
    address: str, root_certificates: Path, timeout: float = 10.0
) -> list[str]:
    """Return why a SuperNode could not connect to SuperLink; empty where it can.

    Parameters
    ----------
    address
        ``host:port`` of SuperLink's Fleet API.
    root_certificates
        Certificate of the authority that the node trusts.
    timeout
        Longest wait for an answer, in seconds.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        return [f"superlink = {address!r}: give host and port, as in host:9092"]
    try:
        context = ssl.create_default_context(cafile=root_certificates)
        context.set_alpn_protocols(["h2"])
    except (OSError, ssl.SSLError) as error:
        return [
            f"{root_certificates} is no certificate of an authority ({error}): copy "
            "the federation's ca.pem to this machine"
        ]
    try:
        with (
            socket.create_connection((host, int(port)), timeout) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return []
    except ssl.SSLCertVerificationError as error:
        return [_refused(host, int(port), root_certificates, error, timeout)]
    except ssl.SSLError as error:
        return [
            f"{address} does not speak TLS ({error.reason}): start SuperLink with "
            "--ssl-certfile and --ssl-keyfile, not with --insecure"
        ]
    except OSError as error:
        return [
            f"{address} cannot be reached ({error}): is SuperLink running, are name "
            "and port right, does a firewall let the port through?"
        ]


def _refused(
    host: str,
    port: int,
    root_certificates: Path,
    error: ssl.SSLCertVerificationError,
    timeout: float,
) -> str:
    certificate = _certificate_of(host, port, timeout)
    if error.verify_code == _EXPIRED:
        return (
            f"the certificate of {host}:{port} expired on "
            f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: make a new one and "
            "start SuperLink with it (or set this machine's clock, if it is ahead)"
        )
    if error.verify_code == _NOT_YET_VALID:
        return (
            f"the certificate of {host}:{port} is valid only from "
            f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: set this "
            "machine's clock"
        )
    if error.verify_code in (_HOST_MISMATCH, _IP_MISMATCH):
        return (
            f"the certificate of {host}:{port} names {', '.join(_names(certificate))} "
            f"and not {host}: use one of these names, or make a certificate that names "
            f"{host} too"
        )
    trusted = x509.load_pem_x509_certificate(root_certificates.read_bytes())
    return (
        f"the certificate of {host}:{port} is not signed by the authority in "
        f"{root_certificates} (SHA-256 {_fingerprint(trusted)}), {error.verify_message}"
        ": copy ca.pem from the server; the same check there prints its SHA-256"
    )


def check_server_files(
    authority: Path, certificate: Path, key: Path, hosts: Sequence[str]
) -> list[str]:
    """Return what is wrong with the files that SuperLink is started with.

    Parameters
    ----------
    authority
        The authority's certificate, as the nodes have it.
    certificate, key
        SuperLink's certificate and private key.
    hosts
        DNS names and IP addresses under which nodes reach SuperLink.
    """
    try:
        root = x509.load_pem_x509_certificate(authority.read_bytes())
        server = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        return [f"a file cannot be read: {error}"]
    problems = []
    now = datetime.datetime.now(datetime.timezone.utc)
    for path, one in ((authority, root), (certificate, server)):
        if one.not_valid_after_utc <= now:
            problems.append(
                f"{path} expired on {one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: make "
                "a new one and start SuperLink again"
            )
        if one.not_valid_before_utc > now:
            problems.append(
                f"{path} is valid only from {one.not_valid_before_utc:%Y-%m-%d %H:%M} "
                "UTC: set this machine's clock"
            )
    try:
        server.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError):
        problems.append(
            f"{certificate} is not signed by {authority}: no node that trusts this "
            "authority will connect; make the certificate with it"
        )
    if private.public_key() != server.public_key():
        problems.append(f"{key} does not belong to {certificate}: give the pair")
    missing = [host for host in hosts if host not in _names(server)]
    if missing:
        problems.append(
            f"{certificate} names {', '.join(_names(server))} and not "
            f"{', '.join(missing)}: nodes that use it are turned down; make a "
            "certificate that names it too"
        )
    return problems


def check_node_key(private_key: Path) -> list[str]:
    """Return what is wrong with a SuperNode's private key file."""
    try:
        key = serialization.load_ssh_private_key(private_key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        return [
            f"{private_key} is no private key in OpenSSH format without password "
            f"({error}): make one with 'ssh-keygen -t ecdsa -b 384 -N \"\"'"
        ]
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return [
            f"{private_key} is no key on a NIST curve, which Flower asks for: make one "
            "with 'ssh-keygen -t ecdsa -b 384 -N \"\"'"
        ]
    return []


def _certificate_of(host: str, port: int, timeout: float) -> x509.Certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only to show what was refused
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), timeout) as connection,
        context.wrap_socket(connection) as secured,
    ):
        return x509.load_der_x509_certificate(secured.getpeercert(True) or b"")


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [
        *names.get_values_for_type(x509.DNSName),
        *(str(a) for a in addresses if isinstance(a, _ADDRESSES)),
    ]


_ADDRESSES = (ipaddress.IPv4Address, ipaddress.IPv6Address)


def _fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, 1 if there is a problem."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.preflight", description="Check TLS before a start."
    )
    sides = parser.add_subparsers(dest="side", required=True)
    node = sides.add_parser("node", help="on the machine of a SuperNode")
    node.add_argument("--superlink", required=True, metavar="HOST:PORT")
    node.add_argument("--root-certificates", required=True, type=Path)
    node.add_argument("--auth-supernode-private-key", type=Path)
    server = sides.add_parser("superlink", help="on the server")
    server.add_argument("--ssl-ca-certfile", required=True, type=Path)
    server.add_argument("--ssl-certfile", required=True, type=Path)
    server.add_argument("--ssl-keyfile", required=True, type=Path)
    server.add_argument("--host", action="append", default=[], help="several times")
    options = parser.parse_args(arguments)
    if options.side == "node":
        problems = check_connection(options.superlink, options.root_certificates)
        if options.auth_supernode_private_key:
            problems += check_node_key(options.auth_supernode_private_key)
    else:
        problems = check_server_files(
            options.ssl_ca_certfile,
            options.ssl_certfile,
            options.ssl_keyfile,
            options.host,
        )
        if not problems:
            root = x509.load_pem_x509_certificate(options.ssl_ca_certfile.read_bytes())
            print(f"SHA-256 of the authority: {_fingerprint(root)}")
    for problem in problems:
        print(f"Problem: {problem}")
    if not problems:
        print("All is well.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
