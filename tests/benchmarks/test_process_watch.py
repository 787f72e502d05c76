from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.process_watch import ProcessWatch

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc, which only Linux has"
)

SLEEPER = "import time; held = b'x' * 2**26; time.sleep(900)"
ORPHAN = f"""
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {SLEEPER!r}],
    stdout=subprocess.DEVNULL,  # the pipe that the number goes through must end
    start_new_session=True,
)
print(child.pid)
"""


def test_an_orphan_is_seen_with_its_memory_and_told_of() -> None:
    with ProcessWatch(rounds=lambda: 3, interval=0.05) as watch:
        answer = subprocess.check_output([sys.executable, "-c", ORPHAN], text=True)
        orphan = int(answer)
        try:
            deadline = time.monotonic() + 300
            while time.monotonic() < deadline:
                if any(sample.private() > 2**26 for sample in watch.samples):
                    break
                time.sleep(0.05)
            left = watch.left(patience=0)
        finally:
            os.kill(orphan, signal.SIGKILL)
    assert [process.pid for process in left] == [orphan]
    assert left[0].resident >= left[0].private > 2**26
    assert left[0].files >= 3
    assert {sample.round_ for sample in watch.samples} == {3}
    assert watch.left() == []


def test_processes_from_elsewhere_are_not_counted() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", SLEEPER])
    try:
        with ProcessWatch(rounds=lambda: 0) as watch:
            assert watch.processes() == []
    finally:
        stranger.kill()
        stranger.wait()
