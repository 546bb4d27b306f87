"""The rows and columns of a sweep's tables: arms (and further axes) against the column axis, seeds gathered in each cell."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any

from vitssl.config.evals import OF_TEST, Metric, measured_by, metric_parts
from vitssl.report.results.collect import Arm, Cell, Sweep
from vitssl.report.results.folds import folds_of, of_folds, overlap_of
from vitssl.report.results.hyperparameters import fields_between, fields_between_arms, is_setting, sets_hyperparameters
from vitssl.report.results.images import of_images
from vitssl.report.results.rows import Row, changes_nothing, without
from vitssl.report.results.stats import Difference, difference
from vitssl.words import listed

Reading = tuple[str, str]  # an evaluator, and the key of its metric
SEED = "seed"
MOST_FIELDS = 3  # that a sentence names


@dataclass(eq=False)
class Grid:
    """A sweep laid out: rows against columns."""

    sweep: Sweep
    columns: list[Any]  # values of the column axis; [None] without one
    row_axes: list[str]  # axes besides seed, the column axis and those selected over that take several values
    rows: list[Row]
    part: str = ""  # the value of the axis that tells equal epochs from equal cost, where these are its rows alone
    # what `gap` found, which sentences and tables ask for again and again; of every two of many rows that takes long
    gaps: dict[tuple[Row, Row, Any, Any, Reading | None], Difference | None] = field(default_factory=dict, init=False)

    @property
    def cost_axis(self) -> str | None:
        """The axis that tells equal epochs from equal cost, where rows differ by it."""
        return next((axis for axis in self.of_equal_cost if axis in self.row_axes), None)

    @cached_property
    def parts(self) -> list[Grid]:
        """The grid by the values of an axis that says what arms cost equally much of; the whole one where there is none."""
        axis = self.cost_axis
        if axis is None:
            return [self]
        rows: dict[Any, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(row.values[axis], []).append(replace(row, values=without(row.values, axis)))
        return [Grid(self.sweep, self.columns, [a for a in self.row_axes if a != axis], part, str(value)) for value, part in rows.items()]

    def placed(self, column: Any, sentence: str) -> str:
        """A sentence on a column of this part, after what it holds of where there are several: cifar10, equal MACs: ..."""
        return ": ".join(filter(None, [", ".join(filter(None, [self.name(column), self.part])), sentence]))

    def model(self, row: Row, column: Any) -> str:
        """A row and its column."""
        return f"{self.label(row)} on {self.name(column)}" if self.name(column) else self.label(row)

    @property
    def axis(self) -> str | None:
        """The column axis, where it takes several values: the models of one arm then differ in data, size or cost."""
        return self.sweep.facts["columns"] if len(self.columns) > 1 else None

    @property
    def of_one_set(self) -> bool:
        """Are all models of the same data, so that those of several columns may be compared? Of one that has not begun it is not known."""
        sets = [facts for row in self.rows for cell in row.cells if (facts := cell.last.job.get("data"))]
        return len({(facts.get("name"), facts.get("sha256")) for facts in sets}) <= 1

    @property
    def axis_name(self) -> str:
        """The column axis's, for a heading; empty where it takes one value."""
        return self.short(self.axis) if self.axis else ""

    @property
    def done(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.done]

    def models(self) -> list[tuple[Row, Any, list[Cell]]]:
        """Row, column and the finished seeds there, over which costs are averaged; column by column, since arms are compared within one."""
        places = [(row, column) for column in self.columns for row in self.rows]
        return [(row, column, done) for row, column in places if (done := row.finished(column))]

    def called(self, arm: Arm) -> str:
        """The arm as the paper's table calls its row; with its name in the sweep file where several have the same row."""
        name = arm.row or arm.name
        return name if [other.row or other.name for other in self.sweep.arms].count(name) == 1 else f"{name} [{arm.name}]"

    @property
    def alone(self) -> bool:
        """Is there a single arm, whose rows differ in the axes' values?"""
        return len({row.arm.name for row in self.rows}) == 1

    def label(self, row: Row, but: str | None = None) -> str:
        """The row's name, without the axis ``but``; an arm that is the only one is not repeated in every row of a matrix."""
        values = {axis: value for axis, value in row.values.items() if axis != but}
        # what arms cost equally much of says so itself: equal MACs
        parts = [str(value) if axis in self.of_equal_cost else f"{self.short(axis)} {value}" for axis, value in values.items()]
        return ", ".join(parts if parts and self.alone else [self.called(row.arm), *parts])

    def short(self, axis: str) -> str:
        """The last part of a field's name, where that tells the axes apart."""
        last = axis.rsplit(".", 1)[-1]
        return last if [other.rsplit(".", 1)[-1] for other in self.sweep.facts["axes"]].count(last) == 1 else axis

    def name(self, column: Any) -> str:
        """A column's name; a bare number says what it is."""
        if column is None:
            return ""
        return str(column) if isinstance(column, str) else f"{self.short(self.sweep.facts['columns'])} {column}"

    @property
    def of_equal_cost(self) -> list[str]:
        """The axes whose values say what arms cost equally much of: the epochs that follow are no choice."""
        return list(self.sweep.facts["equal"]["axes"])

    @cached_property
    def unselected(self) -> list[str]:
        """The row axes that set hyper-parameters of an arm here, which nothing selects over."""
        of_rows = {axis for row in self.rows for axis in row.values}
        return [axis for axis in self.row_axes if axis in of_rows - {*self.of_equal_cost} and sets_hyperparameters(self.sweep, axis)]

    @property
    def unselected_reason(self) -> str:
        return f"held-out images do not choose {' and '.join(self.unselected)}" if self.unselected else ""

    @cached_property
    def unselected_columns(self) -> bool:
        """Does the column axis set hyper-parameters? Arms are compared in each column, and columns are not."""
        return self.axis is not None and self.axis not in self.of_equal_cost and sets_hyperparameters(self.sweep, self.axis)

    @cached_property
    def folds(self) -> int | None:
        """The parts of which every seed tests on one; None where the test images of an arm are those of a split."""
        return folds_of(self.done)

    @property
    def metric(self) -> tuple[str, str]:
        """The evaluator that the sweep's accuracies are of, and its metric's key."""
        return metric_parts(self.sweep.facts["metric"])

    @property
    def own(self) -> str:
        """The run's own evaluator on the test images: that of the sweep's metric, or else after the last epoch."""
        return self.metric[0] if self.metric[0] in OF_TEST else "test"

    @property
    def measured(self) -> Metric:
        """The sweep's metric, named after its evaluator too where that is not the accuracy on the test split."""
        return measured_by(self.sweep.facts["metric"])

    @property
    def points(self) -> str:
        """The unit of a difference, behind its figure."""
        return " points" if self.measured.unit == "%" else ""

    def scores(self, row: Row, column: Any, kind: str | None = None, metric: str | None = None) -> dict[Any, float]:
        """The metric by seed, of finished cells; ``kind`` and ``metric`` None take the sweep's."""
        evaluator, usual = self.metric
        scores = {cell.axes.get(SEED): cell.result(kind or evaluator, metric or usual) for cell in row.columns[column]}
        return {seed: value for seed, value in scores.items() if value is not None}

    def compared(self, row: Row, column: Any) -> dict[Any, float]:
        """The scores that rows are ranked by: of the seeds that all rows of a column have, since a seed may draw images and labels too;
        where there is none, no row's mean says more than another's."""
        own, common = self.scores(row, column), self.seeds_of_all(column)
        return {seed: value for seed, value in own.items() if seed in common}

    def seeds_of_all(self, column: Any) -> set[Any]:
        """The seeds of which every row of a column that has any figure has one."""
        found = [set(by_seed) for row in self.rows if (by_seed := self.scores(row, column))]
        return set.intersection(*found) if found else set()

    def published(self, row: Row, column: Any) -> float | None:
        """The paper's number for this cell: keyed by the column axis first, then by every other axis that takes several values."""
        value, axes = row.arm.published, self.sweep.facts["axes"]
        single = {axis: values[0] for axis, values in axes.items() if axis != SEED and len(values) == 1}
        named = {axis: column for axis in [self.sweep.facts["columns"]] if axis} | row.values | single
        left = [(str(label), axis not in single) for axis, label in named.items()]  # the column axis comes first
        while isinstance(value, dict):
            found = next((part for part in left if part[0] in value), None)
            if found is None:
                return None
            value = value[found[0]]
            left.remove(found)
        return None if any(needed for _, needed in left) else value

    def ranking(self, column: Any) -> list[Row]:
        """The rows from the best mean to the worst; none where fewer than two have one, where one has a single seed, or where the test
        images would choose hyper-parameters: of an axis that nothing selects over, or of an arm that leads."""
        return [] if self.unselected or self.rivals(column) else self._ranked(column)

    def _ranked(self, column: Any) -> list[Row]:
        compared = [(row, by_seed) for row in self.rows if (by_seed := self.compared(row, column))]
        scored = [(row, by_seed) for row, by_seed in compared if all(map(isfinite, by_seed.values()))]  # an overflow has no rank
        if len(scored) < 2 or any(len(by_seed) < 2 for _, by_seed in scored):
            return []
        return [row for row, _ in sorted(scored, key=lambda pair: mean(pair[1].values()), reverse=not self.measured.lower_is_better)]

    def rivals(self, column: Any) -> list[Row]:
        """The row of the best mean and those that differ from it in hyper-parameters alone; none where there are none of these."""
        ranked = self._ranked(column)
        others = self.settings_of(ranked[0], column) if ranked else []
        return [row for row in self.rows if row is ranked[0] or row in others] if others else []

    def settings_of(self, row: Row, column: Any) -> list[Row]:
        """The ranked rows that differ from one in hyper-parameters alone."""
        return [other for other in self._ranked(column) if is_setting(self.apart(row, other, column))]

    def apart(self, row: Row, other: Row, column: Any) -> set[str]:
        """The fields that tell two rows of a column apart, at the same values of what held-out images choose; of costs that are made
        equal, other epochs are no such field."""
        if any(row.values.get(axis) != other.values.get(axis) for axis in self.of_equal_cost):
            return set()
        between = fields_between if row.arm is other.arm else fields_between_arms
        return between(row.candidates(column)[0], other.candidates(column)[0])

    def unchosen(self, column: Any) -> str:
        """Why no row of a column is the best, where the test images would choose hyper-parameters; empty elsewhere."""
        if self.unselected:
            return self.unselected_reason
        if not (rivals := self.rivals(column)):
            return ""
        fields = set().union(*(self.apart(rivals[0], row, column) for row in rivals[1:]))
        which = listed(sorted(fields)) if len(fields) <= MOST_FIELDS else f"{len(fields)} fields"
        return f"{listed(map(self.label, rivals))} differ only in hyper-parameters ({which}), which held-out images do not choose"

    def baseline_name(self, row: Row) -> str | None:
        """What the arm that a row is compared with is called; None for a baseline."""
        if self.alone:
            return self.label(base) if (base := self.baseline(row)) else None
        arm = next((arm for arm in self.sweep.arms if arm.name == self._baseline(row)), None)
        return self.called(arm) if arm else None

    def _baseline(self, row: Row) -> str | None:
        name = row.arm.baseline or self.sweep.facts["baseline"]
        return None if name == row.arm.name else name

    def baselines(self) -> str:
        """What the arm that rows are compared with is called, for a heading, and which axes' values it shares with them."""
        names = {name for row in self.rows if (name := self.baseline_name(row))}
        shared = [] if self.alone else dict.fromkeys(axis for row in self.rows if (base := self.baseline(row)) for axis in base.values)
        same = f" at the same {listed(map(self.short, shared))}" if shared else ""
        return (names.pop() if len(names) == 1 else "each arm's baseline") + same

    def baseline(self, row: Row) -> Row | None:
        """The baseline arm's row at the same values of the row axes that change it; of a single arm the row of the axes' first values.

        None for a baseline itself.
        """
        if self.alone:
            return self.rows[0] if row is not self.rows[0] else None
        name = self._baseline(row)
        return next((r for r in self.rows if r.arm.name == name and r.values.items() <= row.values.items()), None)

    def against_baseline(self, row: Row, column: Any) -> Difference | None:
        base = self.baseline(row)
        return self.gap(row, base, column) if base else None

    def gap(self, one: Row, other: Row, column: Any, than: Any = None, of: Reading | None = None) -> Difference | None:
        """What a row is better by than another, or than at the column ``than``, by another evaluator and metric than the sweep's if
        ``of`` says so; None where one of them has no figure."""
        key = (one, other, column, than, of)
        if key not in self.gaps:
            self.gaps[key] = self._gap(one, other, (column, column if than is None else than), of or self.metric)
        return self.gaps[key]

    def _gap(self, one: Row, other: Row, columns: tuple[Any, Any], measured: Reading) -> Difference | None:
        scores = [self.scores(row, at, *measured) for row, at in zip((one, other), columns, strict=True)]
        cells = [cell for row, at in zip((one, other), columns, strict=True) for cell in row.finished(at)]
        gap, common = difference(*scores, overlap_of(cells)), scores[0].keys() & scores[1].keys()
        files = [self._predictions(row, at, common, measured) for row, at in zip((one, other), columns, strict=True)]
        return gap if files[0] == files[1] else _over_images(gap, cells, files, measured)  # equal runs stand in several rows

    def above(self, row: Row, column: Any, level: float) -> Difference | None:
        """By what a row's figure is above a number; None where it has none."""
        scores, cells = self.scores(row, column), row.finished(column)
        gap = difference(scores, dict.fromkeys(scores, level), overlap_of(cells))
        return _over_images(gap, cells, [self._predictions(row, column, {*scores}, self.metric), None], self.metric)

    def _predictions(self, row: Row, column: Any, seeds: set[Any], measured: Reading) -> list[Path]:
        """The files of the finished ones of these seeds; of all where there is none of these."""
        evaluator, metric = measured
        done = [cell for cell in row.columns[column] if cell.result(evaluator, metric) is not None]
        return [cell.last.path / f"predictions-{evaluator}.npz" for cell in done if not seeds or cell.axes.get(SEED) in seeds]


