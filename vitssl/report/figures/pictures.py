"""Figures of images with maps over them: attention maps and Grad-CAM.

Shapes: S images of H x W pixels, R rows of maps on a grid of h x w places.
"""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from vitssl.report.figures.analysis_results import Analysed
from vitssl.report.figures.sheet import Sheet
from vitssl.report.figures.style import Plot

COLOURED = 0.6  # opacity of a map's colours over the grey image


def maps(runs: list[Analysed]) -> Plot:
    """Draw attention maps over images (LUT's Figure 1b); for a single run also the maps of each head and of further patches."""
    text = "What the class token, and a patch that a square marks, attend to among the patches in the last block, as means over heads"
    return _caption(text, runs), _figure(runs)


def grad_cam(runs: list[Analysed]) -> Plot:
    """Draw Grad-CAM maps over images, which show where an image speaks for its class (SSAT's Figure 10, LUT's Figure 3)."""
    text = (
        "Grad-CAM: the places that speak for an image's own class (for the predicted one where that is not known); a dark map has none. "
        "Below each map, the predicted class and its probability"
    )
    return _caption(text, runs), _figure(runs)


def _caption(text: str, runs: list[Analysed]) -> str:
    run_name, seeds = (f"{runs[0].label}. ", "") if len(runs) == 1 else ("", " Networks of each arm's first seed.")
    images = f"Images of {runs[0].facts['shards']}, {runs[0].facts['split']}."
    return f"{run_name}{text}. {images}{seeds} Every map has a scale of its own, from 0 (dark) to its largest value (bright)."


def _figure(runs: list[Analysed]) -> Figure:
    """Draw the images and below them the maps of every run; of several runs, only the maps marked as ``compared``."""
    titles = runs[0].facts["titles"]
    sheet = Sheet(len(titles))
    for run in runs:
        images_SHWC, maps_RShw = _arrays(run)
        if run is runs[0]:
            sheet.add("image", list(images_SHWC), above=titles)
        for row, maps_Shw in zip(run.facts["rows"], maps_RShw, strict=True):
            if len(runs) == 1 or row["compared"]:
                name = row["name"] if len(runs) == 1 else f"{run.label}: {row['name']}"
                sheet.add(name, list(map(over, images_SHWC, maps_Shw)), below=row["said"], square=_square(row["place"], run))
    return sheet.done()


def _arrays(run: Analysed) -> tuple[np.ndarray, np.ndarray]:
    """Load the images (S, H, W, 3) and the maps (R, S, h, w) of a run."""
    with np.load(run.arrays) as arrays:
        return arrays["images"], arrays["maps"].reshape(*arrays["maps"].shape[:2], *run.facts["grid"])


def _square(place: list[int] | None, run: Analysed) -> tuple[float, ...] | None:
    """Return left, top, width and height of the patch at ``place`` as shares of the image's sides; None without a place."""
    if place is None:
        return None
    (row, column), (rows, columns) = place, run.facts["grid"]
    return column / columns, row / rows, 1 / columns, 1 / rows


def over(image_HWC: np.ndarray, map_hw: np.ndarray) -> np.ndarray:
    """Return the map, divided by its largest value, in colours over the grey image, (H, W, 3)."""
    shares_hw = map_hw / max(map_hw.max(), np.finfo(np.float32).tiny)
    colours_HW3 = colormaps["inferno"](enlarged(shares_hw, image_HWC))[..., :3]
    return (1 - COLOURED) * image_HWC.mean(-1, keepdims=True) / 255 + COLOURED * colours_HW3


def enlarged(grid_hw: np.ndarray, image_HWC: np.ndarray) -> np.ndarray:
    """Repeat the values of a grid so that every pixel of the image has one."""
    H, W = image_HWC.shape[:2]
    h, w = grid_hw.shape[:2]
    return grid_hw[np.arange(H) * h // H][:, np.arange(W) * w // W]
