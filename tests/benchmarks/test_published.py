"""The tables for readers say what was measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.accuracy.report import report
from benchmarks.accuracy.store import Store
from benchmarks.accuracy.tables import TABLES
from benchmarks.records import RESULTS

README = Path(__file__).parents[2] / "README.md"
COLUMNS = ("averaged", "± clients", "seeds")
"""By these a table of the README is known as one of accuracies."""


def rows(text: str) -> list[tuple[list[str], dict[str, str]]]:
    """Return header and cells of each row of all Markdown tables in a text."""
    found, header = [], []
    for line in text.splitlines():
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells(line)
        elif not set(line) <= set("|- :"):
            found.append((header, dict(zip(header, cells(line), strict=True))))
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_markdown_is_made_from_the_figures() -> None:
    path = RESULTS / "accuracy.json"
    text = report(TABLES.values(), Store(path).entries, path)
    assert (RESULTS / "accuracy.md").read_text() == text


def test_the_readme_repeats_them() -> None:
    measured = [row for _, row in rows((RESULTS / "accuracy.md").read_text())]
    repeated = [
        row for header, row in rows(README.read_text()) if {*COLUMNS} <= {*header}
    ]
    assert len(repeated) >= 6
    for row in repeated:
        assert any(row.items() <= other.items() for other in measured), row
