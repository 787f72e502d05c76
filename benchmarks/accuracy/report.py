"""The Markdown made from the entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.compare import paired
from benchmarks.accuracy.store import Entry
from benchmarks.accuracy.table import Table
from benchmarks.records import markdown

Entries = Mapping[str, Entry]

INTRODUCTION = """# Accuracy

Made from `{name}` by the command under each table. Accuracy in % after the last round
on all clients' own test sets: mean over seeds of the mean over clients; *± clients* is
the standard deviation over clients (mean over seeds), *± seeds* the one over seeds.
*Averaged* is the mean over a network's exits, *early* the accuracy where inference
stops at the first confident exit, *MACs* what that costs per sample in millions.
Differences are paired: the same seed gives every method the same partition, initial
weights and sampled clients; ± is the standard error over seeds, in brackets the one
over clients. Bytes are payload per client and round of training, down and up.
"""


def report(tables: Iterable[Table], entries: Entries, path: Path) -> str:
    """Return the Markdown of all tables that have entries.

    Parameters
    ----------
    path
        The JSON file; figures named ``<stem>-<table>.svg`` beside it are shown.
    """
    parts = [INTRODUCTION.format(name=path.name)]
    for table in tables:
        if any(f"{cell.key}/averaged" in entries for cell in table.cells):
            parts.append(_section(table, entries, path))
    return "\n".join(parts)


def _section(table: Table, entries: Entries, path: Path) -> str:
    cells = [c for c in table.cells if f"{c.key}/averaged" in entries]
    averaged = [entries[f"{cell.key}/averaged"] for cell in cells]
    lines = [f"## {table.title}", "", table.about.strip(), ""]
    lines += [_table(table, cells, entries)]
    prefix = f"{table.name}/bars/"
    bars = [entry for name, entry in entries.items() if name.startswith(prefix)]
    if bars:
        lines += [_bars(bars)]
    if costs := _costs(cells, entries):
        lines += [costs]
    figure = path.with_name(f"{path.stem}-{table.name}.svg")
    if figure.exists():
        lines += [f"![Accuracy over rounds: {table.title}]({figure.name})", ""]
    origins = [
        f"`{command}`, data {data}, {hardware}, {date}"
        for command, data, hardware, date in dict.fromkeys(
            (e["command"], e["data"], e["hardware"], e["date"]) for e in averaged
        )
    ]
    return "\n".join([*lines, *(f"- {origin}" for origin in origins), ""])


def _table(table: Table, cells: Sequence[Cell], entries: Entries) -> str:
    exits = sorted(
        {
            name.rpartition("/")[2]
            for cell in cells
            for name in entries
            if name.startswith(f"{cell.key}/exit-")
        }
    )
    header = ["", "averaged", "± clients", "± seeds"]
    header += [name.replace("-", " ") for name in exits]
    header += ["early", "MACs"] if exits else []
    reference = entries.get(f"{table.name}/{table.reference}/averaged")
    if table.reference:
        label = next(c.label for c in table.cells if c.name == table.reference)
        header += [f"vs. {label}"]
    header += ["bytes", "s/round", "T", "seeds"]
    rows = []
    for cell in cells:
        averaged = entries[f"{cell.key}/averaged"]
        value = partial(_value, entries, cell)
        row = [
            cell.label,
            _number(averaged["value"], 2),
            _number(averaged["std_clients"], 2),
            _number(averaged["std_seeds"], 2),
        ]
        row += [value(name, 2) for name in exits]
        row += [value("early", 2), value("early-macs", 2, 1e-6)] if exits else []
        if table.reference:
            same = cell.name == table.reference
            row += ["" if same else _difference(averaged, reference)]
        row += [f"{value('down-bytes', 0)} / {value('up-bytes', 0)}"]
        row += [value("round-seconds", 1), str(averaged["rounds"])]
        row += [" ".join(map(str, averaged["seeds"]))]
        rows.append(row)
    return markdown(header, rows)


def _value(
    entries: Entries, cell: Cell, figure: str, digits: int, scale: float = 1.0
) -> str:
    entry = entries.get(f"{cell.key}/{figure}")
    return _number(entry["value"] * scale if entry else None, digits)


def _bars(bars: Sequence[Entry]) -> str:
    rows = [
        [
            entry["name"].split("/", 2)[2],
            _number(entry["value"], 2, sign=True),
            _number(entry.get("standard_error"), 2),
            _number(entry.get("standard_error_clients"), 2),
            _number(entry["target"], 2, sign=True),
            {True: "yes", False: "**no**", None: ""}[entry["met"]],
            " ".join(map(str, entry["seeds"])),
        ]
        for entry in bars
    ]
    header = ["points", "value", "± seeds", "± clients", "bar", "met", "seeds"]
    return markdown(header, rows)


def _costs(cells: Sequence[Cell], entries: Entries) -> str:
    targets = sorted({target for cell in cells for target in cell.targets})
    rows = []
    for cell in cells:
        for target in targets:
            found = {
                figure: entries.get(f"{cell.key}/{figure}-to-{target:g}")
                for figure in ("rounds", "bytes", "macs")
            }
            if found["rounds"] is None:
                continue
            values = {k: e["value"] if e else None for k, e in found.items()}
            row = [cell.label, f"{target:g} %"]
            if values["rounds"] is None:
                row += ["not reached", "", ""]
            else:
                row += [_number(values["rounds"], 1), _number(values["bytes"], 0)]
                row += [_number((values["macs"] or 0) / 1e9, 1)]
            rows.append(row)
    if not rows:
        return ""
    header = ["cost of reaching", "", "rounds", "bytes per client", "training GMACs"]
    return markdown(header, rows)


def _difference(entry: Entry, reference: Entry | None) -> str:
    difference = paired(entry, reference) if reference else None
    if difference is None:
        return ""
    text = f"{difference.mean:+.2f}"
    if difference.error is not None:
        text += f" ± {difference.error:.2f}"
    if difference.error_clients is not None:
        text += f" ({difference.error_clients:.2f})"
    return text


def _number(value: float | None, digits: int, *, sign: bool = False) -> str:
    if value is None:
        return ""
    return f"{value:{'+' if sign else ''},.{digits}f}"
