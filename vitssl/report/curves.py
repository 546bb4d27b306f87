"""Learning curves: accuracy and every term of the losses, over epochs and over wall time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from vitssl.config.evals import metric_of
from vitssl.report.collect import Cell, RunFolder
from vitssl.report.grid import Grid
from vitssl.report.rows import Row
from vitssl.report.schedule import planned
from vitssl.report.style import Plot, look
from vitssl.report.units import scale

MOST_COLUMNS, WIDTH_IN = 3, 13.2  # columns of the sweep in one figure; as wide as a page
Curve = tuple[str, str, str]  # where metrics.jsonl holds its values: the kind of event, a mapping in it, a key of that
Places = Callable[[RunFolder], dict[int, float]]  # where each of a run's steps is on the horizontal axis


def over_epochs(grid: Grid) -> Plot | None:
    return _draw(grid, "epoch, over all stages", _epochs, _epochs_in_all, "")


def over_images(grid: Grid) -> Plot | None:
    """The same over images, each as often as it was seen; None where all runs have equally many in an epoch, so that epochs say as much."""
    runs = [run for row in grid.rows for cell in row.cells for _, run in cell.stages if run.events]
    if len({(run.job.get("data") or {}).get("train_images") for run in runs}) < 2:
        return None

    def places(run: RunFolder) -> dict[int, float]:
        return {event["step"]: event["step"] * run.run["optim"]["batch_size"] / 1000 for event in run.events}

    return _draw(grid, "thousand images seen, over all stages", places, lambda run: (planned(run) or (0.0, 0.0))[1] / 1000, "")


def over_time(grid: Grid) -> Plot | None:
    """The same over the wall time of training, all attempts together; None where it was not recorded."""
    longest = max((sum(map(_hours_in_all, (run for _, run in cell.stages))) for row in grid.rows for cell in row.cells), default=0.0)
    if not longest:
        return None
    unit, factor = scale("hours", longest)

    def places(run: RunFolder) -> dict[int, float]:
        return {step: hours * factor for step, hours in _hours(run).items()}

    words = " Wall time is that of the training processes, with evaluations and all attempts; a busy machine stretches it."
    return _draw(grid, f"{unit} of training, over all stages", places, lambda run: _hours_in_all(run) * factor, words)


def _epochs(run: RunFolder) -> dict[int, float]:
    return {event["step"]: event["epoch"] for event in run.events if "epoch" in event}


def _epochs_in_all(run: RunFolder) -> float:
    return run.run["loop"]["epochs"] if run.run else 0.0


def _hours(run: RunFolder) -> dict[int, float]:
    """Wall hours at every step that was logged; the time between two attempts does not count."""
    hours, spent_s, began_s, last_s = {}, 0.0, 0.0, 0.0
    for event in run.events:
        if event["event"] == "start":
            spent_s, began_s = spent_s + last_s - began_s, event["time"]
        last_s = event["time"]
        hours[event["step"]] = (spent_s + last_s - began_s) / 3600
    return hours


def _hours_in_all(run: RunFolder) -> float:
    return max(_hours(run).values(), default=0.0)


def _draw(grid: Grid, label: str, places: Places, whole: Callable[[RunFolder], float], words: str) -> Plot | None:
    """Accuracy, and a panel for each term of the losses: weighted sums of different terms cannot be compared between arms."""
    columns = [c for c in grid.columns if any(run.events for row in grid.rows for run in _runs(row, c))][:MOST_COLUMNS]
    curves = _curves_of([run for row in grid.rows for column in columns for run in _runs(row, column)])
    if not curves:
        return None
    rows = [row for row in grid.rows if any(run.events for column in columns for run in _runs(row, column))]
    shared = [name for name, curve in curves.items() if len({_having(rows, column, curve) for column in columns}) == 1 and columns[1:]]
    panels = [(column, name) for column in columns for name in curves if name not in shared] + [(columns[0], name) for name in shared]
    figure, axes = _figure(len(panels), len(curves) - len(shared))
    for axis, (column, name) in zip(axes, panels, strict=False):
        for row in rows:
            style = look(grid, row)
            _draw_stages(axis, row.columns.get(column, []), curves[name], places, whole, style["color"], style["alpha"])
        axis.set(title="all columns" if name in shared else grid.name(column), xlabel=label, ylabel=name)
    _line_up(axes[: len(panels)], [column for column, _ in panels])
    if grid.of_one_set:
        _level(axes[: len(panels)], [name for _, name in panels])
    if whole is _epochs_in_all:
        for axis in axes[: len(panels)]:
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, grid, rows)
    left_out = f" Only the first {len(columns)} columns." if len(columns) < len(grid.columns) else ""
    left_out += " What all columns share is drawn once." if shared else ""
    return (
        "Learning curves, mean over seeds with ± one standard deviation: test accuracy, and each objective's training loss before its "
        f"weight is applied. Earlier stages of a chain are dashed; a dot is a single evaluation.{words}{_batches(grid)}{left_out}"
    ), figure


def _batches(grid: Grid) -> str:
    """That a loss over a batch's other images is a larger one in a larger batch."""
    runs = [run for row in grid.rows for cell in row.cells for _, run in cell.stages if run.run]
    sizes = {run.run["optim"]["batch_size"] for run in runs if run.run["objectives"].get("simclr") is not None}
    return " SimCLR's losses do not compare between batches of different sizes." if len(sizes) > 1 else ""


