"""Figures of what happens from block to block: what heads look at, and how alike tokens become.

Every line is of what has a name, and the mean of its seeds; bars show their standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from vitssl.report.figures import style
from vitssl.report.figures.analysed import Analysed, by_label, images_of
from vitssl.report.figures.style import Plot

STYLES = ("-", "--", ":", "-.")  # of an arm's names, whose colour and marker are the same
OF_TOKENS = {
    "distance": "distance of patch tokens",
    "cosine_distance": "cosine distance of patch tokens",
    "variance": "variance over patches (feature map)",
    "rank": "effective rank over images",
}


def attention(runs: list[Analysed]) -> Plot:
    """The left half of LUT's Figure 4, the entropy beside it, and Figure 6 of SSAT: what each token gets in the first, the middle and the
    last block."""
    figure, (distance, entropy, *received) = style.panels(5)
    for name, axis in (("distance", distance), ("entropy", entropy)):
        _lines(axis, runs, lambda run, name=name: {int(i): float(np.mean(block[name])) for i, block in run.facts["blocks"].items()})
        axis.set(xlabel="block")
    for equal in sorted({run.facts["distance_if_equal"] for run in runs}):
        style.mark(distance, equal, "")
    style.mark(entropy, 1, "")
    distance.set(ylabel="attention distance, in image widths")
    entropy.set(ylabel="entropy of attention, share of the largest")
    for axis, (place, which) in zip(received, (("first", 0), ("middle", 0.5), ("last", 1)), strict=True):
        _lines(axis, runs, lambda run, which=which: _received(run, which), dots=False)
        axis.set(xlabel=f"token, in the {place} block", ylabel="attention received (average: 1)")
    style.name_below(figure, _looks(runs), "-")
    caption = (
        f"Attention over {images_of(runs)} images: how far from a patch lies what it attends to, and how evenly it attends to all patches "
        "(means over heads and patches; dotted: all patches alike); and the attention that each token receives from all tokens, 1 on "
        "average, the class token first, then registers and, row by row, patches."
    )
    return caption + _seeds(runs), figure


def _received(run: Analysed, which: float) -> dict[int, float]:
    """By token, in a block from the first (0) to the last (1)."""
    blocks = run.facts["blocks"]
    number = sorted(map(int, blocks))[int(which * (len(blocks) - 1))]
    return dict(enumerate(blocks[str(number)]["received"]))


def tokens(runs: list[Analysed]) -> Plot:
    """Figures 7 and 8 of SSAT, and the right half of LUT's Figure 4 as one number for each block and as the spectrum of the last."""
    figure, (*axes, spectrum) = style.panels(5)
    places = " or ".join(sorted({run.facts["place"] for run in runs}))
    for name, axis in zip(OF_TOKENS, axes, strict=True):
        _lines(axis, runs, lambda run, name=name: {int(i): block[name] for i, block in run.facts["blocks"].items()})
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
    """What lines and bars show, where there are several seeds."""
    counts = sorted({len(seeds) for *_, seeds in by_label(runs)})
    return f" Means over {' or '.join(map(str, counts))} seeds ± standard deviation." if counts[-1] > 1 else ""


def _looks(runs: list[Analysed]) -> dict[str, dict[str, Any]]:
    return {label: seeds[0].look | {"linestyle": STYLES[place % len(STYLES)]} for label, place, seeds in by_label(runs)}


def _lines(axis: Axes, runs: list[Analysed], values: Callable[[Analysed], dict[int, float]], dots: bool = True) -> None:
    """One for each name, over what all of its seeds have; without ``dots`` for many values, on a logarithmic axis if they differ much."""
    drawn, looks = list[float](), _looks(runs)
    for label, _, seeds in by_label(runs):
        of_seeds = [values(run) for run in seeds]
        x = sorted(set.intersection(*(set(of_seed) for of_seed in of_seeds)))
        values_SX = np.array([[of_seed[i] for i in x] for of_seed in of_seeds])
        spread = values_SX.std(0, ddof=1) if dots and len(seeds) > 1 else None
        line: dict[str, Any] = looks[label] | ({"markersize": 4, "capsize": 2} if dots else {"marker": ""})
        axis.errorbar(x, values_SX.mean(0), yerr=spread, label=label, linewidth=1.2, **line)
        drawn += values_SX.mean(0).tolist()
    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if not dots and drawn and style.is_wide(drawn):
        style.log_y(axis, drawn)
