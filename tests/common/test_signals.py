from __future__ import annotations

import os
import signal

import pytest

from common.signals import exit_on_signals


def test_sigterm_becomes_an_exit_and_then_what_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as caught, exit_on_signals():
            os.kill(os.getpid(), signal.SIGTERM)
        assert caught.value.code == 128 + 15
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
