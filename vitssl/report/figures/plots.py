"""The plots of a report: the table of all plots, and those of accuracy over an axis of the sweep and of energy by component."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from vitssl.report.figures import confusion, curves, pareto
from vitssl.report.figures.style import INK, PAPER, STYLE, Plot, is_wide, log_x, look, panels
from vitssl.report.results.costs import caveats
from vitssl.report.results.energy import tracked
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import cost_per_model
from vitssl.report.results.stats import std
from vitssl.report.table import number
from vitssl.report.units import scale

COMPONENTS = {"gpu_kwh": ("GPU", 1.0), "cpu_kwh": ("CPU", 0.6), "ram_kwh": ("RAM", 0.3)}  # label and opacity of each component
Line = tuple[list[tuple[Any, dict[Any, float]]], dict[str, Any]]  # points (axis value, scores by seed), and the style of the line


def draw(grid: Grid) -> dict[str, Plot]:
    """Draw every plot that the sweep has data for, and return the plots by file name."""
    with rc_context(STYLE):
        plots = {name: make(grid) for name, make in MAKERS.items()}
    return {name: plot for name, plot in plots.items() if plot}


# -------------------------------------------------------------------------------------------------------------- an axis


def _by_axis(grid: Grid) -> Plot | None:
    """Draw a line per arm over a numeric axis, which may be the columns or the rows; None without such an axis, or scores."""
    name = grid.sweep.facts["columns"]
    if name and _numeric(grid.columns):
        lines = {grid.label(row): ([(c, grid.scores(row, c)) for c in grid.columns], look(grid, row)) for row in grid.rows}
        lines_by_panel = {"": lines}
    else:
        name = next((a for a in grid.row_axes if _numeric([r.values[a] for r in grid.rows if r.cells and a in r.values])), None)
        if name is None:
            return None
        lines_by_panel = {grid.name(column): _row_lines(grid, name, column) for column in grid.columns}
    scored_lines = {
        title: lines for title, lines in lines_by_panel.items() if any(scores for line, _ in lines.values() for _, scores in line)
    }
    if not scored_lines:
        return None
    figure, axes = panels(len(scored_lines))
    for axis, (title, lines) in zip(axes, scored_lines.items(), strict=True):
        for label, (points, style) in lines.items():
            _line(axis, label, points, style)
        axis.set(title=title, xlabel=grid.short(name), ylabel=grid.measured.title)
        axis.legend(fontsize=8)
        _scale_x(axis, grid.sweep.facts["axes"][name], name)
    return f"{grid.measured.title} over {grid.short(name)}: mean ± one standard deviation over seeds.", figure


def _numeric(values: list[Any]) -> bool:
    """Whether there are several different values, all of them numbers."""
    return len(set(values)) > 1 and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _scale_x(axis: Axes, values: list[Any], name: str) -> None:
    """Make the horizontal axis logarithmic if its values span much; give whole numbers whole ticks.

    Learning rates above 0 are always on a logarithmic axis, since they are compared as ratios.
    """
    if is_wide(values) or (min(values) > 0 and name.rsplit(".", 1)[-1].endswith("lr")):
        log_x(axis, values)
    elif all(isinstance(value, int) for value in values):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _row_lines(grid: Grid, axis: str, column: Any) -> dict[str, Line]:
    """Return the lines of a column over ``axis`` by their label, which names the arm and the values of the other axes.

    A line looks as its first row does in other plots. It is flat if the axis changes nothing for the arm.
    """
    lines: dict[str, Line] = {}
    values = [row.values[axis] for row in grid.rows if axis in row.values]
    for row in (r for r in grid.rows if r.cells):
        label = grid.label(row, but=axis)
        points, _ = lines.setdefault(label, ([], look(grid, row) | {"alpha": 1.0}))
        points += [(x, grid.scores(row, column)) for x in ([row.values[axis]] if axis in row.values else (min(values), max(values)))]
    return lines


def _line(axis: Axes, label: str, points: list[tuple[Any, dict[Any, float]]], style: dict[str, Any]) -> None:
    """Draw the mean over seeds at every point, with the standard deviation as error bars."""
    known = sorted((x, list(scores.values())) for x, scores in points if scores)
    if known:
        x, values = zip(*known, strict=True)
        errors = [std(v) or 0.0 for v in values]
        axis.errorbar(x, [mean(v) for v in values], yerr=errors, label=label, markersize=5, capsize=2.5, linewidth=1.4, **style)


# --------------------------------------------------------------------------------------------------------------- energy


def _energy(grid: Grid) -> Plot | None:
    """Draw a bar for each arm in its colour, stacked by component; None if no energy is known."""
    means = {(column, grid.rows.index(row)): cost_per_model(done) for row, column, done in grid.models()}
    costs = {place: cost for place, cost in means.items() if cost and cost["energy_kwh"]}
    if not costs:
        return None
    columns = list(dict.fromkeys(column for column, _ in costs))
    shown_rows = sorted({row for _, row in costs})
    unit, factor = scale("kWh", max(cost["energy_kwh"] for cost in costs.values()))
    figure, axes = panels(len(columns), 1.1 + 0.38 * len(shown_rows), share_y=True)
    for axis, column in zip(axes, columns, strict=True):
        if grid.of_one_set and axis is not axes[0]:
            axis.sharex(axes[0])
        for place, row in enumerate(shown_rows):
            if (column, row) in costs:
                _bar(axis, place, costs[column, row], look(grid, grid.rows[row])["color"], factor)
        axis.set(title=grid.name(column), xlabel=f"{unit} per model")
        axis.grid(visible=False)
        axis.margins(x=0.15)
    axes[0].set_yticks(range(len(shown_rows)), [grid.label(grid.rows[row]) for row in shown_rows])
    axes[0].set_ylim(len(shown_rows) - 0.5, -0.5)  # the first arm on top
    components = [part for part in COMPONENTS if any(cost[part] for cost in costs.values())]
    handles = [Patch(facecolor=INK, alpha=COMPONENTS[part][1], label=COMPONENTS[part][0]) for part in components]
    figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=8)
    caption = f"Energy of one model by component; CPU and RAM are the job's share of its node.{caveats(grid)} {tracked(grid.sweep)}"
    return caption, figure


def _bar(axis: Axes, place: int, cost: dict[str, float], colour: str, factor: float) -> None:
    left = 0.0
    for part, (name, strength) in COMPONENTS.items():
        if width := cost[part] * factor:
            axis.barh(place, width, left=left, color=colour, alpha=strength, edgecolor=PAPER, linewidth=0.5, height=0.62, label=name)
            left += width
    axis.annotate(number(left), (left, place), (4, 0), textcoords="offset points", va="center", fontsize=8)


MAKERS: dict[str, Callable[[Grid], Plot | None]] = {
    **{name: partial(pareto.against, name=name) for name in pareto.COSTS},
    "accuracy_by_axis": _by_axis,
    "learning_curves_images": curves.over_images,
    "learning_curves": curves.over_epochs,
    "learning_curves_time": curves.over_time,
    "confusion": confusion.plot,
    "energy_by_component": _energy,
}
