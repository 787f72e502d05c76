from __future__ import annotations

import json
from pathlib import Path

from benchmarks.records import Figure, figures_table, hardware, write_figures


def test_figures_of_other_names_stay_and_equal_names_are_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "results" / "load.json"
    first = [Figure(name="a", value=1.0, unit="s"), Figure(name="b", value=2, unit="")]
    write_figures(first, path, "python -m x")
    again = Figure(name="b", value=1234.5, unit="MiB", target="at most 1", met=False)
    write_figures([again], path, "python -m y")
    stored = json.loads(path.read_text())
    assert [figure["name"] for figure in stored] == ["a", "b"]
    assert stored[0]["command"] == "python -m x"
    keys = {"name", "value", "unit", "target", "met", "command", "date", "hardware"}
    assert set(stored[1]) == keys
    assert stored[1]["hardware"] == hardware()
    assert figures_table(path) == (
        "| figure | measured | unit |    target | met |\n"
        "| ------ | -------: | ---: | --------: | --: |\n"
        "| a      |        1 |    s |           |     |\n"
        "| b      |  1,234.5 |  MiB | at most 1 |  no |\n"
    )
