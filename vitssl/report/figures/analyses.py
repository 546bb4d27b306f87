"""Figures of what ``vitssl analyze`` left in run folders: of one run, and in a sweep's report of several on one axis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from vitssl.report.figures import blocks, masked_tokens, pictures, style
from vitssl.report.figures.analysed import Analysed
from vitssl.report.figures.style import COLOURS, MARKERS, STYLE, Plot
from vitssl.report.results.grid import Grid

DRAWN: dict[str, Callable[[list[Analysed]], Plot]] = {
    "attention": blocks.attention,
    "tokens": blocks.tokens,
    "maps": pictures.maps,
    "grad-cam": pictures.grad_cam,
    "selections": masked_tokens.selections,
    "mask-attention": masked_tokens.mask_attention,
}
EACH = ("selections",)  # a figure for each run
BESIDE = ("maps", "grad-cam")  # one for all runs that looked at the same images


def save(folder: Path, name: str, stem: str) -> Path:
    """Draw one run's analysis beside its numbers, as SVG and PNG; gives the PNG.

    Args:
        folder: ``analysis`` in the run folder.
        name: of the analysis.
        stem: of its files.
    """
    with rc_context(STYLE):
        look = {"color": COLOURS[0], "marker": MARKERS[0], "alpha": 1.0}
        _, figure = DRAWN[name]([Analysed.read(folder / f"{stem}.json", folder.parent.name, look)])
    style.save(figure, folder / stem)
    return folder / f"{stem}.png"


def draw(grid: Grid) -> dict[str, Plot]:
    """The figures of a sweep's analysed runs, by file name; of what has pictures the first seed."""
    made: dict[str, Plot] = {}
    with rc_context(STYLE):
        for name in DRAWN:
            groups = list(_groups(grid, name).values())
            if name in (*EACH, *BESIDE):
                parts = _parts(name, [runs[0] for runs in groups])
                made |= {f"{name}-{i}": DRAWN[name](runs) for i, runs in enumerate(parts, start=1)}
            elif groups:
                made[name] = DRAWN[name]([run for runs in groups for run in runs])
    return made


def _parts(name: str, runs: list[Analysed]) -> list[list[Analysed]]:
    """The runs of each figure."""
    if name in EACH:
        return [[run] for run in runs]
    by_images: dict[tuple[str, ...], list[Analysed]] = {}
    for run in runs:
        by_images.setdefault((run.facts["shards"], *map(str, run.facts["index"])), []).append(run)
    return list(by_images.values())


def _groups(grid: Grid, name: str) -> dict[str, list[Analysed]]:
    """Analysed runs by what they are called; those of several seeds together."""
    uses: dict[Path, list[tuple[str, dict[str, Any], str]]] = {}
    looks: dict[Path, dict[str, Any]] = {}
    for row in grid.rows:
        for column, cells in row.columns.items():
            for stage, run in (stage for cell in cells for stage in cell.stages if stage[1].status != "unreadable"):
                for path in (run.path / "analysis").glob(f"{name}*.json"):
                    place = (grid.called(row.arm), row.values, f"{stage}, {grid.name(column)}".removesuffix(", "))
                    uses.setdefault(path, []).append(place)
                    looks.setdefault(path, style.look(grid, row))
    groups: dict[str, list[Analysed]] = {}
    for path, places in uses.items():
        analysed = Analysed.read(path, _called(places), looks[path])
        groups.setdefault(analysed.label, []).append(analysed)
    return groups


def _called(places: list[tuple[str, dict[str, Any], str]]) -> str:
    """Arm, the axes' values, stage and column of a run, without what differs between the places where a sweep uses it."""
    arm, values, stage = places[0]
    same = [f"{axis} {value}" for axis, value in values.items() if all(other.get(axis) == value for _, other, _ in places)]
    if any(other != stage for *_, other in places):
        stage = stage.split(", ")[0]
    return ", ".join([arm, *same, stage])
