"""Tests of what only the extra `datasets` brings."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

REASON = "needs the extra 'datasets': pip install '.[datasets]'"
needs_datasets = pytest.mark.skipif(find_spec("flwr_datasets") is None, reason=REASON)
