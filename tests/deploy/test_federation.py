from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy import federation as module
from deploy import flower_cli
from deploy.federation import FederationError, LocalFederation, NodeSpec

REPOSITORY = Path(__file__).parents[2]

PYPROJECT = """
[project]
name = "dummy"
version = "1.0.0"
description = "Asks nodes for their configuration."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "dummy.server:app"
clientapp = "dummy.client:app"

[tool.flwr.app.config]
output-dir = "runs"
num-nodes = 2
fail = false
greeting = "hello"
sleep = 0.0
"""

SERVER = """
import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    if config["fail"]:
        raise ValueError("told to fail")
    while len(node_ids := list(grid.get_node_ids())) < config["num-nodes"]:
        time.sleep(0.2)
    print(f"{len(node_ids)} nodes, {config['greeting']}")
    waiting = set(
        grid.push_messages(
            [Message(RecordDict(), node_id, "query") for node_id in node_ids]
        )
    )
    replies = []
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.remove(reply.metadata.reply_to_message_id)
            answer = dict(reply.content["answer"])
            replies.append({**answer, "node-id": reply.metadata.src_node_id})
        time.sleep(0.2)
    folder = Path(config["output-dir"])
    folder.mkdir(exist_ok=True)
    (folder / f"{context.run_id}.json").write_text(json.dumps(replies))
"""

CLIENT = """
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message, context):
    time.sleep(context.run_config["sleep"])
    answer = {**context.node_config, "greeting": context.run_config["greeting"]}
    return Message(RecordDict({"answer": ConfigRecord(answer)}), reply_to=message)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    files = {
        "pyproject.toml": PYPROJECT,
        ".gitignore": "private/\n",
        "README.md": "An app.",
        "data.txt": "not for nodes",
        "private/notes.py": "not_for_nodes = True",
        "dummy/__init__.py": "",
        "dummy/server.py": SERVER,
        "dummy/client.py": CLIENT,
    }
    for name, content in files.items():
        path = tmp_path / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "app"


def processes_of(workdir: Path) -> list[str]:
    """Return the processes that have the working folder in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{workdir}/".encode() in environment.read_bytes():
                command = (environment.parent / "cmdline").read_text()
                found.append(command.replace("\0", " "))
        except OSError:
            continue
    return found


