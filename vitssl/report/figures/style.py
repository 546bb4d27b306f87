"""The look of figures, and saving them: in the theme's colours for the report page, on white in files for slides and papers."""

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
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from vitssl.atomic import replacing, write_text_atomically
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row

# Okabe and Ito's hues, then Tol's, dark enough for white paper and safe for colour-blind readers; markers tell arms apart in greyscale
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#b3568d", "#bd8100", "#3695d1", "#4d4d4d", "#882255", "#7f7f1f", "#332288", "#a8922f", "#26897b",
)  # fmt: skip
DARK_COLOURS = (  # the same hues for a dark page
    "#4fa8e8", "#ff8a4a", "#35c79b", "#e59cca", "#f0b53a", "#93d3fa", "#b9b9b9", "#dc6f9f", "#cbcb5c", "#958cf0", "#e6d78c", "#67d1c1",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
INK, SOFT, LINE, PAPER = "#1c1d1f", "#5d6168", "#dcdcda", "#ffffff"
WHITE = "#fffffe"  # white on pictures; it is not in THEME, so every theme keeps it
# the types of a plot's files besides SVG, with the options that they are saved with
FILES: dict[str, dict[str, Any]] = {"png": {"dpi": 200}, "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}}}
KINDS = ("svg", *FILES)
FADED = 0.4  # opacity of an arm's last row if it has several
THEME = {INK: "--ink", SOFT: "--soft", LINE: "--line", PAPER: "--paper"} | {colour: f"--arm-{i}" for i, colour in enumerate(COLOURS)}
STYLE: dict[Any, Any] = {  # by the names of matplotlib's settings, which its stubs list one by one
    "svg.fonttype": "none", "svg.hashsalt": "vitssl", "pdf.fonttype": 42, "font.size": 9, "axes.titlesize": 10,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": LINE, "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.edgecolor": SOFT, "axes.facecolor": "none",
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": SOFT, "ytick.color": SOFT,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "figure.facecolor": PAPER,
    "legend.frameon": False, "figure.dpi": 150, "image.composite_image": False,
    "text.parse_math": False,  # names of arms and classes may have a $
}  # fmt: skip
WIDTHS_IN = {1: 4.25, 2: 6.6, 3: 8.4}  # figure widths by the number of panels side by side: letters can be read across a page of paper
LINE_IN = 0.19  # height of a legend's line
WIDE = 20  # an axis is logarithmic from this ratio of the largest value to the smallest on
DECADES = 300  # a logarithmic axis also has ticks at 2 and 5 up to this ratio
Plot = tuple[str, Figure]  # a caption and the figure


def look(grid: Grid, row: Row) -> dict[str, Any]:
    """Return the colour, marker and opacity of a row, which are the same in every plot of the sweep.

    An arm has one colour, and its further rows are fainter. If the sweep has a single arm, each row has a colour of its own.
    """
    arms = list(dict.fromkeys(cell.arm for cell in grid.sweep.cells))
    rows = [other for other in grid.rows if other.arm is row.arm]
    i, position = (
        (grid.rows.index(row), 0) if grid.has_single_arm else (arms.index(row.arm.name) if row.arm.name in arms else 0, rows.index(row))
    )
    faint = FADED ** (position / (len(rows) - 1)) if position else 1.0
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[(i + i // len(COLOURS) + position) % len(MARKERS)], "alpha": faint}


def panels(count: int, height_in: float = 3.2, share_y: bool = False) -> tuple[Figure, np.ndarray]:
    """Create a figure of ``count`` panels, at most three side by side, and return it with their axes."""
    across = 2 if count in (2, 4) else min(count, 3)
    down = -(-count // across)
    figure = Figure(figsize=(WIDTHS_IN[across], height_in * down), layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.07))
    axes = figure.subplots(down, across, squeeze=False, sharey=share_y).reshape(-1)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def add_legend(figure: Figure, grid: Grid, rows: list[Row], line: str = "") -> None:
    """Add a legend of ``rows`` below a figure; ``line`` is the line style, "" for markers alone."""
    name_below(figure, {grid.label(row): look(grid, row) for row in rows}, line)


def name_below(figure: Figure, looks: dict[str, dict[str, Any]], line: str) -> None:
    """Add a legend of ``looks`` ({label: line properties}) below a figure, whose panels keep their height."""
    usual: dict[str, Any] = {"linestyle": line, "markersize": 6}
    handles = [Line2D([], [], label=label, **usual | properties) for label, properties in looks.items()]
    across = max(1, min(len(looks), int(figure.get_figwidth() * 13 / (max(map(len, looks)) + 6))))  # 13 letters an inch
    figure.set_figheight(figure.get_figheight() + LINE_IN * -(-len(looks) // across))
    figure.legend(handles=handles, loc="outside lower left", ncols=across, fontsize=8, handlelength=3)


def mark(axis: Axes, y: float, label: str) -> None:
    """Draw a dotted horizontal line at ``y``, a reference value such as that of equal attention to all tokens."""
    axis.axhline(y, color=SOFT, linewidth=0.8, linestyle=":", label=label)


def is_wide(values: list[float]) -> bool:
    """Whether the values are positive and span so much that only a logarithmic axis tells the small ones apart."""
    return min(values) > 0 and max(values) / min(values) >= WIDE


def log_x(axis: Axes, values: list[float]) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at its ticks.

    Matplotlib's usual powers of ten are formulas, which STYLE does not parse.
    """
    axis.set_xscale("log")
    _plain_tick_labels(axis.xaxis, values)


def log_y(axis: Axes, values: list[float]) -> None:
    """Make the vertical axis logarithmic, with plain numbers at its ticks."""
    axis.set_yscale("log")
    _plain_tick_labels(axis.yaxis, values)


def _plain_tick_labels(ticks: Axis, values: list[float]) -> None:
    ticks.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < DECADES * min(values) else (1,)))
    ticks.set_major_formatter("{x:g}")
    ticks.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> str:
    """Save a figure as SVG, PNG and PDF, whatever the suffix of ``path``.

    Return the <svg> element for a page, in the colours of its theme.
    """
    out = StringIO()
    with rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        figure.set_layout_engine(None)  # the layout is final, and computing it again takes longer than drawing
        for kind, options in FILES.items():
            with replacing(path.with_suffix(f".{kind}")) as temporary:
                figure.savefig(temporary, format=kind, **options)
    svg = out.getvalue()[out.getvalue().index("<svg") :]
    write_text_atomically(path.with_suffix(".svg"), svg)
    return themed(svg)


def themed(svg: str) -> str:
    """Return the <svg> element with the colours and the font of the page."""
    coloured = re.sub(r"#[0-9a-f]{6}\b", lambda match: f"var({THEME[match[0]]})" if match[0] in THEME else match[0], svg)
    return re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", coloured)


def with_ids(svg: str, prefix: str) -> str:
    """Return the <svg> element with ``prefix`` before every id, so that the ids of several plots on one page differ."""
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
