"""Figures of the results that ``vitssl analyze`` wrote to run folders: of one run, or of a sweep's runs together for its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from vitssl.report.figures import blocks, masked_tokens, pictures, style
from vitssl.report.figures.analysis_results import Analysed
from vitssl.report.figures.style import COLOURS, MARKERS, STYLE, Plot
from vitssl.report.results.analyses import kind_of
from vitssl.report.results.grid import Grid

DRAWN: dict[str, Callable[[list[Analysed]], Plot]] = {
    "attention": blocks.attention,
    "tokens": blocks.tokens,
    "maps": pictures.maps,
    "grad-cam": pictures.grad_cam,
    "selections": masked_tokens.selections,
    "mask-attention": masked_tokens.mask_attention,
}
FIGURE_PER_RUN = ("selections",)  # analyses with a figure for each run
FIGURE_PER_IMAGE_SET = ("maps", "grad-cam")  # analyses with one figure for all runs that were analysed on the same images


def save(folder: Path, name: str, stem: str) -> Path:
    """Draw an analysis of one run as SVG, PNG and PDF files beside its numbers, and return the path of the PNG.

    Args:
        folder: the folder ``analysis`` in the run folder.
        name: name of the analysis, a key of DRAWN.
        stem: name of its files without their suffix.
    """
    with rc_context(STYLE):
        look = {"color": COLOURS[0], "marker": MARKERS[0], "alpha": 1.0}
        _, figure = DRAWN[name]([Analysed.read(folder / f"{stem}.json", folder.parent.name, look)])
    style.save(figure, folder / stem)
    return folder / f"{stem}.png"


def draw(grid: Grid) -> dict[str, Plot]:
    """Return the figures of a sweep's analysed runs by file name; figures with pictures show only the first seed."""
    plots: dict[str, Plot] = {}
    with rc_context(STYLE):
        for name in DRAWN:
            groups = list(_groups(grid, name).values())
            if name in (*FIGURE_PER_RUN, *FIGURE_PER_IMAGE_SET):
                parts = _parts(name, [runs[0] for runs in groups])
                plots |= {f"{name}-{i}": DRAWN[name](runs) for i, runs in enumerate(parts, start=1)}
            elif groups:
                plots[name] = DRAWN[name]([run for runs in groups for run in runs])
    return plots


def _parts(name: str, runs: list[Analysed]) -> list[list[Analysed]]:
    """Split the runs of the analysis ``name`` into one list for each figure."""
    if name in FIGURE_PER_RUN:
        return [[run] for run in runs]
    by_images: dict[tuple[str, ...], list[Analysed]] = {}
    for run in runs:
        by_images.setdefault((run.facts["shards"], *map(str, run.facts["index"])), []).append(run)
    return list(by_images.values())


def _groups(grid: Grid, name: str) -> dict[str, list[Analysed]]:
    """Group the runs that have the analysis ``name`` by their label; the seeds of an arm share a label."""
    uses: dict[Path, list[tuple[str, dict[str, Any], str]]] = {}
    looks: dict[Path, dict[str, Any]] = {}
    for row in grid.rows:
        for column, cells in row.columns.items():
            for stage, run in (pair for cell in cells for pair in cell.stages):
                for path in (path for path in run.analyses if kind_of(path) == name):
                    place = (grid.arm_name(row.arm), row.values, f"{stage}, {grid.name(column)}".removesuffix(", "))
                    uses.setdefault(path, []).append(place)
                    looks.setdefault(path, style.look(grid, row))
    analysed = [Analysed.read(path, _run_label(places), looks[path]) for path, places in uses.items()]
    origins = {one.images_from for one in analysed}
    groups: dict[str, list[Analysed]] = {}
    for one in analysed:
        if len(origins) > 1 and name not in FIGURE_PER_IMAGE_SET:  # means are over the same images
            one.label = f"{one.label}, {one.images_from}"
        groups.setdefault(one.label, []).append(one)
    return groups


def _run_label(places: list[tuple[str, dict[str, Any], str]]) -> str:
    """Name a run by its arm, axis values, stage and column, without the values and the column that differ between its ``places``."""
    arm, values, stage = places[0]
    shared = [f"{axis} {value}" for axis, value in values.items() if all(other.get(axis) == value for _, other, _ in places)]
    if any(other != stage for *_, other in places):
        stage = stage.split(", ")[0]
    return ", ".join([arm, *shared, stage])
