"""Figures of masked tokens: which patches they select, and how much the class token attends to them.

Shapes: S images, J masked tokens, N patches.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from vitssl.report.figures import style
from vitssl.report.figures.analysis_results import Analysed, by_label, images_of
from vitssl.report.figures.pictures import enlarged
from vitssl.report.figures.sheet import Sheet
from vitssl.report.figures.style import COLOURS, MARKERS, Plot

DIMMED, GREY = 0.8, 0.6  # share of this grey that is mixed into patches that are not selected
MOST_ROWS = 7  # masked tokens that have a row in a figure; of more tokens, some are drawn

# ----------------------------------------------------------------------------------------------------------- selections


def selections(runs: list[Analysed]) -> Plot:
    """Draw which patches the masked tokens of one run select in images (Figure 2 of the masked tokens paper).

    Below each image are the patches that its masked tokens select, and at the bottom which token is the first to select a patch.
    """
    (run,) = runs
    with np.load(run.arrays) as arrays:
        images_SHWC, selected_SJN, frequency_JN = arrays["images"], arrays["selected"], arrays["frequency"]
    S, J, _ = selected_SJN.shape
    selected_SJhw, frequency_Jhw = selected_SJN.reshape(S, J, *run.facts["grid"]), frequency_JN.reshape(J, *run.facts["grid"])
    tokens = _shown(J)
    sheet, colours_J3 = Sheet(S + 1), _colours(J)
    sheet.add("image", list(images_SHWC))
    for j in tokens:
        pictures = [_dimmed(image_HWC, selected_Jhw[j]) for image_HWC, selected_Jhw in zip(images_SHWC, selected_SJhw, strict=True)]
        frequency_hw3 = np.repeat(1 - frequency_Jhw[j, ..., None], 3, axis=2)
        above = [*[""] * S, "how often"] if j == tokens[0] else None
        sheet.add(f"token {j + 1}: {run.facts['sizes'][j]} patches", [*pictures, frequency_hw3], above=above, colour=colours_J3[j])
    overlays = [_overlay(image_HWC, selected_Jhw, colours_J3) for image_HWC, selected_Jhw in zip(images_SHWC, selected_SJhw, strict=True)]
    sheet.add("first token to select", overlays)
    return _selections_caption(run), sheet.done()


def _shown(count: int) -> list[int]:
    """Return the numbers of the masked tokens that have a row: all of them, or some at equal steps if there are many."""
    return sorted({round(j) for j in np.linspace(0, count - 1, min(count, MOST_ROWS))})


def _selections_caption(run: Analysed) -> str:
    facts, shown = run.facts, _shown(len(run.facts["sizes"]))
    near = ", ".join(f"{facts['locality'][j]:.2f} ({facts['locality_random'][j]:.2f})" for j in shown)
    shared = ", ".join(f"{facts['iou'][i][j]:.2f}" for i, j in itertools.pairwise(shown))
    selected = "a random selection, the same for all images" if facts["selection"] == "random" else "the highest-scoring patches"
    return (
        f"{run.label}: {selected} of each masked token. Below, each patch has the colour of the first token that selects it; on the "
        f"right, how often each place is selected over {facts['images']} images (black: always). Share of a token's patches with a "
        f"neighbour that it also selects (for random sets): {near}. Intersection over union of each row's set and the next row's: "
        f"{shared or 'none'}."
    )


def _dimmed(image_HWC: np.ndarray, selected_hw: np.ndarray) -> np.ndarray:
    pixels_HWC = image_HWC / 255
    return np.where(enlarged(selected_hw, image_HWC)[..., None], pixels_HWC, DIMMED * GREY + (1 - DIMMED) * pixels_HWC)


def _overlay(image_HWC: np.ndarray, selected_Jhw: np.ndarray, colours_J3: list[tuple[float, ...]]) -> np.ndarray:
    first_hw = selected_Jhw.argmax(0)  # the last token selects every patch, so there always is a first one
    grey_HW1 = image_HWC.mean(-1, keepdims=True) / 255
    return 0.45 * grey_HW1 + 0.55 * enlarged(np.array(colours_J3)[first_hw], image_HWC)


def _colours(count: int) -> list[tuple[float, ...]]:
    if count <= len(COLOURS):
        return [to_rgb(colour) for colour in COLOURS[:count]]
    return [colormaps["viridis"](j / (count - 1))[:3] for j in range(count)]


# ------------------------------------------------------------------------------------------------------- mask attention


def mask_attention(runs: list[Analysed]) -> Plot:
    """Draw the last block's attention from the class token to each masked token (Figure 4 of the masked tokens paper).

    The upper panels show the attention itself, the lower ones its share of what all masked tokens get. There is a column for each number
    of masked tokens, and a line for each label, the mean over its seeds.
    """
    counts = sorted({run.facts["masked_tokens"] for run in runs})
    figure = Figure(figsize=(style.WIDTHS_IN.get(len(counts), 2.8 * len(counts)), 6.0), layout="constrained")
    axes = figure.subplots(2, len(counts), squeeze=False)
    for (whole, share), count in zip(axes.T, counts, strict=True):
        runs_of_count = [run for run in runs if run.facts["masked_tokens"] == count]
        for label, place, seeds in by_label(runs_of_count):
            look = seeds[0].look | {"marker": MARKERS[(MARKERS.index(seeds[0].look["marker"]) + place) % len(MARKERS)]}
            _attention_lines(whole, seeds, "mean", label, look)
            _attention_lines(share, seeds, "share", label, look)
        for tokens in sorted({run.facts["tokens"] for run in runs_of_count}):
            style.mark(whole, 1 / tokens, f"equal attention to all {tokens} tokens")
        style.mark(share, 1 / count, "equal shares")
        whole.set(title=f"{count} masked tokens", ylabel="attention, over all tokens")
        share.set(ylabel="share of the masked tokens' attention")
        for axis in (whole, share):
            axis.set(xlabel="masked token, from few patches to all")
            axis.margins(y=0.15)
            axis.set_xticks(sorted({round(j) for j in np.linspace(1, count, min(count, 8))}))
            axis.legend(fontsize=7)
    caption = (
        f"Attention from the class token to each masked token in the last block: means over heads, {images_of(runs)} images, and seeds."
    )
    return caption, figure


def _attention_lines(axis: Axes, seeds: list[Analysed], kind: str, label: str, look: dict[str, Any]) -> None:
    """Draw a line for each prefix token, with the standard deviation over ``seeds``.

    For a single seed, error bars show the standard deviation over images if it is known.
    """
    last_blocks = [run.facts["blocks"][max(run.facts["blocks"], key=int)] for run in seeds]
    for n, token in enumerate(token for token in last_blocks[0] if all(token in block for block in last_blocks)):
        values_SJ = np.array([block[token][kind] for block in last_blocks])
        spread = values_SJ.std(0, ddof=1) if len(last_blocks) > 1 else last_blocks[0][token]["std"] if kind == "mean" else None
        line = look | {"linestyle": ("-", "--")[n % 2], "markerfacecolor": (look["color"], style.PAPER)[n % 2]}
        name = label if len(last_blocks[0]) == 1 else f"{label}, {token}"
        x = np.arange(1, values_SJ.shape[1] + 1)
        axis.errorbar(x, values_SJ.mean(0), yerr=spread, label=name, markersize=4, capsize=2, linewidth=1.2, **line)
