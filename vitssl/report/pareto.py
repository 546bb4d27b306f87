"""Accuracy against what the training of a model cost, and the arms that no other one beats in both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitssl.report.across import EQUAL
from vitssl.report.collect import Cell
from vitssl.report.costs import UNEQUAL, doubt, uncounted
from vitssl.report.energy_sources import metered
from vitssl.report.grid import SEED, Grid
from vitssl.report.label_placement import SIZE_PT, Point, place_all
from vitssl.report.panels import is_wide, log_x, panels
from vitssl.report.rows import Row, cost_of
from vitssl.report.schedule import training_macs
from vitssl.report.stats import std
from vitssl.report.style import INK, SOFT, Plot, look
from vitssl.report.tables import hours_name
from vitssl.report.units import scale


@dataclass(frozen=True)
class Cost:
    """What is on the horizontal axis: the unit that it is computed in, what it is called, and its value for one model."""

    base: str
    name: Callable[[Grid], str]  # with the unit in it
    of: Callable[[Cell], float | None]  # None where it is not known


def _exact(cell: Cell) -> float | None:
    return None if (count := training_macs(cell)) is None else count / 1e15


def _spent(name: str, cell: Cell) -> float:
    return cost_of(cell)[name]


EXACT = "accuracy_vs_macs"
LINE_IN = 0.19  # height of a legend's line, inches
COSTS = {
    EXACT: Cost("PMACs", lambda grid: "PMACs of training", _exact),
    "accuracy_vs_energy": Cost("kWh", lambda grid: "kWh per model, tracked", partial(_spent, "energy_kwh")),
    "accuracy_vs_hours": Cost("hours", lambda grid: f"{hours_name(grid.sweep)} per model", partial(_spent, "device_hours")),
}


@dataclass(frozen=True)
class Model:
    """One row in one column: its finished seeds' costs and scores."""

    row: Row
    costs: list[float]
    scores: list[float]

    @property
    def centre(self) -> tuple[float, float]:
        return mean(self.costs), mean(self.scores)


def against(grid: Grid, name: str) -> Plot | None:
    """The plot of one of COSTS; None where no arm has both, or all have spent nothing."""
    cost = COSTS[name]
    drawn = {column: models for column in grid.columns if (models := _models(grid, column, cost.of))}
    spent = [model.centre[0] for models in drawn.values() for model in models]
    if not spent or not max(spent):
        return None
    unit, factor = scale(cost.base, max(spent))
    label, wide = cost.name(grid).replace(cost.base, unit), is_wide(spent)
    figure, axes = panels(len(drawn))
    labelled = []
    for axis, (column, models) in zip(axes, drawn.items(), strict=False):
        points = [_draw(axis, grid, model, factor) for model in models]
        axis.set(title=grid.name(column), xlabel=label, ylabel=grid.measured.title)
        axis.margins(0.14, 0.16)
        if wide:
            log_x(axis, spent)
        else:
            _limit_x(axis, [cost * factor for model in models for cost in model.costs])
        among = [model.centre for each in (drawn.values() if _joint(grid) else [models]) for model in each]
        best = [place for place in front(among, grid.measured.lower_is_better) if place in {model.centre for model in models}]
        line = [(x * factor, y) for x, y in best] if len(among) > 1 and not _unmarked(grid, column, name) else []
        if line:
            _draw_front(axis, line)
        labelled.append((axis, points, line))
    if grid.of_one_set:
        _same_limits([axis for axis, *_ in labelled])
    if not place_all(figure, labelled):
        shown = [model.row for models in drawn.values() for model in models]
        _add_legend(figure, grid, [row for row in grid.rows if row in shown], len(drawn))
    return _caption(grid, label, name, list(drawn)), figure


def _joint(grid: Grid) -> bool:
    """Are all panels of one comparison: of one data set, at values that are no hyper-parameter's?"""
    return grid.of_one_set and not grid.unselected_columns


def _same_limits(axes: list[Axes]) -> None:
    """Panels of one data set show one comparison: what is better or cheaper in one of them is so in all."""
    limits = [(axis.get_xlim(), axis.get_ylim()) for axis in axes]
    for axis in axes:
        axis.set_xlim(min(x[0] for x, _ in limits), max(x[1] for x, _ in limits))
        axis.set_ylim(min(y[0] for _, y in limits), max(y[1] for _, y in limits))