def _having(rows: list[Row], column: Any, curve: Curve) -> frozenset[Path]:
    """The runs of a column that have values of a curve."""
    kind, mapping, key = curve
    runs = [run for row in rows for run in _runs(row, column)]
    return frozenset(run.path for run in runs if any(key in (event.get(mapping) or {}) for event in run.of(kind)))


def _figure(count: int, each: int) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels as wide as a page, the ``each`` of a column side by side where they fit."""
    most = {1: 4, 2: 4, 4: 4}.get(each, 3)
    across = min(count, most)
    figure = Figure(figsize=(min(WIDTH_IN / most, 4.4) * across, 3.0 * -(-count // across) + 0.3), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)
    axes = list(figure.subplots(-(-count // across), across, squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def _line_up(axes: list[Axes], columns: list[Any]) -> None:
    """The same horizontal limits for all panels of a column, as tight as what is drawn: a pretraining has a loss and no accuracy."""
    for column in dict.fromkeys(columns):
        mine = [axis for axis, of in zip(axes, columns, strict=True) if of == column]
        drawn = [x for axis in mine for line in axis.lines for x in line.get_xdata()]
        if drawn:
            margin = 0.02 * (max(drawn) - min(drawn)) or 0.5
            for axis in mine:
                axis.set_xlim(min(drawn) - margin, max(drawn) + margin)


def _level(axes: list[Axes], names: list[str]) -> None:
    """The same vertical limits for all panels of a curve, whose columns are of the same images."""
    for name in dict.fromkeys(names):
        mine = [axis for axis, of in zip(axes, names, strict=True) if of == name]
        low, high = zip(*(axis.get_ylim() for axis in mine), strict=True)
        for axis in mine:
            axis.set_ylim(min(low), max(high))


def _legend(figure: Figure, grid: Grid, rows: list[Row]) -> None:
    looks = [look(grid, row) for row in rows]
    handles = [Line2D([], [], color=s["color"], alpha=s["alpha"], label=grid.label(row)) for s, row in zip(looks, rows, strict=True)]
    across = max(1, min(len(handles), int(figure.get_figwidth() * 13 / (max(len(grid.label(row)) for row in rows) + 6))))
    figure.legend(handles=handles, loc="outside lower left", ncols=across, fontsize=8)


def _runs(row: Row, column: Any) -> list[RunFolder]:
    return [run for cell in row.columns.get(column, []) for _, run in cell.stages]


def _curves_of(runs: list[RunFolder]) -> dict[str, Curve]:
    """The available curves, by axis label."""
    terms = dict.fromkeys(name for run in runs for event in run.of("train") for name in event["terms"])
    evaluated = [(name, event[name]) for run in runs for event in run.of("eval") for name in ("test", *run.evals) if event.get(name)]
    firsts = dict.fromkeys((name, next(iter(metrics))) for name, metrics in evaluated)  # an evaluator's first metric stands for it
    scores: dict[str, Curve] = {f"{name} {_title(metric)}": ("eval", name, metric) for name, metric in firsts}
    return scores | {f"training loss: {name}": ("train", "terms", name) for name in terms}


def _title(metric: str) -> str:
    known = metric_of(metric)
    return f"{known.name}, {known.unit}" if known.unit else known.name


def _draw_stages(
    axis: Axes, cells: list[Cell], curve: Curve, places: Places, whole: Callable[[RunFolder], float], colour: str, alpha: float
) -> None:
    for i in range(max((len(c.stages) for c in cells), default=0)):
        dashes = "--" if i < len(cells[0].stages) - 1 else "-"
        _band(axis, [_points(cell, i, curve, places, whole) for cell in cells], colour, alpha, dashes)


def _points(cell: Cell, stage: int, curve: Curve, places: Places, whole: Callable[[RunFolder], float]) -> tuple[list[float], list[float]]:
    """Where the curve's values of a stage are, counted over all stages, and the values."""
    (kind, mapping, key), run = curve, cell.stages[stage][1]
    before, at = sum(whole(earlier) for _, earlier in cell.stages[:stage]), places(run)
    points = [(before + at[e["step"]], value) for e in run.of(kind) if (value := (e.get(mapping) or {}).get(key)) is not None]
    return [x for x, _ in points], [y for _, y in points]


def _band(axis: Axes, curves: list[tuple[list[float], list[float]]], colour: str, alpha: float, dashes: str) -> None:
    """Mean and spread over seeds, up to the last point that every seed has."""
    curves = [c for c in curves if c[0]]
    if not curves:
        return
    length = min(len(x) for x, _ in curves)
    x, y = np.mean([x[:length] for x, _ in curves], axis=0), np.array([y[:length] for _, y in curves])
    centre, spread = y.mean(0), y.std(0, ddof=1) if len(y) > 1 else np.zeros(length)
    if length == 1:  # a line would be invisible
        axis.errorbar(x, centre, yerr=spread if spread.any() else None, color=colour, marker="o", markersize=5, capsize=2.5)
        return
    axis.plot(x, centre, dashes, color=colour, alpha=alpha, linewidth=1.3)
    axis.fill_between(x, centre - spread, centre + spread, color=colour, alpha=0.15 * alpha, linewidth=0)
