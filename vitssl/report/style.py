"""How figures look and are saved. Colours are Okabe and Ito's, then Tol's, safe for the colour-blind; markers differ in greyscale."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#882255", "#999933", "#332288", "#DDCC77", "#44AA99",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
STYLE = {
    "svg.fonttype": "path", "svg.hashsalt": "vitssl", "font.size": 9, "axes.titlesize": 10,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e4e4e4", "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.edgecolor": "#666666",
    "legend.frameon": False, "figure.dpi": 150, "hatch.linewidth": 0.5,
}  # fmt: skip
Plot = tuple[str, Figure]  # its caption, and the figure


def save(figure: Figure, path: Path) -> str:
    """Write ``path`` as SVG and PNG, whatever its suffix; gives the <svg> element."""
    out = StringIO()
    with rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(path.with_suffix(".png"), dpi=200)
    svg = out.getvalue()[out.getvalue().index("<svg") :]
    path.with_suffix(".svg").write_text(svg)
    return svg


def with_ids(svg: str, prefix: str) -> str:
    """The <svg> element with ``prefix`` before every id, so that ids of several plots on one page differ."""
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}", svg)
