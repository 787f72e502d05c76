"""What a table is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.store import Entry

Entries = Mapping[str, Entry]


def nothing(entries: Entries) -> list[Entry]:
    """Compare nothing."""
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A list of cells, and how they compare."""

    name: str
    title: str
    about: str
    """What is measured, for the reader of the Markdown."""
    cells: tuple[Cell, ...]
    reference: str = ""
    """Cell that the others are compared with, paired by seed."""
    seeds: tuple[int, ...] = (0,)
    compare: Callable[[Entries], list[Entry]] = field(default=nothing)
    """Returns the entries of the table's bars, named ``<table>/bars/<bar>``."""
