from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.certificates import create_authority, create_node_keys
from deploy.control import main


class FakeFlwr:
    """Answers as ``flwr`` does; keeps what SuperLink would."""

    CONNECTION = "federation"

    def __init__(self, *_: object) -> None:
        self.groups: list[Any] = []

    statuses: dict[str, str]
    runs: dict[str, str]

    def ask(self, *arguments: str) -> dict[str, Any]:
        if arguments[:2] == ("supernode", "register"):
            node_id = str(100 + len(self.statuses))
            self.statuses[node_id] = "registered"
            return {"node-id": int(node_id)}
        if arguments[:2] == ("supernode", "unregister"):
            assert self.statuses[arguments[2]] != "unregistered"
            self.statuses[arguments[2]] = "unregistered"
            return {}
        if arguments[0] == "stop":
            self.runs[arguments[1]] = "finished:stopped"
            return {"success": True}
        nodes = [{"node-id": i, "status": s} for i, s in self.statuses.items()]
        runs = [{"run-id": int(i), "status": s} for i, s in self.runs.items()]
        return {"nodes": nodes} if arguments[0] == "supernode" else {"runs": runs}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("deploy.control.FlowerCli", FakeFlwr)
    monkeypatch.setattr(FakeFlwr, "statuses", {}, raising=False)
    monkeypatch.setattr(FakeFlwr, "runs", {}, raising=False)
    authority = create_authority(tmp_path).public
    return ["--folder", str(tmp_path), "--root-certificates", str(authority)]


def test_nodes_are_registered_once_and_revoked_once(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> Any:
        assert main([*command, *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    key = str(create_node_keys(tmp_path, "key").public)
    assert call("register", "a", key) == {"changed": True, "node-id": "100"}
    assert call("register", "a", key) == {"changed": False, "node-id": "100"}
    FakeFlwr.statuses["100"] = "online"
    assert call("nodes") == {"a": {"node-id": "100", "status": "online"}}

    other = str(create_node_keys(tmp_path, "other").public)
    assert main([*command, "register", "a", other]) == 1
    assert "registered with another key: revoke that" in capsys.readouterr().err

    assert call("revoke", "a") == {"changed": True}
    assert call("revoke", "a") == {"changed": False}
    assert FakeFlwr.statuses["100"] == "unregistered"
    assert call("register", "a", other) == {"changed": True, "node-id": "101"}


def test_revokes_a_node_that_superlink_forgot(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    key = str(create_node_keys(tmp_path, "key").public)
    assert main([*command, "register", "a", key]) == 0
    FakeFlwr.statuses.clear()  # a new database
    assert main([*command, "nodes"]) == 0
    assert "unknown to SuperLink" in capsys.readouterr().out
    assert main([*command, "revoke", "a"]) == 0


def test_tells_the_runs_that_have_not_ended(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    FakeFlwr.runs.update(
        {"1": "finished:completed", "2": "running", "3": "finished:failed"}
    )
    assert main([*command, "runs"]) == 0
    assert json.loads(capsys.readouterr().out) == {"2": "running"}


def test_stops_a_run_that_goes_on(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    FakeFlwr.runs.update({"1": "finished:completed", "2": "running"})
    for run_id, changed in (("2", True), ("2", False), ("1", False)):
        assert main([*command, "stop", run_id]) == 0
        assert json.loads(capsys.readouterr().out) == {"changed": changed}
    assert FakeFlwr.runs == {"1": "finished:completed", "2": "finished:stopped"}


def test_gives_up_where_nothing_answers(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*command, "--address", "127.0.0.1:1", "wait", "--timeout", "0.3"]
    assert main(arguments) == 1
    assert "did not answer within 0 s" in capsys.readouterr().err


def test_waits_for_the_named_nodes_and_names_the_missing(
    tmp_path: Path,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deploy.control.Control.wait", lambda *_: None)

    def come_online(_: float) -> None:
        FakeFlwr.statuses["101"] = "online"

    monkeypatch.setattr("deploy.control.time.sleep", come_online)
    for name in ("a", "b"):
        key = create_node_keys(tmp_path, name).public
        assert main([*command, "register", name, str(key)]) == 0
    FakeFlwr.statuses["100"] = "online"
    assert main([*command, "wait", "--nodes", "a", "b"]) == 0

    FakeFlwr.statuses["100"] = "offline"
    waiting = ["wait", "--timeout", "0", "--nodes", "a", "b", "c"]
    assert main([*command, *waiting]) == 1
    said = capsys.readouterr().err
    assert "not online after 0 s: a (offline), c (unregistered);" in said
