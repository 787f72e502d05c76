"""Measured figures: one JSON list per benchmark, beside a table for people."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure."""

    name: str
    value: float
    unit: str
    target: str = ""
    """What the figure should be, in words; empty where nothing is asked of it."""
    met: bool | None = None
    """Whether the target is met; None without a target."""


def compared(
    what: str,
    ours: tuple[str, float],
    theirs: tuple[str, float],
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> list[Figure]:
    """Return two figures that were measured in one run, and their ratio.

    Parameters
    ----------
    what
        What the names of all three begin with.
    ours, theirs
        What was measured, and its value.
    at_most, at_least
        Target of ours divided by theirs.
    """
    (our_name, our_value), (their_name, their_value) = ours, theirs
    ratio = our_value / their_value
    target, met = "", None
    if at_most is not None:
        target, met = f"at most {at_most}", ratio <= at_most
    if at_least is not None:
        target, met = f"at least {at_least}", ratio >= at_least
    return [
        Figure(name=f"{what}/{our_name}", value=our_value, unit=unit),
        Figure(name=f"{what}/{their_name}", value=their_value, unit=unit),
        Figure(
            name=f"{what}/{our_name} : {their_name}",
            value=ratio,
            unit="x",
            target=target,
            met=met,
        ),
    ]


def write_figures(
    figures: Sequence[Figure], path: Path, command: str, *, gpu: bool = False
) -> None:
    """Write figures as a JSON list, each with command, date and hardware.

    Parameters
    ----------
    path
        A JSON file. Figures of other names that stand there stay.
    command
        The command that measures them again.
    gpu
        Whether they were measured on a GPU.
    """
    origin = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(gpu),
    }
    names = {figure.name for figure in figures}
    before = json.loads(path.read_text()) if path.exists() else []
    content = [figure for figure in before if figure["name"] not in names]
    content += [
        {**asdict(figure), "target": figure.target or None, **origin}
        for figure in figures
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def figures_table(path: Path) -> str:
    """Return the figures of a JSON file as a Markdown table."""
    met = {True: "yes", False: "no", None: ""}
    rows = [
        (f["name"], f"{f['value']:,.6g}", f["unit"], f["target"] or "", met[f["met"]])
        for f in json.loads(path.read_text())
    ]
    return markdown(("figure", "measured", "unit", "target", "met"), rows)


def hardware(gpu: bool = False) -> str:
    """Return processor, cores and memory of this machine, and its GPU if it counts."""
    cpuinfo = Path("/proc/cpuinfo")
    processor = platform.processor() or platform.machine()
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} cores of {processor}, {memory:.0f} GiB"
    if gpu:
        import torch

        machine += f", {torch.cuda.get_device_name()}"
    return machine


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is flush left, others flush right."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = [
        " | ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, " | ".join(rule))
    return "\n".join(f"| {line} |" for line in lines) + "\n"
