from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.records import write_figures
from benchmarks.wire import (
    CASES,
    Case,
    Payload,
    Traffic,
    case_figures,
    claims,
    payload,
    table,
)
from common.settings import parse_settings

# ConvNet on 32x32x3: three convolutions 3x3 of 128, an exit of 128 * 10 + 10 each.
BACKBONE = 4 * ((27 * 128 + 128) + 2 * (1152 * 128 + 128))
EXIT = 4 * (128 * 10 + 10)


@pytest.mark.parametrize(
    ("method", "model", "expected"),
    [
        ("standalone", "convnet", Payload(0, 0, 0)),
        ("fedavg", "convnet", Payload(*[BACKBONE + 3 * EXIT] * 3)),
        ("fedper", "convnet", Payload(BACKBONE, BACKBONE, BACKBONE)),
        ("xfed", "convnet", Payload(BACKBONE + EXIT, BACKBONE + EXIT, BACKBONE)),
        ("pfedes", "cnn-1", Payload(1772, 1772, 0)),
    ],
)
def test_payload_by_hand(method: str, model: str, expected: Payload) -> None:
    assert payload(parse_settings(Case(method, model).config())) == expected


def test_the_papers_figures_hold() -> None:
    # ResNet-18's last exit with 100 classes: 512 * 100 + 100 = 51,300 parameters.
    extractor, overhead = claims()
    assert extractor.value == 4 * ((3 * 9 * 8 + 8) + (8 * 9 * 3 + 3)) == 1772
    resnet = payload(parse_settings(Case("fedper", "resnet18", 100).config()))
    assert overhead.value == pytest.approx(100 * 4 * 51_300 / resnet.train_up)
    assert extractor.met
    assert overhead.met


def test_table_shows_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "wire.json"
    case = CASES[1]
    traffic = Traffic(start=(5, 6), train=(1000, 2000), evaluate=(3, 4), seconds=1.0)
    write_figures(case_figures(case, Payload(900, 1800, 0), traffic), path, "x")
    row = next(line for line in table(path).splitlines() if case.name in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:] == ["1,800", "1,000", "900", "2,000", "3", "4", "5", "6"]
    other = next(line for line in table(path).splitlines() if CASES[2].name in line)
    assert set(other.strip("|").replace(" ", "").split("|")[1:]) == {"-"}
