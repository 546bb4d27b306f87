"""What several plots share: panels side by side, and axes that span decades."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

WIDTHS_IN = {1: 4.25, 2: 6.6, 3: 13.2, 4: 13.2}  # by panels side by side: three figures, two or one fill a page
DECADES = 300  # up to this ratio a logarithmic axis has ticks at 2 and 5 too
TICK = 0.06  # of a linear axis, which a tick and its label take
WIDE = 20  # from this ratio of the largest value to the smallest on, an axis is logarithmic


def panels(count: int, height: float = 3.2, share_y: bool = False) -> tuple[Figure, np.ndarray]:
    """A figure of ``count`` panels, at most four side by side; ``height`` of each in inches."""
    across = count if count <= 4 else min((4, 3), key=lambda n: -count % n)  # with the fewest gaps in the last row
    down = -(-count // across)
    figure = Figure(figsize=(WIDTHS_IN[across], height * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=share_y).reshape(-1)
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes


def _apart(values: list[Any]) -> bool:
    """Is there room for a tick at every value of a linear axis?"""
    ordered = sorted(set(values))
    return all(TICK * (ordered[-1] - ordered[0]) <= after - before for before, after in pairwise(ordered))


def is_wide(values: list[float]) -> bool:
    """Do positive values span so much that only a logarithmic axis tells the small ones apart?"""
    return bool(values) and min(values) > 0 and max(values) / min(values) >= WIDE


def log_x(axis: Axes, values: list[float]) -> None:
    """A logarithmic horizontal axis for values, with plain figures; the usual powers of ten are formulas, which STYLE leaves unread."""
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < DECADES * min(values) else (1,)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def log_if_wide(axis: Axes, values: list[Any], name: str) -> None:
    """A logarithmic axis with a tick at every value, where they span much or are learning rates, which are compared as ratios; of whole
    numbers, such as epochs, a linear one has whole ticks."""
    if min(values) > 0 and (is_wide(values) or name.rsplit(".", 1)[-1].endswith("lr")):
        axis.set_xscale("log")
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.minorticks_off()
    elif _apart(values):
        axis.set_xticks(values, [f"{value:g}" for value in values])
    elif all(isinstance(value, int) for value in values):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
