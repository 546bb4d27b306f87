"""Figures of what ``vitssl analyze`` left in run folders: of one run, and in a sweep's report of several on one axis.

Shapes: S images, J masked tokens, N patches.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from vitssl.report import style
from vitssl.report.grid import Grid
from vitssl.report.style import COLOURS, MARKERS, STYLE, Plot

DIMMED = 0.75  # how far a patch that is not selected goes to white
MOST_ROWS = 7  # of the masked tokens, those of a figure; of more some are drawn


@dataclass
class Analysed:
    """What an analysis of one run wrote, and what the run is called in a figure."""

    label: str
    facts: dict[str, Any]
    arrays: Path

    @classmethod
    def read(cls, run_folder: Path, name: str, label: str) -> Analysed:
        facts = json.loads((run_folder / "analysis" / f"{name}.json").read_text())
        return cls(label, facts, run_folder / "analysis" / f"{name}.npz")


def save(folder: Path, name: str) -> Path:
    """Draw one run's analysis beside its numbers, as SVG and PNG; gives the PNG.

    Args:
        folder: ``analysis`` in the run folder.
    """
    with rc_context(STYLE):
        _, figure = DRAWN[name]([Analysed.read(folder.parent, name, folder.parent.name)])
    style.save(figure, folder / name)
    return folder / f"{name}.png"


def draw(grid: Grid) -> dict[str, Plot]:
    """The figures of a sweep's analysed runs, by file name; the first seed of what has pictures of its own."""
    made: dict[str, Plot] = {}
    with rc_context(STYLE):
        for name in DRAWN:
            groups = _groups(grid, name)
            if name in EACH:
                made |= {f"{name}-{i}": DRAWN[name](runs[:1]) for i, runs in enumerate(groups.values(), start=1)}
            elif groups:
                made[name] = DRAWN[name]([run for runs in groups.values() for run in runs])
    return made


def _groups(grid: Grid, name: str) -> dict[str, list[Analysed]]:
    """Analysed runs by what they are called: the seeds of one stage of one arm, and of a column where the stage belongs to one."""
    named: dict[Path, dict[str, list[str]]] = {}
    for row in grid.rows:
        for column, cells in row.columns.items():
            for stage, run in (stage for cell in cells for stage in cell.stages):
                if (run.path / "analysis" / f"{name}.json").is_file():
                    named.setdefault(run.path, {}).setdefault(f"{grid.label(row)}, {stage}", []).append(grid.name(column))
    groups: dict[str, list[Analysed]] = {}
    for path, places in named.items():
        (label, columns), *_ = places.items()
        shown = f"{label}, {columns[0]}" if columns[0] and len(columns) == 1 else label
        groups.setdefault(shown, []).append(Analysed.read(path, name, shown))
    return groups


# ----------------------------------------------------------------------------------------------------------- selections


def selections(runs: list[Analysed]) -> Plot:
    """Figure 2 of the masked tokens paper: images, below each the patches of its masked tokens, and which token is the first to select a
    patch."""
    (run,) = runs
    with np.load(run.arrays) as arrays:
        images_SHWC, selected_SJN = arrays["images"], arrays["selected"]
    rows, columns = run.facts["grid"]
    selected_SJhw = selected_SJN.reshape(*selected_SJN.shape[:2], rows, columns)
    S, J = selected_SJN.shape[:2]
    tokens = sorted({round(j) for j in np.linspace(0, J - 1, min(J, MOST_ROWS))})
    figure = Figure(figsize=(1.2 + 1.0 * S, 1.05 * (len(tokens) + 2)), layout="constrained")
    axes = figure.subplots(len(tokens) + 2, S, squeeze=False)
    colours_J3 = _colours(J)
    for s in range(S):
        _picture(axes[0, s], images_SHWC[s])
        for row, j in enumerate(tokens, start=1):
            _picture(axes[row, s], _dimmed(images_SHWC[s], selected_SJhw[s, j]))
        _picture(axes[-1, s], _overlay(images_SHWC[s], selected_SJhw[s], colours_J3))
    axes[0, 0].set_ylabel("image", fontsize=7)
    axes[-1, 0].set_ylabel("first token\nto select", fontsize=7)
    for row, j in enumerate(tokens, start=1):
        axes[row, 0].set_ylabel(f"token {j + 1}\n{run.facts['sizes'][j]} patches", fontsize=7, color=colours_J3[j])
    return _selections_caption(run), figure


