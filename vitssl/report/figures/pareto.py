"""Accuracy against the cost of training a model, with the Pareto front: the arms that no other arm beats in both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

from matplotlib.axes import Axes

from vitssl.report.figures.style import SOFT, Plot, add_legend, is_wide, log_x, look, panels
from vitssl.report.results.collect import Cell
from vitssl.report.results.costs import UNEQUAL, doubt
from vitssl.report.results.energy import metered, unrecorded
from vitssl.report.results.grid import SEED, Grid
from vitssl.report.results.rows import Row, cost_of
from vitssl.report.results.schedule import EQUAL, training_macs
from vitssl.report.results.stats import std
from vitssl.report.units import scale


@dataclass(frozen=True)
class Cost:
    """A cost on the horizontal axis.

    Attributes:
        base: the unit in which the cost is computed.
        label: the label of the axis, with that unit.
        per_model: gives the cost of one model, or None if it is not known.
    """

    base: str
    label: str
    per_model: Callable[[Cell], float | None]


EXACT = "accuracy_vs_macs"
COSTS = {
    EXACT: Cost("PMACs", "PMACs of training", lambda cell: training_macs(cell) / 1e15),
    "accuracy_vs_energy": Cost("kWh", "kWh per model, tracked", lambda cell: cost_of(cell).get("energy_kwh")),
    "accuracy_vs_hours": Cost("hours", "{hours} per model", lambda cell: cost_of(cell).get("device_hours")),
}


@dataclass(frozen=True)
class Model:
    """One row in one column: the costs and scores of its finished seeds."""

    row: Row
    costs: list[float]
    scores: list[float]

    @property
    def centre(self) -> tuple[float, float]:
        """The mean cost and the mean score."""
        return mean(self.costs), mean(self.scores)


def against(grid: Grid, name: str) -> Plot | None:
    """Draw accuracy against the cost ``name``, a key of COSTS.

    Return None if no column has two rows with a score and a known cost, or if all costs are 0.
    """
    cost = COSTS[name]
    models_by_column = {column: models for column in grid.columns if (models := _models(grid, column, cost.per_model))}
    all_costs = [value for models in models_by_column.values() for model in models for value in model.costs]
    if max(map(len, models_by_column.values()), default=0) < 2 or not max(all_costs):
        return None
    unit, factor = scale(cost.base, max(all_costs))
    label = cost.label.format(hours=grid.sweep.hours_name).replace(cost.base, unit)
    figure, axes = panels(len(models_by_column))
    for axis, (column, models) in zip(axes, models_by_column.items(), strict=True):
        if grid.of_one_set and axis is not axes[0]:
            axis.sharey(axes[0])
        for model in models:
            _draw(axis, grid, model, factor)
        axis.set(title=grid.name(column), xlabel=label, ylabel=grid.measured.title)
        axis.margins(0.14, 0.16)
        panel_costs = all_costs if grid.of_one_set else [value for model in models for value in model.costs]
        if is_wide(all_costs):
            log_x(axis, all_costs)
        else:
            _limit_x(axis, [value * factor for value in panel_costs])
        if len(models) > 1 and not _unmarked_reason(grid, column, name):
            _draw_front(axis, [(x * factor, y) for x, y in front([m.centre for m in models], grid.measured.lower_is_better)])
    shown_rows = {model.row for models in models_by_column.values() for model in models}
    add_legend(figure, grid, [row for row in grid.rows if row in shown_rows])
    return _caption(grid, label, name, list(models_by_column)), figure


def _unmarked_reason(grid: Grid, column: Any, name: str) -> str:
    """Return the reason why the Pareto front of a column is not marked; empty if nothing speaks against it."""
    modelled = "energy is modelled, and little else than the time" if name == "accuracy_vs_energy" and not metered(grid.sweep) else ""
    single = "a single seed does not tell arms apart" if any(len(grid.scores(row, column)) == 1 for row in grid.rows) else ""
    return grid.unselected_reason or single or ("" if name == EXACT else doubt(grid, column)) or modelled


def front(centres: list[tuple[float, float]], lower_is_better: bool = False) -> list[tuple[float, float]]:
    """Return the points (cost, score) that no other point beats in both, from the cheapest.

    Each point costs more than the one before it and is better. Costs that differ only by rounding to whole epochs count as equal.
    """
    sign = -1 if lower_is_better else 1
    chosen: list[tuple[float, float]] = []
    for cost, score in sorted(centres, key=lambda point: (point[0], -sign * point[1])):
        if not chosen or sign * score > sign * chosen[-1][1]:
            chosen = [*(point for point in chosen if cost > EQUAL * point[0]), (cost, score)]
    return chosen


def _models(grid: Grid, column: Any, per_model: Callable[[Cell], float | None]) -> list[Model]:
    """Return the models of a column, with the seeds that have a score and a known cost."""
    models = []
    for row in grid.rows:
        scores = grid.scores(row, column)
        cells = [cell for cell in row.columns[column] if cell.axes.get(SEED) in scores]
        known = [(cost, scores[cell.axes.get(SEED)]) for cell in cells if (cost := per_model(cell)) is not None]
        if known:
            costs, known_scores = zip(*known, strict=True)
            models.append(Model(row, list(costs), list(known_scores)))
    return models


def _draw(axis: Axes, grid: Grid, model: Model, factor: float) -> None:
    """Draw a model's mean with its spread, and its single seeds faintly."""
    style, x, y = look(grid, model.row), [cost * factor for cost in model.costs], model.scores
    if len(x) > 1:
        axis.scatter(x, y, s=14, alpha=0.5, linewidths=0, color=style["color"])
    axis.errorbar(mean(x), mean(y), xerr=std(x) or None, yerr=std(y), markersize=6, capsize=2.5, elinewidth=1, **style)


def _limit_x(axis: Axes, costs: list[float]) -> None:
    """Begin the horizontal axis at 0, with room for markers; if the costs are about equal, show only their range."""
    equal = max(costs) < UNEQUAL * min(costs)
    axis.set_xlim(min(costs) / UNEQUAL if equal else 0.0, UNEQUAL * max(costs))


def _draw_front(axis: Axes, points: list[tuple[float, float]]) -> None:
    x, y = [x for x, _ in points], [y for _, y in points]
    axis.plot(x, y, color=SOFT, linewidth=1, zorder=1)
    axis.plot(x, y, "o", markersize=12, markerfacecolor="none", markeredgecolor=SOFT, markeredgewidth=1, zorder=1, label="Pareto front")


def _caption(grid: Grid, label: str, name: str, columns: list[Any]) -> str:
    exact = " (multiply-adds of all training steps, forward and backward: an exact count)" if name == EXACT else ""
    lines = [f"{grid.measured.title} against {label}{exact}: means with ± one standard deviation over seeds; small dots are single seeds."]
    reasons = {column: _unmarked_reason(grid, column, name) for column in columns}
    if not all(reasons.values()):
        lines.append("A ring and the line mark the Pareto front: no other arm is both cheaper and better by the means.")
    for reason in dict.fromkeys(filter(None, reasons.values())):
        names = ", ".join(grid.name(column) for column in columns if column is not None and reasons[column] == reason)
        lines.append(f"The Pareto front is not marked{f' on {names}' if names else ''}, since {reason}.")
    return " ".join(lines) + (unrecorded(grid.sweep) if name != EXACT else "")
