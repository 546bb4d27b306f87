"""The rows of a sweep's tables: an arm's cells by column, what held-out images choose of them, and what one of its models cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from statistics import mean
from typing import Any

from vitssl.config.evals import METRICS
from vitssl.report.results.collect import SUMMED, Arm, Cell, add


@dataclass
class Selection:
    """The cells of one row and column over the axes that the sweep selects over; held-out images choose the point that is shown.

    A point counts once all of its seeds are done.
    """

    points: dict[tuple[Any, ...], list[Cell]]  # by the values of those axes, None where they change nothing of an arm: a cell per seed
    metric: str  # its key
    tested: str = "test"  # the evaluator whose values are shown
    held_out: str = "val"  # and the one that chooses

    def means(self, evaluator: str) -> dict[tuple[Any, ...], float]:
        """The metric by point, mean over seeds, of the evaluator that is shown or of the one that chooses; of the points that count."""
        scores = {point: [cell.result(evaluator, self.metric) for cell in cells] for point, cells in self.points.items()}
        return {point: mean(values) for point, values in scores.items() if None not in values}

    @property
    def missing(self) -> int:
        """The points that do not count yet."""
        return len(self.points) - len(self.means(self.held_out))

    def best(self, evaluator: str) -> tuple[Any, ...] | None:
        """The point of the best mean, of equal ones the first; None where none counts yet, or none is finite."""
        means = {point: value for point, value in self.means(evaluator).items() if isfinite(value)}
        pick = min if METRICS[self.metric].lower_is_better else max
        return pick(means, key=means.__getitem__, default=None)


@dataclass(eq=False)
class Row:
    """One arm at one value of every row axis that changes it; its cells by column."""

    arm: Arm
    values: dict[str, Any]  # of the row axes
    columns: dict[Any, list[Cell]]  # a cell per seed; of a selection those of the chosen point
    selections: dict[Any, Selection] = field(default_factory=dict)  # by column, where the sweep selects over axes

    @property
    def cells(self) -> list[Cell]:
        return [cell for cells in self.columns.values() for cell in cells]

    @property
    def done(self) -> list[Cell]:
        return finished(self.cells)

    def finished(self, column: Any) -> list[Cell]:
        return finished(self.columns[column])

    def candidates(self, column: Any) -> list[Cell]:
        """The cells of a column, those that were not chosen too."""
        selection = self.selections.get(column)
        return [cell for cells in selection.points.values() for cell in cells] if selection else self.columns[column]

    def choose(self, select: list[str], metric: str, tested: str, held_out: str) -> None:
        """Keep of every column the cells of the point over these axes that is best on held-out images."""
        for column, cells in self.columns.items():
            points: dict[tuple[Any, ...], list[Cell]] = {}
            for cell in cells:
                points.setdefault(tuple(cell.axes[axis] for axis in select), []).append(cell)
            if len(points) > 1 and len({tuple(cell.last.path for cell in here) for here in points.values()}) == 1:
                points = {(None,) * len(select): next(iter(points.values()))}
            self.selections[column] = Selection(points, metric, tested, held_out)
            chosen = self.selections[column].best(held_out)
            self.columns[column] = [] if chosen is None else points[chosen]


def changes_nothing(cells: list[Cell], axis: str) -> bool:
    """Has an arm the same runs at all values of an axis, such as one of an objective's field where that objective is not on?"""
    runs: dict[Any, set[tuple[Any, ...]]] = {}
    for cell in cells:
        rest = tuple(without(cell.axes, axis).items())
        runs.setdefault(cell.axes.get(axis), set()).add((rest, tuple(run.path for _, run in cell.stages)))
    return len(runs) > 1 and all(others == runs[cells[0].axes[axis]] for others in runs.values())


def without(axes: dict[str, Any], name: str) -> dict[str, Any]:
    return {axis: value for axis, value in axes.items() if axis != name}


def finished(cells: list[Cell]) -> list[Cell]:
    """The cells of which every stage is done; their cost.json is there."""
    return [cell for cell in cells if cell.status == "done"]


def cost_of(cell: Cell) -> dict[str, float] | None:
    """What one finished model cost: the sum over its stages, all attempts included; None where the record of a stage is lost."""
    runs = [run for _, run in cell.stages]
    return add(run.spent for run in runs) if all(run.recorded for run in runs) else None


def costs_of(cells: list[Cell]) -> list[dict[str, float]]:
    """What each finished model cost of which that is known."""
    return [cost for cell in finished(cells) if (cost := cost_of(cell)) is not None]


def mean_cost(costs: list[dict[str, float]]) -> dict[str, float] | None:
    """The mean of each; None of none."""
    return {name: mean(cost[name] for cost in costs) for name in SUMMED} if costs else None


def cost_per_model(cells: list[Cell]) -> dict[str, float] | None:
    """Mean cost of a finished model; None where there is none, or of none its cost is known."""
    return mean_cost(costs_of(cells))
