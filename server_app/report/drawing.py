"""What all figures of the report have in common: look, sizes, files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

INK: Final = "#1c1c1e"
PAPER: Final = "#fefefe"
SERIES: Final = (
    ("#0072b2", "o", "-"),
    ("#d55e00", "s", (0, (5, 1.5))),
    ("#009e73", "^", (0, (1.2, 1.2))),
    ("#cc79a7", "D", (0, (5, 1.5, 1.2, 1.5))),
    ("#56b4e9", "v", (0, (3, 1, 1, 1, 1, 1))),
    ("#e69f00", "P", (0, (8, 2))),
)
"""Colour, marker and dashes of each series: Okabe and Ito's colours, told apart with
any colour vision, and markers and dashes for those who print in grey."""

_WIDTH = 5.4  # inches: as wide as a phone shows without shrinking the text
_MARKERS = 14  # per line at most
_STYLE: Final = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "report",  # the same file for the same data
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "grid.color": INK,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with the words that belong to it.

    Attributes
    ----------
    name
        For file names; letters and hyphens.
    title
        Heading above the figure.
    alt
        What it shows, for those who do not see it.
    note
        What else one must know to read it.
    """

    name: str
    title: str
    alt: str
    figure: Figure
    note: str = ""

    def write(self, folder: Path, stem: str) -> str:
        """Write ``<stem>-<name>.svg`` and ``.png``; return the SVG for the page.

        In the page, colours are CSS variables, so that they follow its theme.
        """
        path = folder / f"{stem}-{self.name}"
        buffer = io.StringIO()
        with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
            self.figure.draw_without_rendering()
            self.figure.set_layout_engine("none")  # laid out: once for both files
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
            self.figure.savefig(path.with_name(f"{path.name}.png"), dpi=200)
        path.with_name(f"{path.name}.svg").write_text(buffer.getvalue())
        return inline(buffer.getvalue(), path.name, self.alt)


@contextmanager
def canvas(height: float = 3.4, rows: int = 1, columns: int = 1) -> Iterator[Any]:
    """Give a figure in the report's look, and its axes in one list.

    Parameters
    ----------
    height
        In inches.
    """
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(_WIDTH, height))
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, list(axes.flat)


def line(axis: Axes, index: int, x: ArrayLike, y: ArrayLike, **options: Any) -> None:
    """Draw a series in its colour, with its marker and dashes."""
    colour, marker, dashes = SERIES[index % len(SERIES)]
    axis.plot(
        x,
        y,
        **{
            "color": colour,
            "marker": marker,
            "linestyle": dashes,
            "markevery": max(1, np.size(x) // _MARKERS),
            **options,
        },
    )


def by_round(axis: Axes, label: str) -> None:
    """Label the axes of a figure over rounds."""
    axis.set(xlabel="round", ylabel=label)
    axis.xaxis.set_major_locator(
        MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10])
    )


def legend(figure: Figure, columns: int = 3) -> None:
    """Put a legend above the axes."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(
            handles, labels, loc="outside upper left", ncols=min(columns, len(labels))
        )


def inline(svg: str, name: str, alt: str) -> str:
    """Make a file's SVG fit to stand in a page among others.

    Identifiers get the figure's name in front, sizes go, colours become CSS variables.
    """
    from markupsafe import escape

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'href="#', f'href="#{name}-', body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    for number, (colour, _, _) in enumerate(SERIES, start=1):
        body = body.replace(colour, f"var(--series-{number})")
    body = body.replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
