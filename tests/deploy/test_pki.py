from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from cryptography import x509

from deploy.certificates import create_authority, create_server_certificate
from deploy.pki import ensure_certificates, ensure_node_keys, main


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_makes_what_is_missing_and_leaves_what_is_there(tmp_path: Path) -> None:
    assert ensure_certificates(tmp_path, ["server", "10.0.0.1"])
    load(tmp_path / "server.pem").verify_directly_issued_by(load(tmp_path / "ca.pem"))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert {path.name for path in before} == {
        *("ca.key", "ca.pem", "server.key", "server.pem")
    }

    assert not ensure_certificates(tmp_path, ["10.0.0.1", "SERVER"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("hosts", "renew_days"),
    [(["server", "new.example.org"], 30), (["server", "10.0.0.9"], 30), (["a"], 366)],
)
def test_renews_for_a_new_host_or_a_near_end(
    tmp_path: Path, hosts: list[str], renew_days: int
) -> None:
    ensure_certificates(tmp_path, ["server", "a"])
    authority = (tmp_path / "ca.pem").read_bytes()
    serial = load(tmp_path / "server.pem").serial_number

    assert ensure_certificates(tmp_path, hosts, renew_days=renew_days)
    renewed = load(tmp_path / "server.pem")
    assert renewed.serial_number != serial
    renewed.verify_directly_issued_by(load(tmp_path / "ca.pem"))
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600


def test_replaces_a_pair_that_does_not_fit(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["server"])
    other = tmp_path / "other"
    ensure_certificates(other, ["server"])
    for name in ("server.key", "server.pem"):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes((other / name).read_bytes())
        assert ensure_certificates(tmp_path, ["server"]), name
        assert (tmp_path / name).read_bytes() != kept


def test_refuses_half_an_authority(tmp_path: Path) -> None:
    create_authority(tmp_path).private.unlink()
    with pytest.raises(FileNotFoundError, match=r"ca.pem is there without its other"):
        ensure_certificates(tmp_path, ["server"])


def test_refuses_to_outlive_the_authority(tmp_path: Path) -> None:
    authority = create_authority(tmp_path, valid_days=100)
    with pytest.raises(ValueError, match="expires in 100 days, before"):
        ensure_certificates(tmp_path, ["server"])
    create_server_certificate(tmp_path, authority, ["server"], valid_days=90)
    assert not ensure_certificates(tmp_path, ["server"])


def test_command_line_tells_what_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path), "--valid-days", "90", "--hosts", "server"]
    expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(90)
    for changed in (True, False):
        assert main(arguments) == 0
        said = json.loads(capsys.readouterr().out)
        assert said == {"changed": changed, "expires": str(expires.date())}
    (tmp_path / "ca.key").unlink()
    assert main(arguments) == 1
    assert "bring back the pair" in capsys.readouterr().err


def test_node_keys_are_made_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--node", "client-0"]) == 0
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(made) == {"client-0", "client-0.pub"}
    assert main([str(tmp_path), "--node", "client-0"]) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == made
    said = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["changed"] for line in said] == [True, False]

    (tmp_path / "client-0.pub").unlink()
    with pytest.raises(FileNotFoundError, match="without its other half"):
        ensure_node_keys(tmp_path, "client-0")