def _unmarked(grid: Grid, column: Any, name: str) -> str:
    """Why no arm of a column is marked as better and cheaper than others; empty where nothing speaks against it."""
    modelled = "energy is modelled, and little else than the time" if name == "accuracy_vs_energy" and not metered(grid.sweep) else ""
    return grid.unselected_reason or ("" if name == EXACT else doubt(grid, column)) or modelled


def front(centres: list[tuple[float, float]], lower_is_better: bool = False) -> list[tuple[float, float]]:
    """The points that no other one beats in both, from the cheapest: each costs more than the one before, and is better. Costs that differ
    by what whole epochs leave of equal ones are the same."""
    sign = -1 if lower_is_better else 1
    chosen: list[tuple[float, float]] = []
    for cost, score in sorted(centres, key=lambda point: (point[0], -sign * point[1])):
        if not chosen or sign * score > sign * chosen[-1][1]:
            chosen = [*(point for point in chosen if cost > EQUAL * point[0]), (cost, score)]
    return chosen


def _models(grid: Grid, column: Any, cost: Callable[[Cell], float | None]) -> list[Model]:
    """Of the seeds that have both."""
    models = []
    for row in grid.rows:
        scores = grid.scores(row, column)
        cells = [cell for cell in row.columns.get(column, []) if cell.axes.get(SEED) in scores]
        if both := [(spent, scores[cell.axes.get(SEED)]) for cell in cells if (spent := cost(cell)) is not None]:
            models.append(Model(row, [spent for spent, _ in both], [score for _, score in both]))
    return models


def _draw(axis: Axes, grid: Grid, model: Model, factor: float) -> Point:
    """Means with their spread, and faintly the seeds."""
    style, x, y = look(grid, model.row), [cost * factor for cost in model.costs], model.scores
    if len(x) > 1:
        axis.scatter(x, y, s=14, alpha=0.5, linewidths=0, color=style["color"])
    axis.errorbar(mean(x), mean(y), xerr=std(x) or None, yerr=std(y), markersize=6, capsize=2.5, elinewidth=1, **style)
    return Point(mean(x), mean(y), std(x) or 0.0, std(y) or 0.0, grid.label(model.row), INK)


def _add_legend(figure: Figure, grid: Grid, rows: list[Row], panel_count: int) -> None:
    """Name the rows below the plot, whose height stays: where there is no room for their names beside the points."""
    handles = [Line2D([], [], linestyle="", markersize=6, label=grid.label(row), **look(grid, row)) for row in rows]
    across = 2 * min(panel_count, 2)
    figure.set_figheight(figure.get_figheight() + LINE_IN * -(-len(rows) // across))
    figure.legend(handles=handles, loc="outside lower left", ncols=across, fontsize=SIZE_PT)


def _limit_x(axis: Axes, costs: list[float]) -> None:
    """From nothing, with room for markers; of costs that are about equal the part where they are."""
    equal = max(costs) < UNEQUAL * min(costs)
    axis.set_xlim(min(costs) / UNEQUAL if equal else 0.0, UNEQUAL * max(costs))


def _draw_front(axis: Axes, points: list[tuple[float, float]]) -> None:
    x, y = [x for x, _ in points], [y for _, y in points]
    axis.plot(x, y, color=SOFT, linewidth=1, zorder=1)
    axis.plot(x, y, "o", markersize=12, markerfacecolor="none", markeredgecolor=SOFT, markeredgewidth=1, zorder=1, label="Pareto front")


def _caption(grid: Grid, label: str, name: str, columns: list[Any]) -> str:
    exact = " (multiply-adds of all training steps, forward and backward: an exact count)" if name == EXACT else ""
    of_all = " of all panels" if _joint(grid) and len(columns) > 1 else ""
    marked = f"A ring and the line mark the Pareto front{of_all}: no other arm is both cheaper and better by the means."
    reasons = {grid.name(column): reason for column in columns if (reason := _unmarked(grid, column, name))}
    if len(reasons) < len(columns):
        marked += "".join(f" It is left out on {column}, since {reason}." for column, reason in reasons.items())
        unchosen = dict.fromkeys(filter(None, map(grid.unchosen, columns)))
        marked += f" It names no arm the best, since {'; '.join(unchosen)}." if unchosen else ""
    else:
        marked = f"The Pareto front is not marked, since {'; '.join(dict.fromkeys(reasons.values()))}."
    spread = "means with ± one standard deviation over seeds; small dots are single seeds"
    said = [f"{grid.measured.title} against {label}{exact}: {spread}.", uncounted(grid) if name == EXACT else "", marked]
    return " ".join(filter(None, said))
