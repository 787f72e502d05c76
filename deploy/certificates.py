"""Certificates for TLS and keys for node authentication.

Three kinds of files, all PEM or OpenSSH text, all on NIST curve P-384:

* a certificate authority of one's own, which SuperNodes and the ``flwr`` command trust
  (``--root-certificates``, ``root-certificates``);
* SuperLink's server certificate, signed by it (``--ssl-certfile``, ``--ssl-keyfile``);
* a key pair per SuperNode: the private half stays on the node
  (``--auth-supernode-private-key``), the public half goes to
  ``flwr supernode register``.

Private files are readable by their owner only, and no file is ever overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCK_TOLERANCE = datetime.timedelta(hours=24)
"""A certificate is valid from this long before it was made, for devices whose clock is
behind."""


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """Where the two halves of a key pair lie."""

    private: Path
    """Private key, file mode 0600."""
    public: Path
    """Certificate or public key, for everybody to read."""


def create_authority(
    folder: Path,
    *,
    common_name: str = "Federation CA",
    valid_days: int = 3650,
) -> KeyFiles:
    """Create a certificate authority: ``ca.key`` and ``ca.pem``.

    Parameters
    ----------
    folder
        Folder for the files; made with mode 0700 where it is absent.
    common_name
        Name of the authority.
    valid_days
        Days from now until the certificate expires.

    Raises
    ------
    FileExistsError
        If one of the files exists.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name(common_name)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(valid_days)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA384())
    )
    return _write_certificate(folder, "ca", key, certificate)


def create_server_certificate(
    folder: Path,
    authority: KeyFiles,
    hosts: Sequence[str],
    *,
    name: str = "server",
    valid_days: int = 365,
) -> KeyFiles:
    """Create a server certificate: ``<name>.key`` and ``<name>.pem``.

    Parameters
    ----------
    folder
        Folder for the files; made with mode 0700 where it is absent.
    authority
        The signing authority, from :func:`create_authority`.
    hosts
        Every DNS name and IP address under which clients reach the server. TLS refuses
        a server that is addressed by any other.
    name
        Stem of the file names.
    valid_days
        Days from now until the certificate expires.

    Raises
    ------
    ValueError
        If `hosts` is empty.
    FileExistsError
        If one of the files exists.
    """
    if not hosts:
        raise ValueError(
            "hosts is empty; name at least one DNS name or IP address under which "
            "clients reach the server"
        )
    issuer = x509.load_pem_x509_certificate(authority.public.read_bytes())
    issuer_key = serialization.load_pem_private_key(
        authority.private.read_bytes(), password=None
    )
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _builder(valid_days)
        .subject_name(_name(hosts[0]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA384())
    )
    return _write_certificate(folder, name, key, certificate)


def create_node_keys(folder: Path, name: str) -> KeyFiles:
    """Create a SuperNode's key pair: ``<name>`` and ``<name>.pub``, OpenSSH format.

    The same as ``ssh-keygen -t ecdsa -b 384 -N "" -f <name>`` makes.

    Raises
    ------
    FileExistsError
        If one of the files exists.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    files = KeyFiles(folder / name, folder / f"{name}.pub")
    _write_pair(files, private, public + f" {name}\n".encode())
    return files


def _name(common_name: str) -> x509.Name:
    # RFC 5280 allows a common name of at most 64 characters.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(valid_days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(now + datetime.timedelta(days=valid_days))
    )


def _key_usage(
    *,
    digital_signature: bool = False,
    key_cert_sign: bool = False,
    crl_sign: bool = False,
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _write_certificate(
    folder: Path,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    certificate: x509.Certificate,
) -> KeyFiles:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    files = KeyFiles(folder / f"{name}.key", folder / f"{name}.pem")
    _write_pair(files, private, certificate.public_bytes(serialization.Encoding.PEM))
    return files


def _write_pair(files: KeyFiles, private: bytes, public: bytes) -> None:
    for path in (files.private, files.public):
        if path.exists():
            raise FileExistsError(
                f"{path} exists and keys are never overwritten; move it away or choose "
                "another folder"
            )
    files.private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(files.private, private, 0o600)
    _write(files.public, public, 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
