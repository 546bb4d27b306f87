"""How figures look and are saved: for the page in the colours of its theme, in files for slides and papers on white."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from vitssl.report.grid import Grid
from vitssl.report.rows import Row

# Okabe and Ito's hues, then Tol's, dark enough for white paper; safe for the colour-blind, and markers differ in greyscale
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#b3568d", "#bd8100", "#3695d1", "#4d4d4d", "#882255", "#7f7f1f", "#332288", "#a8922f", "#26897b",
)  # fmt: skip
DARK_COLOURS = (  # the same on a dark page
    "#4fa8e8", "#ff8a4a", "#35c79b", "#e59cca", "#f0b53a", "#93d3fa", "#b9b9b9", "#dc6f9f", "#cbcb5c", "#958cf0", "#e6d78c", "#67d1c1",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
INK, SOFT, LINE, PAPER = "#1c1d1f", "#5d6168", "#dcdcda", "#ffffff"
WHITE = "#fffffe"  # on a picture, in every theme
# the files of a plot besides the page's SVG, and how they are saved
FILES = {"png": {"dpi": 200}, "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}}}
KINDS = ("svg", *FILES)
FADED = 0.4  # how strongly the last value of an axis is drawn, where an arm has several
THEME = {INK: "--ink", SOFT: "--soft", LINE: "--line", PAPER: "--paper"} | {colour: f"--arm-{i}" for i, colour in enumerate(COLOURS)}
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "vitssl", "pdf.fonttype": 42, "font.size": 9, "axes.titlesize": 10,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": LINE, "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.edgecolor": SOFT, "axes.facecolor": "none",
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": SOFT, "ytick.color": SOFT,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "figure.facecolor": PAPER,
    "legend.frameon": False, "figure.dpi": 150, "text.parse_math": False,  # names of arms and classes may have a $
}  # fmt: skip
Plot = tuple[str, Figure]  # its caption, and the figure


def look(grid: Grid, row: Row) -> dict[str, Any]:
    """Colour and marker of a row, the same in every plot of the sweep: an arm has one colour, its further values are fainter.

    Of a single arm the values have colours of their own.
    """
    arms = list(dict.fromkeys(cell.arm for cell in grid.sweep.cells))
    mine = [other for other in grid.rows if other.arm is row.arm]
    i, among = (grid.rows.index(row), 0) if grid.alone else (arms.index(row.arm.name) if row.arm.name in arms else 0, mine.index(row))
    faint = FADED ** (among / (len(mine) - 1)) if among else 1.0
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[(i + i // len(COLOURS) + among) % len(MARKERS)], "alpha": faint}


def save(figure: Figure, path: Path) -> str:
    """Write ``path`` as SVG, PNG and PDF, whatever its suffix; gives the <svg> element for a page, in the colours of its theme."""
    out = StringIO()
    with rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # it stands, and takes longer than drawing
        for kind, options in FILES.items():
            figure.savefig(path.with_suffix(f".{kind}"), **options)
    svg = out.getvalue()[out.getvalue().index("<svg") :]
    path.with_suffix(".svg").write_text(svg)
    return themed(svg)


def themed(svg: str) -> str:
    """The <svg> element with the page's colours and its font."""
    coloured = re.sub(r"#[0-9a-f]{6}\b", lambda match: f"var({THEME[match[0]]})" if match[0] in THEME else match[0], svg)
    return re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", coloured)


def with_ids(svg: str, prefix: str) -> str:
    """The <svg> element with ``prefix`` before every id, so that ids of several plots on one page differ."""
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
