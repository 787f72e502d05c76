from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from client_app.node import NodeConfig
from deploy import doctor
from deploy.certificates import create_authority, create_node_keys
from deploy.doctor import Outcome, Subject


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Subject]:
    authority = create_authority(tmp_path).public
    key = create_node_keys(tmp_path, "node").private

    def subject(**config: object) -> Subject:
        node = NodeConfig(**config)  # type: ignore[arg-type]
        return Subject("127.0.0.1:1", authority, key, node)

    return subject


def assert_failed(outcome: Outcome, what: str) -> None:
    status, message = outcome
    assert status == "failed"
    assert what in message


def test_data_of_ones_own(tmp_path: Path, make: Callable[..., Subject]) -> None:
    node = make(data_path=str(tmp_path / "data"))
    assert_failed(doctor.check_data(node), "no folder")
    (tmp_path / "data").mkdir()
    assert_failed(doctor.check_data(node), "holds no training data: put there")
    train = tmp_path / "data/train.npz"
    train.touch()
    assert_failed(doctor.check_data(node), "train.npz is empty")
    np.savez(train, images=np.zeros((1, 8, 8), np.uint8), labels=[0])
    status, message = doctor.check_data(node)
    assert status == "ok"
    assert "train: 1 (npz)" in message


def test_part_of_a_common_data_set(make: Callable[..., Subject]) -> None:
    node = make(partition_id=2, num_partitions=5)
    assert doctor.check_data(node) == ("ok", "part 2 of 5")
    assert_failed(doctor.check_data(make()), "neither data-path")


def test_key(make: Callable[..., Subject]) -> None:
    node = make()
    assert doctor.check_key(node)[0] == "ok"
    node.private_key.chmod(0o644)
    assert_failed(doctor.check_key(node), "revoke it and make a new one")
    node.private_key.write_text("nonsense")
    assert_failed(doctor.check_key(node), "ssh-keygen -t ecdsa")


def test_superlink_out_of_reach(make: Callable[..., Subject]) -> None:
    assert_failed(doctor.check_superlink(make()), "is SuperLink running")


def test_device(make: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_device(make(device="cpu"))[0] == "ok"
    assert_failed(doctor.check_device(make(device="abacus")), "another device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "GPU_FILES", (os.devnull,))
    status, message = doctor.check_device(make())
    assert status == "warning"
    assert "groups video and render" in message


def test_disk(
    tmp_path: Path, make: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    free = SimpleNamespace(free=5 * doctor.GIB)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: free)
    node = make(state_dir=str(tmp_path / "not/yet/there"))
    assert doctor.check_disk(node)[0] == "ok"
    assert doctor.check_disk(make())[0] == "warning"  # nothing is kept
    free.free = doctor.GIB // 2
    assert_failed(doctor.check_disk(node), "0.5 GiB free")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert_failed(doctor.check_disk(node), "cannot be written")


@pytest.mark.parametrize(
    ("gib", "status"),
    [(0.5, "failed"), (1.5, "warning"), (3, "ok"), (None, "warning")],
)
def test_memory(
    gib: float | None,
    status: str,
    make: Callable[..., Subject],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = None if gib is None else int(gib * doctor.GIB)
    monkeypatch.setattr(doctor, "host_memory", lambda: free)
    assert doctor.check_memory(make())[0] == status


@pytest.mark.parametrize(("says", "status"), [("yes\n", "ok"), ("no\n", "warning")])
def test_clock(
    says: str,
    status: str,
    make: Callable[..., Subject],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = SimpleNamespace(stdout=says)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: answer)
    assert doctor.check_clock(make())[0] == status


def test_versions(
    make: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = SimpleNamespace(returncode=1, stdout="flwr needs grpcio\n", stderr="")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: answer)
    assert_failed(doctor.check_versions(make()), "flwr needs grpcio: install again")
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 1))
    assert_failed(doctor.check_versions(make()), "Python 3.10, 3.11 or 3.12")


def test_command_line(
    tmp_path: Path,
    make: Callable[..., Subject],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = make()
    monkeypatch.setattr(doctor, "_LOCAL", {"data": doctor.check_data})
    arguments = [
        *("--superlink", node.superlink, "--clientappio-api-address", "127.0.0.1:9094"),
        *("--root-certificates", str(node.root_certificates)),
        *("--auth-supernode-private-key", str(node.private_key)),
        *("--node-config", "partition-id=0 num-partitions=2"),
    ]
    assert doctor.main([*arguments, "--json"]) == 1
    findings = {f["check"]: f["status"] for f in json.loads(capsys.readouterr().out)}
    # Without SuperLink nobody can tell whether the key is registered.
    assert findings == {"data": "ok", "superlink": "failed", "key": "ok"}

    assert doctor.main([*arguments, "--health-server-address", "127.0.0.1:1"]) == 1
    said = capsys.readouterr().out
    assert "ok       data          part 0 of 2\n" in said
    assert "failed   service       no SuperNode answers at 127.0.0.1:1" in said

    assert doctor.main([*arguments[:-1], "colour='red'"]) == 1
    assert "unknown node-config key 'colour'" in capsys.readouterr().err
