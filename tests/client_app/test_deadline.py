from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys, time
sys.argv[0] = {program!r}
from client_app.deadline import end_after
with end_after(0.2):
    time.sleep({inside})
time.sleep(0.5)
print("went on")
"""


def run(program: str, inside: float) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(program=program, inside=inside)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_client_app_that_hangs_ends_and_says_where() -> None:
    done = run("/venv/bin/flwr-clientapp", inside=60)
    assert done.returncode == 1
    assert "went on" not in done.stdout
    assert "Timeout" in done.stderr
    assert "line 6" in done.stderr


def test_one_that_is_done_in_time_goes_on() -> None:
    done = run("/venv/bin/flwr-clientapp", inside=0)
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_no_other_process_is_ended() -> None:
    done = run("default_worker.py", inside=0.4)
    assert (done.returncode, done.stdout) == (0, "went on\n")