def _over_images(gap: Difference | None, cells: list[Cell], files: list[list[Path] | None], measured: Reading) -> Difference | None:
    """With the error over the test images, where predictions tell it; which they are an interval over folds covers."""
    if gap is None or (gap.overlap and of_folds(measured[0], cells)):
        return gap
    found = of_images(*files, measured[1])
    return gap if found is None else gap.over_images(found)


def lay_out(sweep: Sweep) -> Grid:
    """Lay out a sweep: the named axis as columns, seeds gathered, every other axis with several values as further rows.

    Over the axes of the sweep's `select` held-out images choose one point for each row and column.
    """
    axis, axes, select = sweep.facts["columns"], sweep.facts["axes"], sweep.facts["select"]
    row_axes = [name for name, values in axes.items() if name not in (SEED, axis, *select) and len(values) > 1]
    columns = list(axes.get(axis) or dict.fromkeys(c.axes.get(axis) for c in sweep.cells)) if axis else [None]
    rows, laid_out = [], Grid(sweep, columns, row_axes, [])
    for arm in sweep.arms:
        of_arm = [cell for cell in sweep.cells if cell.arm == arm.name]
        for idle in [a for a in row_axes if a not in laid_out.of_equal_cost and changes_nothing(of_arm, a)]:
            of_arm = [replace(cell, axes=without(cell.axes, idle)) for cell in of_arm if cell.axes[idle] == of_arm[0].axes[idle]]
        of_row = [a for a in row_axes if of_arm and a in of_arm[0].axes]
        points = list(dict.fromkeys(tuple(cell.axes.get(a) for a in of_row) for cell in of_arm)) or [()]
        for point in points:
            here = [cell for cell in of_arm if tuple(cell.axes.get(a) for a in of_row) == point]
            by_column = {c: [cell for cell in here if axis is None or cell.axes.get(axis) == c] for c in columns}
            rows.append(Row(arm, dict(zip(of_row, point, strict=False)), by_column))
    laid_out.rows += rows
    if select:
        evaluator, metric = laid_out.metric
        for row in rows:
            row.choose(select, metric, evaluator, OF_TEST.get(evaluator) or "val")
    return laid_out
