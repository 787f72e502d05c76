from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pytest

from deploy import processes
from deploy.processes import (
    FederationError,
    ProcessGroup,
    exclusive_folder,
    reserve_port,
    stop_all,
)


def start(tmp_path: Path, script: str) -> ProcessGroup:
    return ProcessGroup(
        "script",
        ["/bin/sh", "-c", script],
        log=tmp_path / "logs" / "script.log",
        cwd=tmp_path,
        env=os.environ,
    )


def exists(pid: int) -> bool:
    """Ask the system, not the class under test; zombies have ended."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


def test_stop_ends_descendants_too(tmp_path: Path) -> None:
    group = start(tmp_path, "sleep 600 & echo child $!; wait")
    child = int(group.wait_for_output(r"child (\d+)", 10)[1])
    assert exists(group.pid)
    assert exists(child)
    group.stop()
    assert not exists(group.pid)
    assert not exists(child)
    assert group.gone
    assert group.exit_code == -signal.SIGTERM


def test_stop_reaches_descendants_of_a_killed_process(tmp_path: Path) -> None:
    group = start(tmp_path, "sleep 600 & echo child $!; wait")
    child = int(group.wait_for_output(r"child (\d+)", 10)[1])
    os.kill(group.pid, signal.SIGKILL)
    group.wait(10)
    assert not group.alive
    assert not group.gone
    assert exists(child)
    group.stop()
    assert not exists(child)


def test_who_ignores_the_signal_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_GRACE", 0.5)
    group = start(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    group.wait_for_output("ready", 10)
    stop_all([group])
    assert group.exit_code == -signal.SIGKILL
    assert not exists(group.pid)


def test_a_frozen_process_can_be_stopped(tmp_path: Path) -> None:
    group = start(
        tmp_path, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    )
    group.wait_for_output("ready", 10)
    group.send_signal(signal.SIGSTOP)
    group.stop()
    assert group.exit_code == 7


def test_a_gone_group_is_not_signalled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = start(tmp_path, "exit 0")
    group.wait(10)
    assert group.gone
    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, signum: sent.append(pid))
    group.stop()
    assert sent == []


def test_an_error_carries_exit_code_and_end_of_the_log(tmp_path: Path) -> None:
    group = start(tmp_path, r"printf '\033[91mERROR\033[0m: no such port\n'; exit 3")
    with pytest.raises(FederationError) as error:
        group.wait_for_output("ready", 10)
    assert "script ended before it was ready" in str(error.value)
    assert "exit code 3" in str(error.value)
    assert "| ERROR: no such port" in str(error.value)


def test_waiting_for_output_has_an_end(tmp_path: Path) -> None:
    group = start(tmp_path, "echo busy; sleep 600")
    with pytest.raises(FederationError, match="was not ready after 0 s"):
        group.wait_for_output("ready", 0.2)
    group.stop()


def test_output_is_that_of_the_last_start(tmp_path: Path) -> None:
    start(tmp_path, "echo first").wait(10)
    second = start(tmp_path, "echo second")
    second.wait(10)
    assert second.output() == "second\n"
    assert second.log.read_text() == "first\nsecond\n"


def test_follow_yields_everything(tmp_path: Path) -> None:
    # The first letter comes in two writes, between them its bytes are incomplete.
    script = r"printf '\303'; sleep 0.3; printf '\244b\n'; sleep 0.3; echo end"
    assert "".join(start(tmp_path, script).follow()) == "äb\nend\n"


def test_a_reserved_port_is_kept_for_a_grpc_server() -> None:
    port, reservation = reserve_port("127.0.0.1")
    other, second = reserve_port("127.0.0.1")
    assert port != other
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0
    server = grpc.server(ThreadPoolExecutor(1))
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    server.start()
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) == 0
    server.stop(None).wait()
    reservation.close()
    second.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems only find ports")
def test_a_reserved_port_is_kept_from_others() -> None:
    port, reservation = reserve_port("127.0.0.1")
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", port))
    reservation.close()


def test_a_folder_is_for_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    refused = pytest.raises(FederationError, match="another federation uses")
    with exclusive_folder(folder), refused, exclusive_folder(folder):
        pass
    with exclusive_folder(folder):
        assert folder.is_dir()
