"""The federation's certificates, kept on the machine that sets it up.

``python -m deploy.pki FOLDER --hosts server 10.0.0.1`` makes what is missing in the
folder: a certificate authority (``ca.pem``, ``ca.key``) and SuperLink's certificate,
signed by it for every name and address (``server.pem``, ``server.key``). The latter is
made anew where a host is missing in it or its end is near; nodes go on trusting it,
since the authority stays. It prints ``{"changed": true, "expires": "2027-11-29"}``.

``python -m deploy.pki FOLDER --node NAME`` makes a node's key pair, ``NAME`` and
``NAME.pub``, where it is missing: on the node, which alone needs the private half.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from deploy.certificates import (
    KeyFiles,
    create_authority,
    create_node_keys,
    create_server_certificate,
)


def ensure_certificates(
    folder: Path,
    hosts: Sequence[str],
    *,
    valid_days: int = 365,
    renew_days: int = 30,
) -> bool:
    """Make the authority and SuperLink's certificate where they are missing or old.

    Parameters
    ----------
    folder
        Folder for the files.
    hosts
        Every DNS name and IP address under which SuperLink is reached.
    valid_days
        Days until a new certificate of SuperLink expires.
    renew_days
        A certificate that expires within so many days is replaced.

    Returns
    -------
    bool
        Whether SuperLink's certificate is a new one.

    Raises
    ------
    ValueError
        If `hosts` is empty, or the authority expires before the new certificate.
    FileNotFoundError
        If one of the authority's two files is gone.
    """
    authority = KeyFiles(folder / "ca.key", folder / "ca.pem")
    present = [path for path in (authority.private, authority.public) if path.exists()]
    if not present:
        create_authority(folder)
    elif len(present) == 1:
        raise FileNotFoundError(
            f"{present[0]} is there without its other half; bring back the pair from a "
            "backup, or move it away for a new authority, which every node has to get"
        )
    server = KeyFiles(folder / "server.key", folder / "server.pem")
    if not _is_old(server, authority, hosts, renew_days):
        return False
    _require_lasting(authority, valid_days)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        new = create_server_certificate(
            Path(scratch), authority, hosts, valid_days=valid_days
        )
        os.replace(new.private, server.private)
        os.replace(new.public, server.public)
    return True


def ensure_node_keys(folder: Path, name: str) -> bool:
    """Make a node's key pair where it is missing.

    Returns
    -------
    bool
        Whether the pair is a new one.

    Raises
    ------
    FileNotFoundError
        If one of the two files is gone.
    """
    halves = (folder / name, folder / f"{name}.pub")
    present = [path for path in halves if path.exists()]
    if len(present) == 1:
        raise FileNotFoundError(
            f"{present[0]} is there without its other half; remove it for a new pair, "
            "which has to be registered"
        )
    if not present:
        create_node_keys(folder, name)
    return not present


def _is_old(
    server: KeyFiles, authority: KeyFiles, hosts: Sequence[str], renew_days: int
) -> bool:
    if not (server.private.exists() and server.public.exists()):
        return True
    certificate = _load(server.public)
    key = serialization.load_pem_private_key(server.private.read_bytes(), None)
    try:
        certificate.verify_directly_issued_by(_load(authority.public))
    except (InvalidSignature, TypeError, ValueError):
        return True
    if certificate.public_key() != key.public_key():  # interrupted between two files
        return True
    if _days_left(certificate) < renew_days:
        return True
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    held = {_normal(str(name.value)) for name in names.value}
    return not held.issuperset(_normal(host) for host in hosts)


def _require_lasting(authority: KeyFiles, valid_days: int) -> None:
    left = _days_left(_load(authority.public))
    if left < valid_days:
        raise ValueError(
            f"{authority.public} expires in {left:.0f} days, before a certificate of "
            f"{valid_days} days: ask for fewer days, or move {authority.public} and "
            f"{authority.private} away for a new authority, which every node has to get"
        )


def _load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _days_left(certificate: x509.Certificate) -> float:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (certificate.not_valid_after_utc - now) / datetime.timedelta(days=1)


def _normal(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.pki",
        description="Make or renew the certificates of a federation.",
    )
    parser.add_argument("folder", type=Path, help="folder of the files")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--hosts", nargs="+", help="names and addresses of SuperLink")
    kind.add_argument("--node", metavar="NAME", help="name of a SuperNode's key pair")
    parser.add_argument("--valid-days", type=int, default=365)
    parser.add_argument("--renew-days", type=int, default=30)
    options = parser.parse_args(arguments)
    try:
        if options.node:
            changed = ensure_node_keys(options.folder, options.node)
            print(json.dumps({"changed": changed}))
            return 0
        changed = ensure_certificates(
            options.folder,
            options.hosts,
            valid_days=options.valid_days,
            renew_days=options.renew_days,
        )
    except (OSError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    expires = _load(options.folder / "server.pem").not_valid_after_utc.date()
    print(json.dumps({"changed": changed, "expires": str(expires)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
