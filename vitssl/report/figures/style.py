"""How figures look and are saved: for the page in the colours of its theme, in files for slides and papers on white."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row

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
    "legend.frameon": False, "figure.dpi": 150, "image.composite_image": False,
    "text.parse_math": False,  # names of arms and classes may have a $
}  # fmt: skip
WIDTHS_IN = {1: 4.25, 2: 6.6, 3: 13.2, 4: 13.2}  # by panels side by side
LINE_IN = 0.19  # height of a legend's line
WIDE = 20  # from this ratio of the largest value to the smallest on, an axis is logarithmic
DECADES = 300  # up to this ratio a logarithmic axis has ticks at 2 and 5 too
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


def panels(count: int, height_in: float = 3.2, share_y: bool = False) -> tuple[Figure, np.ndarray]:
    """A figure of ``count`` panels, at most four side by side, and their axes."""
    across = count if count <= 4 else min((4, 3), key=lambda n: -count % n)  # with the fewest gaps in the last row
    down = -(-count // across)
    figure = Figure(figsize=(WIDTHS_IN[across], height_in * down), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)
    axes = figure.subplots(down, across, squeeze=False, sharey=share_y).reshape(-1)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def add_legend(figure: Figure, grid: Grid, rows: list[Row], line: str = "") -> None:
    """Name rows below a figure; ``line``: "" for markers alone."""
    name_below(figure, {grid.label(row): look(grid, row) for row in rows}, line)


def name_below(figure: Figure, looks: dict[str, dict[str, Any]], line: str) -> None:
    """Say below a figure, whose panels keep their height, what looks how."""
    handles = [Line2D([], [], label=label, **{"linestyle": line, "markersize": 6} | one) for label, one in looks.items()]
    across = max(1, min(len(looks), int(figure.get_figwidth() * 13 / (max(map(len, looks)) + 6))))  # 13 letters an inch
    figure.set_figheight(figure.get_figheight() + LINE_IN * -(-len(looks) // across))
    figure.legend(handles=handles, loc="outside lower left", ncols=across, fontsize=8, handlelength=3)


def mark(axis: Axes, y: float, label: str) -> None:
    """A dotted line for what would be nothing special."""
    axis.axhline(y, color=SOFT, linewidth=0.8, linestyle=":", label=label)


def is_wide(values: list[float]) -> bool:
    """Do positive values span so much that only a logarithmic axis tells the small ones apart?"""
    return min(values) > 0 and max(values) / min(values) >= WIDE


def log_x(axis: Axes, values: list[float]) -> None:
    """A logarithmic horizontal axis with plain figures: the usual powers of ten are formulas, which STYLE leaves unread."""
    axis.set_xscale("log")
    _plain_figures(axis.xaxis, values)


def log_y(axis: Axes, values: list[float]) -> None:
    """The same of the vertical axis."""
    axis.set_yscale("log")
    _plain_figures(axis.yaxis, values)


def _plain_figures(ticks: Axis, values: list[float]) -> None:
    ticks.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < DECADES * min(values) else (1,)))
    ticks.set_major_formatter("{x:g}")
    ticks.set_minor_formatter(NullFormatter())


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
