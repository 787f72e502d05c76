from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server_app.simulate import plan, run_to_end


def test_personal_states_go_to_the_runs_own_folder(tmp_path: Path) -> None:
    configs = plan(["xfed", "fedper@digits-early-exit"], ["seed=1"], 10, tmp_path)
    assert [config["experiment"] for config in configs] == [
        "xfed",
        "fedper-digits-early-exit",
    ]
    for config in configs:
        assert config["output-dir"] == str(tmp_path)
        state = tmp_path / str(config["experiment"]) / "state"
        assert config["state-dir"] == str(state)


def test_states_elsewhere_or_in_memory_only(tmp_path: Path) -> None:
    for wanted in ("/data/states", ""):
        (config,) = plan(["xfed"], [f"state-dir={wanted}"], 10, tmp_path)
        assert config["state-dir"] == wanted


PROGRAM = """
import os, signal, sys
from server_app.simulate import run_to_end

# A shell's background job, and so what a test starts from it, ignores SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
command = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
run_to_end([sys.executable, "-c", command], os.environ, grace=0.2)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_simulation_does_not_outlive_its_program(signum: signal.Signals) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout is not None
    simulation = int(program.stdout.readline())
    time.sleep(0.2)
    program.send_signal(signum)
    try:
        status = program.wait(60)
    finally:
        program.kill()
    assert status == (128 + signum if signum == signal.SIGTERM else -signum)
    with pytest.raises(ProcessLookupError):
        os.kill(simulation, 0)


def test_a_failed_simulation_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_to_end([sys.executable, "-c", "raise SystemExit(3)"], os.environ)
    assert caught.value.returncode == 3
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