def _selections_caption(run: Analysed) -> str:
    facts = run.facts
    pairs = zip(facts["locality"], facts["locality_random"], strict=True)
    near = ", ".join(f"{mine:.2f} ({chance:.2f})" for mine, chance in pairs)
    drawn = "a random selection, the same for all images" if facts["selection"] == "random" else "the patches of highest score"
    return (
        f"{run.label}: {drawn} of each masked token. Below, every patch has the colour of the first token that selects it. Over "
        f"{facts['images']} images, the share of a token's patches with a neighbour that it selects too (of random sets): {near}."
    )


def _picture(axis: Axes, image_HWC: np.ndarray) -> None:
    axis.imshow(image_HWC, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _enlarged(grid_hw: np.ndarray, image_HWC: np.ndarray) -> np.ndarray:
    """A value for each patch as one for each pixel."""
    H, W = image_HWC.shape[:2]
    h, w = grid_hw.shape[:2]
    return grid_hw.repeat(H // h, axis=0).repeat(W // w, axis=1)


def _dimmed(image_HWC: np.ndarray, selected_hw: np.ndarray) -> np.ndarray:
    pixels_HWC = image_HWC / 255
    return np.where(_enlarged(selected_hw, image_HWC)[..., None], pixels_HWC, DIMMED + (1 - DIMMED) * pixels_HWC)


def _overlay(image_HWC: np.ndarray, selected_Jhw: np.ndarray, colours_J3: list[tuple[float, ...]]) -> np.ndarray:
    first_hw = selected_Jhw.argmax(0)  # the last token selects all
    grey_HW1 = image_HWC.mean(-1, keepdims=True) / 255
    return 0.45 * grey_HW1 + 0.55 * _enlarged(np.array(colours_J3)[first_hw], image_HWC)


def _colours(count: int) -> list[tuple[float, ...]]:
    if count <= len(COLOURS):
        return [to_rgb(colour) for colour in COLOURS[:count]]
    return [colormaps["viridis"](j / (count - 1))[:3] for j in range(count)]


# ------------------------------------------------------------------------------------------------------- mask attention


def mask_attention(runs: list[Analysed]) -> Plot:
    """Figure 4 of the masked tokens paper: the last block's attention from the class token to each masked token; a panel for each number
    of masked tokens, a line for what has a name, over the mean of its seeds."""
    counts = sorted({run.facts["masked_tokens"] for run in runs})
    figure = Figure(figsize=(4.6 * len(counts), 3.4), layout="constrained")
    axes = figure.subplots(1, len(counts), squeeze=False)[0]
    for axis, count in zip(axes, counts, strict=True):
        here = [run for run in runs if run.facts["masked_tokens"] == count]
        for i, label in enumerate(dict.fromkeys(run.label for run in here)):
            _attention_lines(axis, [run for run in here if run.label == label], label, i, alone=len(runs) == 1)
        uniform = 1 / here[0].facts["tokens"]
        axis.axhline(uniform, color="#666666", linewidth=0.8, linestyle=":", label="equal attention to all tokens")
        axis.set(title=f"{count} masked tokens", xlabel="masked token, from few patches to all", ylabel="attention", ylim=(0, None))
        axis.set_xticks(sorted({round(j) for j in np.linspace(1, count, min(count, 8))}))
        axis.legend(fontsize=7)
    images = ", ".join(map(str, sorted({run.facts["images"] for run in runs})))
    seeds = "" if len(runs) == 1 else " and seeds"
    return f"Attention from the class token to each masked token in the last block, mean over heads, {images} images{seeds}.", figure


def _attention_lines(axis: Axes, seeds: list[Analysed], label: str, i: int, alone: bool) -> None:
    last = [run.facts["blocks"][max(run.facts["blocks"], key=int)] for run in seeds]
    for n, token in enumerate(last[0]):
        means_J = np.mean([block[token]["mean"] for block in last], axis=0)
        name = label if len(last[0]) == 1 else f"{label}, {token}"
        spread = np.array(last[0][token]["std"]) if alone else np.std([b[token]["mean"] for b in last], axis=0, ddof=min(1, len(last) - 1))
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": ("-", "--")[n % 2]}
        x = np.arange(1, len(means_J) + 1)
        axis.errorbar(x, means_J, yerr=spread, label=name, markersize=4, capsize=2, linewidth=1.2, **look)


DRAWN: dict[str, Callable[[list[Analysed]], Plot]] = {"selections": selections, "mask-attention": mask_attention}
EACH = ("selections",)  # a figure for each run
