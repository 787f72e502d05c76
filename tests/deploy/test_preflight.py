from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deploy.certificates import (
    KeyFiles,
    create_authority,
    create_node_keys,
    create_server_certificate,
)
from deploy.preflight import check_connection, check_node_key, check_server_files, main


@pytest.fixture
def authority(tmp_path: Path) -> KeyFiles:
    return create_authority(tmp_path / "ca")


@contextmanager
def serving(certificate: KeyFiles | None) -> Iterator[str]:
    """Serve TLS, or for None what is no TLS; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    if certificate:
        context.load_cert_chain(certificate.public, certificate.private)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with suppress(OSError), connection:
                if certificate is None:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    continue
                with context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield str(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_sound_server(tmp_path: Path, authority: KeyFiles) -> None:
    certificate = create_server_certificate(tmp_path, authority, ["127.0.0.1"])
    with serving(certificate) as port:
        assert check_connection(f"127.0.0.1:{port}", authority.public) == []


def test_another_authority(tmp_path: Path, authority: KeyFiles) -> None:
    certificate = create_server_certificate(tmp_path, authority, ["127.0.0.1"])
    stranger = create_authority(tmp_path / "stranger")
    with serving(certificate) as port:
        [problem] = check_connection(f"127.0.0.1:{port}", stranger.public)
    assert f"not signed by the authority in {stranger.public}" in problem
    assert "copy ca.pem from the server" in problem


def test_an_expired_certificate(tmp_path: Path, authority: KeyFiles) -> None:
    certificate = create_server_certificate(
        tmp_path, authority, ["127.0.0.1"], valid_days=0
    )
    with serving(certificate) as port:
        [problem] = check_connection(f"127.0.0.1:{port}", authority.public)
    assert "expired on" in problem
    assert "make a new one" in problem


@pytest.mark.parametrize("hosts", [["fl.example.org", "10.0.0.1"], ["localhost"]])
def test_another_host(tmp_path: Path, authority: KeyFiles, hosts: list[str]) -> None:
    certificate = create_server_certificate(tmp_path, authority, hosts)
    with serving(certificate) as port:
        [problem] = check_connection(f"127.0.0.1:{port}", authority.public)
    assert f"names {', '.join(hosts)} and not 127.0.0.1" in problem


def test_a_server_without_tls(authority: KeyFiles) -> None:
    with serving(None) as port:
        [problem] = check_connection(f"127.0.0.1:{port}", authority.public)
    assert "does not speak TLS" in problem
    assert "--ssl-certfile" in problem


def test_nobody_there(authority: KeyFiles) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    [problem] = check_connection(f"127.0.0.1:{port}", authority.public)
    assert "cannot be reached" in problem
    assert "is SuperLink running" in problem


def test_wrong_arguments(tmp_path: Path, authority: KeyFiles) -> None:
    [problem] = check_connection("localhost", authority.public)
    assert "give host and port" in problem
    (tmp_path / "empty.pem").write_text("")
    for path in (tmp_path / "absent.pem", tmp_path / "empty.pem"):
        [problem] = check_connection("localhost:1", path)
        assert f"{path} is no certificate of an authority" in problem


def test_files_of_the_server(tmp_path: Path, authority: KeyFiles) -> None:
    server = create_server_certificate(tmp_path / "a", authority, ["localhost"])
    other = create_server_certificate(tmp_path / "b", authority, ["localhost"])
    stranger = create_authority(tmp_path / "stranger")
    assert check_server_files(authority.public, server.public, server.private, []) == []
    [problem] = check_server_files(authority.public, server.public, other.private, [])
    assert "does not belong to" in problem
    [problem] = check_server_files(stranger.public, server.public, server.private, [])
    assert f"{server.public} is not signed by {stranger.public}" in problem
    [problem] = check_server_files(
        authority.public, server.public, server.private, ["localhost", "fl.example.org"]
    )
    assert "names localhost and not fl.example.org" in problem
    [problem] = check_server_files(
        authority.public, tmp_path / "absent", server.private, []
    )
    assert "cannot be read" in problem


def test_several_problems_are_told_together(
    tmp_path: Path, authority: KeyFiles
) -> None:
    old = create_server_certificate(tmp_path, authority, ["localhost"], valid_days=0)
    problems = check_server_files(authority.public, old.public, old.private, ["a.org"])
    assert len(problems) == 2
    assert f"{old.public} expired on" in problems[0]


def test_keys_of_nodes(tmp_path: Path) -> None:
    key = create_node_keys(tmp_path, "node")
    assert check_node_key(key.private) == []
    [problem] = check_node_key(key.public)
    assert "is no private key in OpenSSH format" in problem
    assert "ssh-keygen" in problem
    [problem] = check_node_key(tmp_path / "absent")
    assert "No such file" in problem


def test_command_line(
    tmp_path: Path, authority: KeyFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    server = create_server_certificate(tmp_path, authority, ["127.0.0.1"])
    files = [
        *("superlink", "--ssl-ca-certfile", str(authority.public)),
        *("--ssl-certfile", str(server.public), "--ssl-keyfile", str(server.private)),
    ]
    assert main([*files, "--host", "127.0.0.1"]) == 0
    assert "All is well." in capsys.readouterr().out
    assert main([*files, "--host", "fl.example.org"]) == 1
    assert "Problem: " in capsys.readouterr().out
    key = create_node_keys(tmp_path, "node")
    with serving(server) as port:
        node = ["node", "--superlink", f"127.0.0.1:{port}", "--root-certificates"]
        node += [str(authority.public), "--auth-supernode-private-key"]
        assert main([*node, str(key.private)]) == 0
        assert main([*node, str(key.public)]) == 1
