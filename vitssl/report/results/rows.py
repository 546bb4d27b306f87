"""The rows of a sweep's tables: an arm's cells by column, which of them held-out images choose, and what one of its models costs.

Terms:
    cell: one arm at one point of all axes, seed included (`collect.Cell`); a finished cell is a trained model.
    column: a value of the column axis, which the sweep file names (``columns``), such as a data set.
    row: one arm at one value of every row axis. Row axes are those with several values, except the seed, the column axis and the axes that
        the sweep selects over (``select``).
    point: one combination of values of the axes that the sweep selects over.
    selection: all points of a row and column. Held-out images choose the best of them, and the row keeps the cells of that point alone.

Example: with ``select: [optim.lr]``, ``optim.lr: [1e-3, 1e-4]`` and ``seed: [0, 1, 2]``, each row has six cells in each column: two points,
(1e-3,) and (1e-4,), of three seeds each. If the mean held-out accuracy is higher at (1e-4,), the tables show the three test accuracies of
that point.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from statistics import mean
from typing import Any

from vitssl.config.metrics import METRICS
from vitssl.report.results.collect import Arm, Cell, Reading
from vitssl.report.results.sums import SUMMED, add


@dataclass
class Selection:
    """The cells of one row and column by point of the axes that the sweep selects over; held-out images choose the point that is shown.

    A point counts once all of its seeds are done.
    """

    points: dict[tuple[Any, ...], list[Cell]]  # by the axes' values (None if they do not change the arm): a cell per seed
    tested: Reading  # whose values are shown
    held_out: Reading  # which chooses

    def means(self, reading: Reading) -> dict[tuple[Any, ...], float]:
        """Return the mean over seeds of every point that counts, by the reading ``tested`` or ``held_out``."""
        means: dict[tuple[Any, ...], float] = {}
        for point, cells in self.points.items():
            values = [value for cell in cells if (value := cell.result(*reading)) is not None]
            if len(values) == len(cells):
                means[point] = mean(values)
        return means

    @property
    def missing(self) -> int:
        """The number of points that do not count yet."""
        return len(self.points) - len(self.means(self.held_out))

    def best(self, reading: Reading) -> tuple[Any, ...] | None:
        """Return the point of the best mean, the first of equal ones; None if no point counts yet, or none has a finite mean."""
        means = {point: value for point, value in self.means(reading).items() if isfinite(value)}
        pick = min if METRICS[reading[1]].lower_is_better else max
        return pick(means, key=means.__getitem__, default=None)


@dataclass(eq=False)
class Row:
    """One arm at one value of every row axis that changes it, with its cells by column."""

    arm: Arm
    values: dict[str, Any]  # by row axis
    columns: dict[Any, list[Cell]]  # a cell per seed; after a selection, those of the chosen point
    selections: dict[Any, Selection] = field(default_factory=dict)  # by column; empty unless the sweep selects over axes

    @property
    def cells(self) -> list[Cell]:
        """The cells of all columns."""
        return [cell for cells in self.columns.values() for cell in cells]

    @property
    def done(self) -> list[Cell]:
        """The finished cells of all columns."""
        return finished(self.cells)

    def finished(self, column: Any) -> list[Cell]:
        """Return the finished cells of a column."""
        return finished(self.columns[column])

    def candidates(self, column: Any) -> list[Cell]:
        """Return the cells of a column, including those that a selection did not choose."""
        selection = self.selections.get(column)
        return [cell for cells in selection.points.values() for cell in cells] if selection else self.columns[column]

    def choose(self, select: list[str], tested: Reading, held_out: Reading) -> None:
        """Keep, in every column, only the cells of the point that is best on held-out images.

        Args:
            select: the axes to select over.
            tested: the reading whose values are shown.
            held_out: the reading that chooses.
        """
        for column, cells in self.columns.items():
            points: dict[tuple[Any, ...], list[Cell]] = {}
            for cell in cells:
                points.setdefault(tuple(cell.axes[axis] for axis in select), []).append(cell)
            if len(points) > 1 and len({tuple(cell.last.path for cell in at_point) for at_point in points.values()}) == 1:
                points = {(None,) * len(select): next(iter(points.values()))}
            self.selections[column] = Selection(points, tested, held_out)
            chosen = self.selections[column].best(held_out)
            self.columns[column] = [] if chosen is None else points[chosen]


def changes_nothing(cells: list[Cell], axis: str) -> bool:
    """Whether an arm has the same runs at all values of an axis, for example of a field of an objective that is not on."""
    runs: dict[Any, set[tuple[Any, ...]]] = {}
    for cell in cells:
        rest = tuple(without(cell.axes, axis).items())
        runs.setdefault(cell.axes.get(axis), set()).add((rest, tuple(run.path for _, run in cell.stages)))
    return len(runs) > 1 and all(others == runs[cells[0].axes[axis]] for others in runs.values())


def without(axes: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the values of all axes but one."""
    return {axis: value for axis, value in axes.items() if axis != name}


def finished(cells: list[Cell]) -> list[Cell]:
    """Return the cells whose stages are all done, so that each has its cost.json."""
    return [cell for cell in cells if cell.state == "done"]


def cost_of(cell: Cell) -> dict[str, float]:
    """Return what one finished model cost, over all stages and attempts; empty if the record of a stage is lost."""
    runs = [run for _, run in cell.stages]
    return add(run.spent for run in runs) if all(run.recorded for run in runs) else {}


def costs_of(cells: list[Cell]) -> list[dict[str, float]]:
    """Return the cost of every finished model whose cost is known."""
    return [cost for cell in finished(cells) if (cost := cost_of(cell))]


def mean_cost(costs: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each cost over models; empty if there are no models."""
    return {name: mean(cost[name] for cost in costs) for name in SUMMED} if costs else {}


def cost_per_model(cells: list[Cell]) -> dict[str, float]:
    """Return the mean cost of a finished model; empty if no finished model has a known cost."""
    return mean_cost(costs_of(cells))
