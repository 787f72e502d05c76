from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.certificates import (
    KeyFiles,
    create_authority,
    create_node_keys,
    create_server_certificate,
)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def authority(tmp_path: Path) -> KeyFiles:
    return create_authority(tmp_path / "ca", valid_days=10)


def certificate(files: KeyFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.public.read_bytes())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def handshake(authority: KeyFiles, server: KeyFiles, host: str) -> None:
    """Let OpenSSL make a TLS connection in memory that checks chain and host name."""
    client_context = ssl.create_default_context(cafile=authority.public)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(server.public, server.private)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client_context.wrap_bio(to_client, to_server, server_hostname=host),
        server_context.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "fl.example.org"])
def test_server_is_trusted_under_each_of_its_hosts(
    tmp_path: Path, authority: KeyFiles, host: str
) -> None:
    hosts = ["localhost", "127.0.0.1", "::1", "fl.example.org"]
    handshake(authority, create_server_certificate(tmp_path, authority, hosts), host)


def test_server_is_refused_under_another_host(
    tmp_path: Path, authority: KeyFiles
) -> None:
    server = create_server_certificate(tmp_path, authority, ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(authority, server, "example.org")


def test_server_of_another_authority_is_refused(
    tmp_path: Path, authority: KeyFiles
) -> None:
    stranger = create_authority(tmp_path / "stranger")
    server = create_server_certificate(tmp_path, stranger, ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(authority, server, "localhost")
    with pytest.raises((InvalidSignature, ValueError)):
        certificate(server).verify_directly_issued_by(certificate(authority))


def test_chain(tmp_path: Path, authority: KeyFiles) -> None:
    server = create_server_certificate(tmp_path, authority, ["localhost", "127.0.0.1"])
    certificate(server).verify_directly_issued_by(certificate(authority))
    certificate(authority).verify_directly_issued_by(certificate(authority))


def test_extensions(tmp_path: Path, authority: KeyFiles) -> None:
    server = create_server_certificate(tmp_path, authority, ["localhost", "127.0.0.1"])
    ca, leaf = certificate(authority).extensions, certificate(server).extensions
    names = leaf.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.IPv4Address("127.0.0.1")
    ]
    assert ca.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.get_extension_for_class(x509.BasicConstraints).value.ca
    assert ca.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert not leaf.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_a_server_certificate_signs_nothing(
    tmp_path: Path, authority: KeyFiles
) -> None:
    server = create_server_certificate(tmp_path, authority, ["localhost"])
    forged = create_server_certificate(tmp_path / "forged", server, ["example.org"])
    chain = tmp_path / "chain.pem"
    chain.write_bytes(forged.public.read_bytes() + server.public.read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(authority, KeyFiles(forged.private, chain), "example.org")


@pytest.mark.parametrize("days", [1, 30])
def test_validity(tmp_path: Path, days: int) -> None:
    authority = create_authority(tmp_path, valid_days=days)
    server = create_server_certificate(
        tmp_path, authority, ["localhost"], valid_days=days
    )
    now = datetime.datetime.now(datetime.timezone.utc)
    for files in (authority, server):
        remaining = certificate(files).not_valid_after_utc - now
        assert remaining.total_seconds() == pytest.approx(days * 86_400, abs=3_600)
        # A device whose clock is an hour behind connects, too.
        assert certificate(files).not_valid_before_utc < now - datetime.timedelta(
            hours=1
        )


@pytest.mark.usefixtures("open_umask")
def test_private_files_are_for_the_owner_only(tmp_path: Path) -> None:
    authority = create_authority(tmp_path / "keys")
    server = create_server_certificate(tmp_path / "keys", authority, ["localhost"])
    node = create_node_keys(tmp_path / "keys", "client-0")
    for files in (authority, server, node):
        assert mode(files.private) == 0o600
        assert mode(files.public) == 0o644
    assert mode(tmp_path / "keys") == 0o700


def test_all_keys_are_on_p384(tmp_path: Path, authority: KeyFiles) -> None:
    server = create_server_certificate(tmp_path, authority, ["localhost"])
    for files in (authority, server):
        key = certificate(files).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp384r1"


def test_node_keys_are_a_pair_in_openssh_format(tmp_path: Path) -> None:
    files = create_node_keys(tmp_path, "client-0")
    private = serialization.load_ssh_private_key(files.private.read_bytes(), None)
    public = serialization.load_ssh_public_key(files.public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    kind, _, comment = files.public.read_text().split()
    assert (kind, comment) == ("ecdsa-sha2-nistp384", "client-0")


def test_every_node_gets_another_key(tmp_path: Path) -> None:
    first, second = (create_node_keys(tmp_path, name) for name in ("a", "b"))
    assert first.public.read_text().split()[1] != second.public.read_text().split()[1]


def test_nothing_is_overwritten(tmp_path: Path, authority: KeyFiles) -> None:
    before = authority.private.read_bytes()
    with pytest.raises(FileExistsError, match=r"ca\.key exists"):
        create_authority(authority.private.parent)
    assert authority.private.read_bytes() == before
    node = create_node_keys(tmp_path, "client-0")
    node.private.unlink()
    with pytest.raises(FileExistsError, match=r"client-0\.pub exists"):
        create_node_keys(tmp_path, "client-0")
    assert not node.private.exists()


def test_a_server_needs_a_host(tmp_path: Path, authority: KeyFiles) -> None:
    with pytest.raises(ValueError, match="hosts is empty"):
        create_server_certificate(tmp_path, authority, [])
