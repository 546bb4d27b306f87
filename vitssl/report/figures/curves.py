"""Learning curves: accuracy and every loss term, over epochs, images seen and wall time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from vitssl.config.metrics import metric_of
from vitssl.report.figures.style import Plot, add_legend, look, panels
from vitssl.report.results.collect import Cell, RunFolder
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.schedule import planned
from vitssl.report.units import scale

MOST_COLUMNS = 3  # columns of the sweep in one figure
MARKED = 6  # the most points of a curve that have a marker
Curve = tuple[str, str, str]  # where metrics.jsonl has its values: the kind of event, a mapping in the event, a key of the mapping
Places = Callable[[RunFolder], tuple[dict[int, float], float]]  # the horizontal position of each step of a run, and of its end


def over_epochs(grid: Grid) -> Plot | None:
    """Draw the learning curves over epochs; None if nothing was logged."""

    def places(run: RunFolder) -> tuple[dict[int, float], float]:
        return {event["step"]: event["epoch"] for event in run.events if "epoch" in event}, run.run.loop.epochs if run.run else 0.0

    return _draw(grid, "epoch", places)


def over_images(grid: Grid) -> Plot | None:
    """Draw the learning curves over images seen, repeated ones included.

    Return None if an epoch has equally many images in all runs, since the curves over epochs then say the same.
    """
    runs = [run for row in grid.rows for cell in row.cells for _, run in cell.stages if run.events]
    if len({(run.job.get("data") or {}).get("train_images") for run in runs}) < 2:
        return None

    def places(run: RunFolder) -> tuple[dict[int, float], float]:
        seen = {event["step"]: event["step"] * run.config.optim.batch_size / 1000 for event in run.events}
        return seen, (planned(run) or (0.0, 0.0))[1] / 1000

    return _draw(grid, "thousand images seen", places)


def over_time(grid: Grid) -> Plot | None:
    """Draw the learning curves over the wall time of training, all attempts together; None if no time was recorded."""
    longest = max((sum(max(_hours(run).values(), default=0.0) for _, run in cell.stages) for cell in grid.sweep.cells), default=0.0)
    if not longest:
        return None
    unit, factor = scale("hours", longest)

    def places(run: RunFolder) -> tuple[dict[int, float], float]:
        positions = {step: hours * factor for step, hours in _hours(run).items()}
        return positions, max(positions.values(), default=0.0)

    words = " Wall time is that of the training processes, including evaluations and all attempts; it is longer on a busy machine."
    return _draw(grid, f"{unit} of training", places, words)


def _hours(run: RunFolder) -> dict[int, float]:
    """Return the wall hours at every logged step; the time between two attempts does not count."""
    hours, spent_s, began_s, last_s = {}, 0.0, 0.0, 0.0
    for event in run.events:
        if event["event"] == "start":
            spent_s, began_s = spent_s + last_s - began_s, event["time"]
        last_s = event["time"]
        hours[event["step"]] = (spent_s + last_s - began_s) / 3600
    return hours


def _draw(grid: Grid, unit: str, places: Places, words: str = "") -> Plot | None:
    """Draw the accuracy and every loss term in panels of their own; None if nothing was logged.

    Total losses are not drawn, since weighted sums of different terms cannot be compared between arms.
    """
    columns = [c for c in grid.columns if any(run.events for row in grid.rows for run in _runs(row, c))][:MOST_COLUMNS]
    curves = _curves_of([run for row in grid.rows for column in columns for run in _runs(row, column)], grid.metric[1])
    if not curves:
        return None
    rows = [row for row in grid.rows if any(run.events for column in columns for run in _runs(row, column))]
    figure, axes = panels(len(columns) * len(curves), 3.0)
    first_axes: dict[Any, Axes] = {}
    for axis, (column, name) in zip(axes, product(columns, curves), strict=True):
        _share(axis, first_axes, column, name if grid.of_one_set else axis)
        for row in rows:
            _draw_stages(axis, row.columns[column], curves[name], places, look(grid, row))
        axis.margins(x=0.02)
        axis.set(title=grid.name(column), xlabel=f"{unit}, over all stages", ylabel=name)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=unit == "epoch"))
    for axis in axes:
        axis.set_xlim(left=0)  # on the right it ends with the longest curve of the column
    add_legend(figure, grid, rows, "-")
    left_out = f" Only the first {len(columns)} columns." if len(columns) < len(grid.columns) else ""
    return (
        "Learning curves, mean over seeds with ± one standard deviation: test accuracy, and each objective's training loss before its "
        f"weight is applied. Earlier stages of a chain are dashed; a marker without a line is a single evaluation.{words}{left_out}"
    ), figure


def _share(axis: Axes, first: dict[Any, Axes], column: Any, name: Any) -> None:
    """Give all panels of the same ``column`` the same horizontal limits, and all panels of the same ``name`` the same vertical ones."""
    if (shared := first.setdefault(("column", column), axis)) is not axis:
        axis.sharex(shared)
    if (shared := first.setdefault(("name", name), axis)) is not axis:
        axis.sharey(shared)


def _runs(row: Row, column: Any) -> list[RunFolder]:
    return [run for cell in row.columns[column] for _, run in cell.stages]


def _curves_of(runs: list[RunFolder], usual: str) -> dict[str, Curve]:
    """Return the available curves by the label of their axis.

    An evaluator has a curve of the sweep's metric ``usual`` if most of its evaluations have that, otherwise of its first metric.
    """
    terms = dict.fromkeys(name for run in runs for event in run.events_of("train") for name in event["terms"])
    evaluated = [(name, event[name]) for run in runs for event in run.events_of("eval") for name in ("test", *run.evals) if event.get(name)]
    chosen_metrics = {}
    for name in dict.fromkeys(name for name, _ in evaluated):
        results = [metrics for other, metrics in evaluated if other == name]
        chosen_metrics[name] = usual if sum(usual in metrics for metrics in results) > len(results) / 2 else next(iter(results[0]))
    scores: dict[str, Curve] = {f"{name} {_title(metric)}": ("eval", name, metric) for name, metric in chosen_metrics.items()}
    return scores | {f"training loss: {name}": ("train", "terms", name) for name in terms}


def _title(metric: str) -> str:
    spec = metric_of(metric)
    return f"{spec.name}, {spec.unit}" if spec.unit else spec.name


def _draw_stages(axis: Axes, cells: list[Cell], curve: Curve, places: Places, style: dict[str, Any]) -> None:
    """Draw one curve of all stages of ``cells``, the seeds of a row; earlier stages are dashed."""
    for i in range(len(cells[0].stages) if cells else 0):
        dashes = "--" if i < len(cells[0].stages) - 1 else "-"
        _band(axis, [_points(cell, i, curve, places) for cell in cells], style, dashes)


def _points(cell: Cell, stage: int, curve: Curve, places: Places) -> tuple[list[float], list[float]]:
    """Return the horizontal positions of a curve's values in ``stage``, counted from the first stage on, and the values."""
    (kind, mapping, key), run = curve, cell.stages[stage][1]
    offset, (positions, _) = sum(places(earlier)[1] for _, earlier in cell.stages[:stage]), places(run)
    points = [(offset + positions[e["step"]], value) for e in run.events_of(kind) if (value := (e.get(mapping) or {}).get(key)) is not None]
    return [x for x, _ in points], [y for _, y in points]


def _band(axis: Axes, curves: list[tuple[list[float], list[float]]], style: dict[str, Any], dashes: str) -> None:
    """Draw the mean and the spread over seeds, up to the last point that every seed has; markers tell arms apart in greyscale."""
    curves = [c for c in curves if c[0]]
    if not curves:
        return
    length = min(len(x) for x, _ in curves)
    x, y = np.mean([x[:length] for x, _ in curves], axis=0), np.array([y[:length] for _, y in curves])
    centre, spread = y.mean(0), y.std(0, ddof=1) if len(y) > 1 else np.zeros(length)
    if length == 1:  # a line would be invisible
        axis.errorbar(x, centre, yerr=spread if spread.any() else None, markersize=5, capsize=2.5, **style)
        return
    some = [round(share * (length - 1)) for share in np.linspace(0, 1, min(length, MARKED))]
    axis.plot(x, centre, linestyle=dashes, linewidth=1.3, markevery=some, markersize=4, **style)
    axis.fill_between(x, centre - spread, centre + spread, color=style["color"], alpha=0.15 * style["alpha"], linewidth=0)
