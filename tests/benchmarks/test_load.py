from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.load import MIB, growth, memory_figures, run_config
from benchmarks.process_watch import Process, Sample


def sample(round_: int, server: float, clients: float, files: int = 10) -> Sample:
    return Sample(
        seconds=float(round_),
        round_=round_,
        processes=(
            Process(1, "server", int(server * MIB), int(server * MIB), files),
            Process(2, "clients", int(clients * MIB), 0, files),
        ),
    )


def test_growth_is_the_line_through_the_rounds_after_warm_up() -> None:
    warm_up = [sample(t, 500.0 * t, 0.0) for t in range(10)]
    later = [sample(t, 100.0 + 0.5 * t, 0.0) for t in range(10, 51)]
    start, end = growth([*warm_up, *later], "server", first=10)
    assert (start, end) == pytest.approx((105.0, 125.0), abs=1e-3)


@pytest.mark.parametrize(("slope", "met"), [(0.0, True), (0.1, True), (0.2, False)])
def test_memory_that_grows_by_more_than_5_percent_is_not_flat(
    slope: float, met: bool
) -> None:
    samples = [sample(t, 100.0 + slope * t, 200.0) for t in range(51)]
    found = {f.name: f for f in memory_figures("x", samples, ["server"], 50)}
    last = found["x: resident memory, server, round 50"]
    assert last.met is met
    assert found["x: resident memory, server, growth"].value == pytest.approx(
        slope * 39 / 40, abs=1e-3
    )
    assert found["x: resident memory, all processes, round 50"].met is True
    peak = found["x: peak resident memory, all processes"]
    assert peak.value == pytest.approx(300 + 50 * slope, abs=1e-3)


def test_open_files_that_pile_up_are_told() -> None:
    samples = [sample(t, 100.0, 100.0, files=10 + t) for t in range(51)]
    found = {f.name: f for f in memory_figures("x", samples, [], 50)}
    assert found["x: open files, at the end"].met is False


def test_every_client_gets_data(tmp_path: Path) -> None:
    config = run_config(tmp_path, 1000, 50, {})
    images = np.load(Path(str(config["data-path"])) / "train.npz")["images"]
    assert images.shape == (20_000, 8, 8)
    assert images.dtype == np.uint8
