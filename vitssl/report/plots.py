"""The report's plots of accuracy, costs and learning."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitssl.report.collect import Cell, RunFolder
from vitssl.report.energy_sources import tracked
from vitssl.report.evaluations import confusion_plot
from vitssl.report.grid import SEED, Grid, Row, cost_of, cost_per_model
from vitssl.report.label_placement import Point, place
from vitssl.report.stats import std
from vitssl.report.style import COLOURS, MARKERS, STYLE, Plot
from vitssl.report.tables import hours_name

COMPONENTS = {"gpu_kwh": ("GPU", "#0072B2", ""), "cpu_kwh": ("CPU", "#E69F00", "//"), "ram_kwh": ("RAM", "#009E73", "..")}
Curve = tuple[str, str, str]  # where metrics.jsonl holds its values: the kind of event, a mapping in it, a key of that


def draw(grid: Grid) -> dict[str, Plot]:
    """By file name; only those that the sweep has data for."""
    makers: dict[str, Callable[[Grid], Plot | None]] = {
        "accuracy_vs_co2e": lambda g: _against_cost(g, "co2e_kg"),
        "accuracy_vs_hours": lambda g: _against_cost(g, "device_hours"),
        "accuracy_by_axis": _by_axis,
        "learning_curves": _learning_curves,
        "confusion": confusion_plot,
        "energy_by_component": _energy,
    }
    with rc_context(STYLE):
        made = {name: make(grid) for name, make in makers.items()}
    return {name: plot for name, plot in made.items() if plot}


def style_of(grid: Grid, row: Row) -> dict[str, Any]:
    i = grid.rows.index(row)
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def _panels(columns: list[Any], height: float = 3.4, share_y: bool = False) -> tuple[Figure, np.ndarray]:
    """One panel per column, at most four side by side; ``height`` of each in inches."""
    across = min(len(columns), 4)
    down = -(-len(columns) // across)
    figure = Figure(figsize=(5.2 if across == 1 else 3.6 * across, height * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=share_y).reshape(-1)
    for spare in axes[len(columns) :]:
        spare.set_visible(False)
    return figure, axes


# ---------------------------------------------------------------------------------------------------- accuracy and cost


def _against_cost(grid: Grid, cost: str) -> Plot | None:
    columns = [c for c in grid.columns if any(grid.scores(row, c) for row in grid.rows)]
    if not columns:
        return None
    largest = max(cost_of(cell)[cost] for row in grid.rows for cell in row.done)
    unit, scale = _unit(cost, largest, hours_name(grid.sweep))
    figure, axes = _panels(columns)
    for axis, column in zip(axes, columns, strict=False):
        drawn = [(row, p) for row in grid.rows if (p := _points(grid, row, column, cost, scale))]
        points = []
        for row, (x, y) in drawn:
            look = style_of(grid, row)
            if len(x) > 1:
                axis.scatter(x, y, s=8, alpha=0.35, linewidths=0, color=look["color"])
            axis.errorbar(mean(x), mean(y), xerr=std(x), yerr=std(y), markersize=6, capsize=2.5, elinewidth=1, **look)
            points.append(Point(mean(x), mean(y), std(x) or 0.0, std(y) or 0.0, grid.label(row), look["color"]))
        axis.set(title=grid.name(column), xlabel=unit, ylabel=grid.measured.title, xlim=(0, None))
        axis.margins(0.12, 0.16)
        axis.set_xlim(left=0)
        place(axis, points)
    return f"{grid.measured.title} against {unit}: means with ± one standard deviation over seeds; faint dots are single seeds.", figure


def _unit(cost: str, largest: float, hours: str) -> tuple[str, float]:
    """A unit that makes the figures readable, and the factor to it."""
    if cost == "co2e_kg":
        return ("g CO2e per model, tracked", 1e3) if largest < 0.5 else ("kg CO2e per model, tracked", 1.0)
    return (f"{hours.replace('hours', 'minutes')} per model", 60.0) if largest < 1 else (f"{hours} per model", 1.0)


def _points(grid: Grid, row: Row, column: Any, cost: str, scale: float) -> tuple[list[float], list[float]] | None:
    """Cost and accuracy of every finished seed."""
    scores = grid.scores(row, column)
    cells = [c for c in row.columns.get(column, []) if c.axes.get(SEED) in scores and cost_of(c)["device_hours"]]
    return ([cost_of(c)[cost] * scale for c in cells], [scores[c.axes.get(SEED)] for c in cells]) if cells else None


def _by_axis(grid: Grid) -> Plot | None:
    """A line per arm over a numeric axis, which may be the columns or the rows."""
    name = grid.sweep.facts.get("columns")
    if name and _numeric(grid.columns):
        lines = {grid.label(row): ([(c, grid.scores(row, c)) for c in grid.columns], style_of(grid, row)) for row in grid.rows}
        panels = {"": lines}
    else:
        name = next((a for a in grid.row_axes if _numeric([r.values.get(a) for r in grid.rows if r.cells])), None)
        if name is None:
            return None
        panels = {str(c) if c is not None else "": _row_lines(grid, name, c) for c in grid.columns}
    figure, axes = _panels(list(panels))
    for axis, (title, lines) in zip(axes, panels.items(), strict=False):
        for label, (points, look) in lines.items():
            _line(axis, label, points, look)
        axis.set(title=title, xlabel=name, ylabel=grid.measured.title)
        axis.legend(fontsize=8)
        _log_if_wide(axis, name, grid)
    return f"{grid.measured.title} over {name}: mean ± one standard deviation over seeds.", figure


def _log_if_wide(axis: Axes, name: str, grid: Grid) -> None:
    values = grid.sweep.facts["axes"][name]
    if min(values) > 0 and max(values) / min(values) >= 20:
        axis.set_xscale("log")
        axis.set_xticks(values, [f"{v:g}" for v in values])
        axis.minorticks_off()


def _numeric(values: list[Any]) -> bool:
    return len(set(values)) > 1 and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _row_lines(grid: Grid, axis: str, column: Any) -> dict[str, tuple[list, dict[str, Any]]]:
    lines: dict[str, tuple[list, dict[str, Any]]] = {}
    for row in (r for r in grid.rows if r.cells):
        others = [f"{a} {v}" for a, v in row.values.items() if a != axis]
        points, _ = lines.setdefault(", ".join([row.arm.name, *others]), ([], style_of(grid, grid.rows[len(lines)])))
        points.append((row.values[axis], grid.scores(row, column)))
    return lines


def _line(axis: Axes, label: str, points: list[tuple[float, dict]], look: dict[str, Any]) -> None:
    known = sorted((x, list(scores.values())) for x, scores in points if scores)
    if known:
        x, values = zip(*known, strict=True)
        errors = [std(v) or 0.0 for v in values]
        axis.errorbar(x, [mean(v) for v in values], yerr=errors, label=label, markersize=5, capsize=2.5, linewidth=1.4, **look)


# ------------------------------------------------------------------------------------------------------ learning curves


def _learning_curves(grid: Grid) -> Plot | None:
    """Accuracy, and a panel for each term of the losses: weighted sums of different terms cannot be compared between arms."""
    columns = [c for c in grid.columns if any(run.events for row in grid.rows for run in _runs(row, c))][:3]
    curves = _curves_of([run for row in grid.rows for column in columns for run in _runs(row, column)])
    if not curves:
        return None
    rows = [row for row in grid.rows if any(run.events for column in columns for run in _runs(row, column))]
    figure, axes = _curve_panels(len(curves), len(columns))
    for panels, column in zip(axes, columns, strict=True):
        for axis, (name, curve) in zip(panels, curves.items(), strict=True):
            for row in rows:
                _draw_curves(axis, row.columns.get(column, []), curve, style_of(grid, row)["color"])
            axis.set(title=grid.name(column), xlabel="epoch, over all stages", ylabel=name)
        limits = [axis.get_xlim() for axis in panels]  # a pretraining has a loss and no accuracy; the epochs line up
        for axis in panels:
            axis.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
    handles = [Line2D([], [], color=style_of(grid, row)["color"], label=grid.label(row)) for row in rows]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6), fontsize=8)
    left_out = f" Only the first {len(columns)} columns." if len(columns) < len(grid.columns) else ""
    return (
        "Learning curves, mean over seeds with ± one standard deviation: test accuracy, and each objective's training loss before its "
        f"weight is applied. Earlier stages of a chain are dashed; a dot is a single evaluation.{left_out}"
    ), figure


def _runs(row: Row, column: Any) -> list[RunFolder]:
    return [run for cell in row.columns.get(column, []) for _, run in cell.stages]


def _curves_of(runs: list[RunFolder]) -> dict[str, Curve]:
    """The available curves, by axis label."""
    terms = dict.fromkeys(name for run in runs for event in run.of("train") for name in event["terms"])
    named = dict.fromkeys(name for run in runs for event in run.of("eval") for name in ("test", *run.evals) if name in event)
    accuracies: dict[str, Curve] = {f"{name} top-1, %": ("eval", name, "top1") for name in named}
    return accuracies | {f"training loss: {name}": ("train", "terms", name) for name in terms}


def _curve_panels(curves: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """The figure, and the panels of every column: stacked, or up to three side by side where there is a single column."""
    across, down = (min(curves, 3), -(-curves // 3)) if columns == 1 else (columns, curves)
    figure = Figure(figsize=(3.8 * across, 3.0 * down + 0.3), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    if columns > 1:
        return figure, [list(column) for column in axes.T]
    for spare in axes.flat[curves:]:
        spare.remove()
    return figure, [list(axes.flat[:curves])]


def _draw_curves(axis: Axes, cells: list[Cell], curve: Curve, colour: str) -> None:
    for i in range(max((len(c.stages) for c in cells), default=0)):
        dashes = "--" if i < len(cells[0].stages) - 1 else "-"
        _band(axis, [_points_of_stage(c, i, *curve) for c in cells], colour, dashes)


def _points_of_stage(cell: Cell, stage: int, kind: str, mapping: str, key: str) -> tuple[list[float], list[float]]:
    """Epochs, counted over all stages, and the curve's values there."""
    before = sum(run.run["loop"]["epochs"] for _, run in cell.stages[:stage] if run.run)
    events = cell.stages[stage][1].of(kind)
    points = [(before + e["epoch"], value) for e in events if (value := (e.get(mapping) or {}).get(key)) is not None]
    return [x for x, _ in points], [y for _, y in points]


