"""Confusion matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from vitssl.report.figures.style import COLOURS, INK, WHITE, Plot, panels
from vitssl.report.results.best import own_weights_text
from vitssl.report.results.confusion import Confusion, confusions
from vitssl.report.results.grid import Grid

MOST_CLASSES, NAMED_CLASSES, MOST_PANELS = 100, 30, 6  # classes of a drawn matrix; classes with names beside it; panels in a figure
SHORT = 3  # the longest class name, in letters, that is written horizontally below a matrix


def plot(grid: Grid) -> Plot | None:
    """Draw the first MOST_PANELS confusion matrices as shares of each class; None if none has at most MOST_CLASSES classes."""
    shown = [c for c in confusions(grid) if len(c.classes) <= MOST_CLASSES][:MOST_PANELS]
    if not shown:
        return None
    figure, axes = panels(len(shown), 3.9)
    for axis, c in zip(axes, shown, strict=True):
        title_parts = [
            grid.label(c.row),
            grid.name(c.column) if grid.axis else "",
            c.evaluator if c.evaluator != grid.own_evaluator else "",
        ]
        _draw(axis, c, ", ".join(filter(None, title_parts)))
    caption = "Confusion: the share of each class's images (row) that are classified as each class (column), mean over seeds, in %"
    return f"{caption}; of the run's own classifier {own_weights_text(grid)}, unless another evaluator is named.", figure


def _draw(axis: Axes, c: Confusion, title: str) -> None:
    K = len(c.classes)
    share_KK = (100 * c.counts_KK / np.maximum(c.counts_KK.sum(1, keepdims=True), 1e-9)).round(6)
    colour_KK3 = np.broadcast_to(to_rgb(COLOURS[0]), (K, K, 3))  # the share is the opacity, which works on paper of any colour
    axis.imshow(np.concatenate([colour_KK3, share_KK[..., None] / 100], axis=2), interpolation="nearest")
    axis.grid(False)
    axis.set(title=title, xlabel="predicted", ylabel="class")
    if K > NAMED_CLASSES:
        return
    axis.set_xticks(range(K), c.classes, rotation=90 if max(map(len, c.classes)) > SHORT else 0, fontsize=7)
    axis.set_yticks(range(K), c.classes, fontsize=7)
    if K <= 15:
        centred: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8 if K <= 10 else 6.5}
        for (i, j), share in np.ndenumerate(share_KK):
            if share >= 0.5:
                axis.text(j, i, f"{int(share + 0.5)}", color=WHITE if share > 60 else INK, **centred)
