"""Figures of what changes from block to block: what heads look at, and how alike tokens become.

Every line has a label and is the mean over the seeds of that label; error bars show their standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from vitssl.report.figures import style
from vitssl.report.figures.analysis_results import Analysed, by_label, images_of
from vitssl.report.figures.style import Plot

STYLES = ("-", "--", ":", "-.")  # of an arm's labels, which have the same colour and marker
OF_TOKENS = {
    "distance": "distance of patch tokens",
    "cosine_distance": "cosine distance of patch tokens",
    "variance": "variance over patches (feature map)",
    "rank": "effective rank over images",
}


def attention(runs: list[Analysed]) -> Plot:
    """Draw distance and entropy of attention by block, and the attention that each token receives in the first, middle and last block.

    The distance is the left half of LUT's Figure 4, and the received attention is SSAT's Figure 6.
    """
    figure, (distance, entropy, *received) = style.panels(5)
    for name, axis in (("distance", distance), ("entropy", entropy)):
        _lines(axis, runs, partial(_by_block, name))
        axis.set(xlabel="block")
    for expected in sorted({run.facts["distance_if_equal"] for run in runs}):
        style.mark(distance, expected, "")
    style.mark(entropy, 1, "")
    distance.set(ylabel="attention distance, in image widths")
    entropy.set(ylabel="entropy of attention, share of the largest")
    for axis, (place, depth) in zip(received, (("first", 0), ("middle", 0.5), ("last", 1)), strict=True):
        _lines(axis, runs, partial(_received, depth), dots=False)
        axis.set(xlabel=f"token, in the {place} block", ylabel="attention received (average: 1)")
    style.name_below(figure, _looks(runs), "-")
    caption = (
        f"Attention over {images_of(runs)} images: how far from a patch lies what it attends to, and how evenly it attends to all patches "
        "(means over heads and patches; dotted: all patches alike); and the attention that each token receives from all tokens, 1 on "
        "average, the class token first, then registers and, row by row, patches."
    )
    return caption + _seeds(runs), figure


def _by_block(name: str, run: Analysed) -> dict[int, float]:
    """Return the figure ``name`` of each block, mean over heads if they have one each."""
    return {int(i): float(np.mean(block[name])) for i, block in run.facts["blocks"].items()}


def _received(depth: float, run: Analysed) -> dict[int, float]:
    """Return the attention received by each token in the block at the relative ``depth``, from 0 (first) to 1 (last)."""
    blocks = run.facts["blocks"]
    number = sorted(map(int, blocks))[int(depth * (len(blocks) - 1))]
    return dict(enumerate(blocks[str(number)]["received"]))


def tokens(runs: list[Analysed]) -> Plot:
    """Draw how alike the patch tokens are after each block: Figures 7 and 8 of SSAT, and the right half of LUT's Figure 4.

    LUT's half is drawn as one number for each block and as the spectrum after the last one.
    """
    figure, (*axes, spectrum) = style.panels(5)
    places = " or ".join(sorted({run.facts["place"] for run in runs}))
    for name, axis in zip(OF_TOKENS, axes, strict=True):
        _lines(axis, runs, partial(_by_block, name))
        axis.set(xlabel=places, ylabel=OF_TOKENS[name])
    _lines(spectrum, runs, lambda run: {i: share for i, share in enumerate(run.facts["spectrum"], 1) if share > 1e-9}, dots=False)
    spectrum.set(xlabel=f"direction, after the last {places}", ylabel="share of the variance over images")
    style.name_below(figure, _looks(runs), "-")
    caption = (
        f"Patch tokens after each {places}, before the final norm, of {images_of(runs)} images: how far apart two tokens of an image are "
        "(Euclidean, and 1 - cosine), how much features vary over its patches, and in how many directions the images' mean tokens differ "
        "(fewer than images)."
    )
    return caption + _seeds(runs), figure


def _seeds(runs: list[Analysed]) -> str:
    """Return a sentence on what lines and error bars show; empty if every label has a single seed."""
    counts = sorted({len(seeds) for *_, seeds in by_label(runs)})
    return f" Means over {' or '.join(map(str, counts))} seeds ± standard deviation." if counts[-1] > 1 else ""


def _looks(runs: list[Analysed]) -> dict[str, dict[str, Any]]:
    """Return {label: line properties}; labels of the same arm differ in their line style."""
    return {label: seeds[0].look | {"linestyle": STYLES[place % len(STYLES)]} for label, place, seeds in by_label(runs)}


def _lines(axis: Axes, runs: list[Analysed], values: Callable[[Analysed], dict[int, float]], dots: bool = True) -> None:
    """Draw a line for each label over the positions that all of its seeds have.

    Without ``dots``, which suits many values, lines have no markers or error bars, and their axis is logarithmic if values differ much.
    """
    drawn, looks = list[float](), _looks(runs)
    for label, _, seeds in by_label(runs):
        seed_values = [values(run) for run in seeds]
        x = sorted(set.intersection(*(set(by_x) for by_x in seed_values)))
        values_SX = np.array([[by_x[i] for i in x] for by_x in seed_values])
        spread = values_SX.std(0, ddof=1) if dots and len(seeds) > 1 else None
        line: dict[str, Any] = looks[label] | ({"markersize": 4, "capsize": 2} if dots else {"marker": ""})
        axis.errorbar(x, values_SX.mean(0), yerr=spread, label=label, linewidth=1.2, **line)
        drawn += values_SX.mean(0).tolist()
    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if not dots and drawn and style.is_wide(drawn):
        style.log_y(axis, drawn)