def _band(axis: Axes, curves: list[tuple[list[float], list[float]]], colour: str, dashes: str) -> None:
    """Mean and spread over seeds, up to the last point that every seed has."""
    curves = [c for c in curves if c[0]]
    if not curves:
        return
    length = min(len(x) for x, _ in curves)
    x, y = curves[0][0][:length], np.array([y[:length] for _, y in curves])
    centre, spread = y.mean(0), y.std(0, ddof=1) if len(y) > 1 else np.zeros(length)
    if length == 1:  # a line would be invisible
        axis.errorbar(x, centre, yerr=spread if spread.any() else None, color=colour, marker="o", markersize=5, capsize=2.5)
        return
    axis.plot(x, centre, dashes, color=colour, linewidth=1.3)
    axis.fill_between(x, centre - spread, centre + spread, color=colour, alpha=0.15, linewidth=0)


# --------------------------------------------------------------------------------------------------------------- energy


def _energy(grid: Grid) -> Plot | None:
    costs = {(column, grid.label(row)): cost_per_model(done) or {} for row, column, done in grid.models()}
    costs = {place: cost for place, cost in costs.items() if cost["energy_kwh"]}
    if not costs:
        return None
    columns = list(dict.fromkeys(column for column, _ in costs))
    labels = [label for label in map(grid.label, grid.rows) if any(label == other for _, other in costs)]
    unit, scale = ("Wh", 1e3) if max(cost["energy_kwh"] for cost in costs.values()) < 0.5 else ("kWh", 1.0)
    figure, axes = _panels(columns, 1.1 + 0.38 * len(labels), share_y=True)
    for axis, column in zip(axes, columns, strict=False):
        _bars(axis, {i: costs[column, label] for i, label in enumerate(labels) if (column, label) in costs}, scale)
        axis.set(title=grid.name(column), xlabel=f"{unit} per model")
        axis.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(labels)), labels)
    axes[0].set_ylim(len(labels) - 0.5, -0.5)  # the first arm on top
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, fontsize=8)
    return f"Energy of one model by component; CPU and RAM are the job's share of its node. {tracked(grid.sweep)}", figure


def _bars(axis: Axes, costs: dict[int, dict[str, float]], scale: float) -> None:
    """One stacked bar of energy components per position on the axis."""
    left = np.zeros(len(costs))
    for key, (name, colour, hatch) in COMPONENTS.items():
        width = np.array([cost[key] * scale for cost in costs.values()])
        if width.any():
            axis.barh(list(costs), width, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, height=0.62, label=name)
        left += width
