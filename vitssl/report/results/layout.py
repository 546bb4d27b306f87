"""The rows and columns of a sweep's tables, and what they are called.

Terms (for cell, point and selection see `rows`):
    column: a value of the column axis that the sweep file names, such as a data set; without such an axis the only column is None.
    row: one arm at one value of every row axis: all axes with several values, except the seed, the column axis and those selected over.
    part: the rows that are compared on the same terms, such as at equal epochs or at equal cost; a layout of its own.

Example: with ``columns: data``, the arms scratch and ssat and the axes ``data: [cifar10, svhn]``, ``seed: [0, 1, 2]`` and
``backbone.depth: [6, 12]`` make two columns and four rows: "scratch, depth 6", "scratch, depth 12", "ssat, depth 6" and "ssat, depth 12".
Each row has three cells (seeds) in each column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from vitssl.report.results.collect import Arm, Cell, Sweep
from vitssl.report.results.folds import folds_of
from vitssl.report.results.rows import Row, without


@dataclass(eq=False)
class Layout:
    """A sweep laid out in rows and columns."""

    sweep: Sweep
    columns: list[Any]  # values of the column axis; [None] without one
    row_axes: list[str]  # axes with several values, except the seed, the column axis and those selected over
    rows: list[Row]
    part: str = ""  # if it is one of the `parts` of a layout: the value of its `cost_axis` there

    @property
    def cost_axis(self) -> str | None:
        """The axis that tells equal epochs from equal cost, or None unless rows differ by it."""
        return next((axis for axis in self.equal_cost_axes if axis in self.row_axes), None)

    @cached_property
    def parts(self) -> list[Self]:
        """A layout for each value of `cost_axis`, or the whole one if there is no such axis."""
        axis = self.cost_axis
        if axis is None:
            return [self]
        others = [other for other in self.row_axes if other != axis]
        return [
            replace(self, row_axes=others, rows=self._rows_at(axis, value), part=str(value))
            for value in dict.fromkeys(row.values[axis] for row in self.rows if axis in row.values)
        ]

    def _rows_at(self, axis: str, value: Any) -> list[Row]:
        """Return the rows with a value of an axis; those that are only quoted have none, and belong to all."""
        return [replace(row, values=without(row.values, axis)) for row in self.rows if row.values.get(axis, value) == value]

    def prefixed_text(self, column: Any, sentence: str) -> str:
        """Return a sentence after the column and part that it holds for, if there are several: ``cifar10, equal MACs: ...``."""
        return ": ".join(filter(None, [", ".join(filter(None, [self.name(column), self.part])), sentence]))

    def model_name(self, row: Row, column: Any) -> str:
        """Return the name of a row in a column, such as ``SSAT on cifar10``."""
        return f"{self.label(row)} on {self.name(column)}" if self.name(column) else self.label(row)

    @property
    def axis(self) -> str | None:
        """The column axis, or None unless it takes several values: the models of one arm then differ in data, size or cost."""
        return self.sweep.facts["columns"] if len(self.columns) > 1 else None

    @property
    def of_one_set(self) -> bool:
        """Whether all models that have begun to train use the same data, so that several columns may be compared."""
        sets = [facts for row in self.rows for cell in row.cells if (facts := cell.last.job.get("data"))]
        return len({(facts.get("name"), facts.get("sha256")) for facts in sets}) <= 1

    @property
    def axis_name(self) -> str:
        """The short name of the column axis for a heading; empty unless it takes several values."""
        return self.short(self.axis) if self.axis else ""

    @property
    def done(self) -> list[Cell]:
        """The finished cells of all rows."""
        return [cell for row in self.rows for cell in row.done]

    def models(self) -> list[tuple[Row, Any, list[Cell]]]:
        """Return row, column and finished seeds (whose costs are averaged), column by column, since arms are compared within a column."""
        places = [(row, column) for column in self.columns for row in self.rows]
        return [(row, column, done) for row, column in places if (done := row.finished(column))]

    def arm_name(self, arm: Arm) -> str:
        """Return the name of the arm's row in the paper's table, with its name in the sweep file if several arms have the same row."""
        name = arm.row or arm.name
        return name if [other.row or other.name for other in self.sweep.arms].count(name) == 1 else f"{name} [{arm.name}]"

    @property
    def has_single_arm(self) -> bool:
        """Whether there is a single arm, so that rows differ only in the values of axes."""
        return len({row.arm.name for row in self.rows}) == 1

    def label(self, row: Row, but: str | None = None) -> str:
        """Return the row's name, without the axis ``but``; a single arm's name is not repeated in every row of a matrix."""
        values = {axis: value for axis, value in row.values.items() if axis != but}
        # the values of an axis of equal cost need no name before them: "equal MACs"
        parts = [str(value) if axis in self.equal_cost_axes else f"{self.short(axis)} {value}" for axis, value in values.items()]
        return ", ".join(parts if parts and self.has_single_arm else [self.arm_name(row.arm), *parts])

    def short(self, axis: str) -> str:
        """Return the last part of a field's name, if it tells the axes apart; otherwise the whole name."""
        last = axis.rsplit(".", 1)[-1]
        return last if [other.rsplit(".", 1)[-1] for other in self.sweep.facts["axes"]].count(last) == 1 else axis

    def name(self, column: Any) -> str:
        """Return a column's name; a bare number follows the name of its axis, such as ``depth 6``."""
        if column is None:
            return ""
        return str(column) if isinstance(column, str) else f"{self.short(self.sweep.facts['columns'])} {column}"

    @property
    def equal_cost_axes(self) -> list[str]:
        """The axes whose values say what is equal for all arms, such as epochs or MACs; the epochs that follow from it are no choice."""
        return list(self.sweep.facts["equal"]["axes"])

    @cached_property
    def folds(self) -> int | None:
        """The number of folds if every seed is tested on one of them; None if an arm's test images are those of a split."""
        return folds_of(self.done)