def answers(workdir: Path, run_id: int) -> list[dict[str, Any]]:
    replies: list[dict[str, Any]] = json.loads(
        (workdir / "runs" / f"{run_id}.json").read_text()
    )
    return sorted(replies, key=lambda reply: str(reply["client-name"]))


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_two_nodes_run_an_app(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, workdir = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("FLWR_HOME", raising=False)
    nodes = [
        NodeSpec("alpha", {"client-name": "alpha", "partition-id": 0, "rate": 0.5}),
        NodeSpec("beta", {"client-name": "beta", "partition-id": 1, "debug": True}),
    ]
    with LocalFederation(app, nodes, workdir) as federation:
        assert federation.alive() == {"superlink": True, "alpha": True, "beta": True}
        assert len(processes_of(workdir)) >= 3

        first = federation.run({"greeting": "good day"}, timeout=300)
        assert first.succeeded
        assert first.status == "finished:completed"
        assert "2 nodes, good day" in first.log
        expected = [
            {**node.config, "greeting": "good day", "node-id": node_id}
            for node, node_id in zip(nodes, federation.node_ids.values(), strict=True)
        ]
        assert answers(workdir, first.run_id) == expected

        overrides = tmp_path / "overrides.toml"
        overrides.write_text('greeting = "good evening"\n')
        second = federation.run(overrides, timeout=300, echo=False)
        assert second.succeeded
        assert second.run_id != first.run_id
        assert answers(workdir, second.run_id)[1]["greeting"] == "good evening"

        failed = federation.run("fail=true", timeout=300, echo=False)
        assert not failed.succeeded
        assert failed.status == "finished:failed"
        assert "ValueError: told to fail" in failed.log

        with pytest.raises(FederationError, match=r"(?s)exit code 1.*invalid format"):
            federation.run("greeting=unquoted", timeout=300, echo=False)

    assert processes_of(workdir) == []
    # Flower numbers an installation there also where telemetry is off, no more.
    assert [path for path in home.rglob("*") if path.is_file()] == [
        home / ".flwr" / "source"
    ]
    # What the nodes got: .py, .toml and .md files that .gitignore lets pass.
    [unpacked] = (workdir / "flower" / "homes" / "alpha" / "apps").iterdir()
    assert {
        str(path.relative_to(unpacked))
        for path in unpacked.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } == {
        "pyproject.toml",
        "README.md",
        "dummy/__init__.py",
        "dummy/server.py",
        "dummy/client.py",
    }


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_the_program_ends_everything_on_sigterm(app: Path, tmp_path: Path) -> None:
    workdir = tmp_path / "work"
    program = subprocess.Popen(
        [
            *(sys.executable, "-m", "deploy.federation", "--nodes", "1"),
            *("--app", str(app), "--workdir", str(workdir)),
            *("--run-config", "num-nodes=1 sleep=600.0"),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        for line in program.stdout:
            if "1 nodes, hello" in line:
                break
        assert processes_of(workdir) != []
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 128 + signal.SIGTERM
        assert processes_of(workdir) == []
    finally:
        program.kill()
        program.wait()


def fake_executables(folder: Path, script: str) -> Path:
    folder.mkdir()
    for name in ("flower-superlink", "flower-supernode", "flwr"):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def test_a_superlink_that_does_not_start_is_shown(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_executables(tmp_path / "bin", "echo license expired; exit 3")
    monkeypatch.setattr(module, "EXECUTABLES", fake)
    monkeypatch.setattr(flower_cli, "EXECUTABLES", fake)
    with (
        pytest.raises(FederationError, match=r"(?s)exit code 3.*license expired"),
        LocalFederation(app, [NodeSpec("a")], tmp_path / "work"),
    ):
        pytest.fail("a federation without SuperLink came up")


def test_a_start_that_fails_leaves_no_process(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_executables(tmp_path / "bin", "sleep 600 & wait")
    monkeypatch.setattr(module, "EXECUTABLES", fake)
    monkeypatch.setattr(flower_cli, "EXECUTABLES", fake)
    workdir = tmp_path / "work"
    with (
        pytest.raises(FederationError, match="did not start"),
        LocalFederation(app, [NodeSpec("a")], workdir, start_timeout=0.5),
    ):
        pytest.fail("a federation without SuperLink came up")
    [line] = (workdir / "flower" / "pids").read_text().splitlines()
    name, pid = line.split()
    assert name == "superlink"
    listing = subprocess.run(
        ["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    states = [
        line.split()[1] for line in listing.splitlines() if line.split()[0] == pid
    ]
    # Nobody but the system can clear away an orphan that has ended.
    assert [state for state in states if not state.startswith("Z")] == []


def test_a_folder_of_somebody_else_is_left_alone(app: Path, tmp_path: Path) -> None:
    (tmp_path / "flower").mkdir()
    (tmp_path / "flower" / "rose.txt").write_text("precious")
    with (
        pytest.raises(FederationError, match="is not from a federation"),
        LocalFederation(app, [], tmp_path),
    ):
        pytest.fail("a folder of somebody else was taken")
    assert (tmp_path / "flower" / "rose.txt").read_text() == "precious"


def test_wrong_arguments(app: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no pyproject\.toml"):
        LocalFederation(tmp_path, [], tmp_path / "work")
    with pytest.raises(ValueError, match="lies inside the app"):
        LocalFederation(app, [], app / "work")
    with pytest.raises(ValueError, match="node names must differ"):
        LocalFederation(app, [NodeSpec("a"), NodeSpec("a")], tmp_path / "work")
    with pytest.raises(ValueError, match="node name"):
        LocalFederation(app, [NodeSpec("a/b")], tmp_path / "work")


def test_an_environment_without_flower_is_named(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXECUTABLES", tmp_path)
    with pytest.raises(ValueError, match="has no flower-superlink"):
        LocalFederation(app, [], tmp_path / "work")
