"""The page: tables and figures put into ``page.html``."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from server_app.report import comparison_figures, run_figures, tables
from server_app.report.drawing import Drawing
from server_app.report.groups import Task, task_title, tasks
from server_app.report.runs import Run

_HERE = Path(__file__).parent


def write_report(runs: Sequence[Run], output: Path) -> Path:
    """Write ``index.html`` and the folder ``figures``; return the page's path.

    The page holds all it shows: it can be sent and opened anywhere, offline.

    Parameters
    ----------
    runs
        One or more; those on the same data are compared.
    output
        Folder, made where it is absent.
    """
    figures = output / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    compared = tasks(runs)
    stems = _stems([task.title for task in compared] + [run.name for run in runs])
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    page = environment.get_template("page.html").render(
        title=_title(runs),
        subtitle=f"Made on {time.strftime('%Y-%m-%d at %H:%M')} from {_where(runs)}",
        style=Markup((_HERE / "style.css").read_text()),
        script=Markup((_HERE / "script.js").read_text()),
        tasks=[_task(task, stems.pop(0), figures) for task in compared],
        runs=[_run(run, stems.pop(0), figures) for run in runs],
    )
    path = output / "index.html"
    path.write_text(page)
    return path


def _task(task: Task, stem: str, figures: Path) -> dict[str, Any]:
    several = len(task.runs) > 1
    drawings = [draw(task) for draw in comparison_figures.FIGURES if several]
    return {
        "id": stem,
        "title": task.title,
        "summary": tables.summary(task),
        "papers": tables.papers(task),
        "differing": tables.differences(task),
        "drawings": _shown(drawings, stem, figures),
    }


def _run(run: Run, stem: str, figures: Path) -> dict[str, Any]:
    drawings = [draw(run) for draw in run_figures.FIGURES]
    state = "Finished" if run.finished else f"Not finished: {run.status}"
    started = f"; started {run.started}" if run.started else ""
    return {
        "id": stem,
        "name": run.name,
        "method": run.method,
        "model": run.settings["model"],
        "task": task_title(run),
        "state": f"{state}{started}.",
        "tiles": tables.tiles(run),
        "drawings": _shown(drawings, stem, figures),
        "failures": tables.failures(run),
        "clients": tables.clients(run),
        "settings": tables.settings(run),
        "versions": tables.versions(run),
    }


def _shown(
    drawings: Sequence[Drawing | None], stem: str, figures: Path
) -> list[dict[str, Any]]:
    return [
        {
            "title": drawing.title,
            "note": drawing.note,
            "svg": Markup(drawing.write(figures, stem)),
        }
        for drawing in drawings
        if drawing is not None
    ]


def _stems(names: Sequence[str]) -> list[str]:
    """Return names for files and anchors, each once."""
    stems: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "run"
        if stem.lower() in map(str.lower, stems):
            stem = f"{stem}-{len(stems) + 1}"
        stems.append(stem)
    return stems


def _title(runs: Sequence[Run]) -> str:
    return runs[0].name if len(runs) == 1 else f"Comparison of {len(runs)} runs"


def _where(runs: Sequence[Run]) -> str:
    parents = dict.fromkeys(str(run.folder.parent) for run in runs)
    return ", ".join(parents) if len(runs) > 1 else str(runs[0].folder)
