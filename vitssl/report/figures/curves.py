"""Learning curves: accuracy and every term of the losses, over epochs and over wall time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from vitssl.config.evals import metric_of
from vitssl.report.figures.style import Plot, add_legend, look, panels
from vitssl.report.results.collect import Cell, RunFolder
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.schedule import planned
from vitssl.report.units import scale

MOST_COLUMNS = 3  # of the sweep in one figure
Curve = tuple[str, str, str]  # where metrics.jsonl holds its values: the kind of event, a mapping in it, a key of that
Places = Callable[[RunFolder], tuple[dict[int, float], float]]  # where each step of a run is on the horizontal axis, and where it ends


def over_epochs(grid: Grid) -> Plot | None:
    def places(run: RunFolder) -> tuple[dict[int, float], float]:
        return {event["step"]: event["epoch"] for event in run.events if "epoch" in event}, run.run["loop"]["epochs"] if run.run else 0.0

    return _draw(grid, "epoch", places)


def over_images(grid: Grid) -> Plot | None:
    """The same over images, each as often as it was seen; None where all runs have equally many in an epoch, so that epochs say as much."""
    runs = [run for row in grid.rows for cell in row.cells for _, run in cell.stages if run.events]
    if len({(run.job.get("data") or {}).get("train_images") for run in runs}) < 2:
        return None

    def places(run: RunFolder) -> tuple[dict[int, float], float]:
        seen = {event["step"]: event["step"] * run.run["optim"]["batch_size"] / 1000 for event in run.events}
        return seen, (planned(run) or (0.0, 0.0))[1] / 1000

    return _draw(grid, "thousand images seen", places)


def over_time(grid: Grid) -> Plot | None:
    """The same over the wall time of training, all attempts together; None where it was not recorded."""
    longest = max((sum(max(_hours(run).values(), default=0.0) for _, run in cell.stages) for cell in grid.sweep.cells), default=0.0)
    if not longest:
        return None
    unit, factor = scale("hours", longest)

    def places(run: RunFolder) -> tuple[dict[int, float], float]:
        at = {step: hours * factor for step, hours in _hours(run).items()}
        return at, max(at.values(), default=0.0)

    words = " Wall time is that of the training processes, including evaluations and all attempts; it is longer on a busy machine."
    return _draw(grid, f"{unit} of training", places, words)


def _hours(run: RunFolder) -> dict[int, float]:
    """Wall hours at every step that was logged; the time between two attempts does not count."""
    hours, spent_s, began_s, last_s = {}, 0.0, 0.0, 0.0
    for event in run.events:
        if event["event"] == "start":
            spent_s, began_s = spent_s + last_s - began_s, event["time"]
        last_s = event["time"]
        hours[event["step"]] = (spent_s + last_s - began_s) / 3600
    return hours


def _draw(grid: Grid, unit: str, places: Places, words: str = "") -> Plot | None:
    """Accuracy, and a panel for each term of the losses: weighted sums of different terms cannot be compared between arms."""
    columns = [c for c in grid.columns if any(run.events for row in grid.rows for run in _runs(row, c))][:MOST_COLUMNS]
    curves = _curves_of([run for row in grid.rows for column in columns for run in _runs(row, column)], grid.metric[1])
    if not curves:
        return None
    rows = [row for row in grid.rows if any(run.events for column in columns for run in _runs(row, column))]
    figure, axes = panels(len(columns) * len(curves), 3.0)
    first: dict[Any, Axes] = {}
    for axis, (column, name) in zip(axes, product(columns, curves), strict=True):
        _share(axis, first, column, name if grid.of_one_set else axis)
        for row in rows:
            _draw_stages(axis, row.columns[column], curves[name], places, look(grid, row))
        axis.margins(x=0.02)
        axis.set(title=grid.name(column), xlabel=f"{unit}, over all stages", ylabel=name)
        if unit == "epoch":
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in axes:
        axis.set_xlim(left=0)  # the end is that of all curves of a column
    add_legend(figure, grid, rows, "-")
    left_out = f" Only the first {len(columns)} columns." if len(columns) < len(grid.columns) else ""
    return (
        "Learning curves, mean over seeds with ± one standard deviation: test accuracy, and each objective's training loss before its "
        f"weight is applied. Earlier stages of a chain are dashed; a dot is a single evaluation.{words}{left_out}"
    ), figure


def _share(axis: Axes, first: dict[Any, Axes], column: Any, name: Any) -> None:
    """Give all panels of a column the same horizontal limits, and all of a name the same vertical ones."""
    if (before := first.setdefault(("column", column), axis)) is not axis:
        axis.sharex(before)
    if (before := first.setdefault(("name", name), axis)) is not axis:
        axis.sharey(before)


def _runs(row: Row, column: Any) -> list[RunFolder]:
    return [run for cell in row.columns[column] for _, run in cell.stages]


def _curves_of(runs: list[RunFolder], usual: str) -> dict[str, Curve]:
    """The available curves, by axis label: of an evaluator that of the sweep's metric where that is known of most epochs, or its first."""
    terms = dict.fromkeys(name for run in runs for event in run.of("train") for name in event["terms"])
    evaluated = [(name, event[name]) for run in runs for event in run.of("eval") for name in ("test", *run.evals) if event.get(name)]
    standing = {}
    for name in dict.fromkeys(name for name, _ in evaluated):
        own = [metrics for other, metrics in evaluated if other == name]
        standing[name] = usual if sum(usual in metrics for metrics in own) > len(own) / 2 else next(iter(own[0]))
    scores: dict[str, Curve] = {f"{name} {_title(metric)}": ("eval", name, metric) for name, metric in standing.items()}
    return scores | {f"training loss: {name}": ("train", "terms", name) for name in terms}


def _title(metric: str) -> str:
    known = metric_of(metric)
    return f"{known.name}, {known.unit}" if known.unit else known.name


def _draw_stages(axis: Axes, cells: list[Cell], curve: Curve, places: Places, style: dict[str, Any]) -> None:
    for i in range(len(cells[0].stages) if cells else 0):
        dashes = "--" if i < len(cells[0].stages) - 1 else "-"
        _band(axis, [_points(cell, i, curve, places) for cell in cells], style["color"], style["alpha"], dashes)


def _points(cell: Cell, stage: int, curve: Curve, places: Places) -> tuple[list[float], list[float]]:
    """Where the curve's values of a stage are, counted over all stages, and the values."""
    (kind, mapping, key), run = curve, cell.stages[stage][1]
    before, (at, _) = sum(places(earlier)[1] for _, earlier in cell.stages[:stage]), places(run)
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
