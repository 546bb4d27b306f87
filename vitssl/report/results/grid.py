"""A sweep laid out in rows and columns, which are compared: what tables, plots and sentences are made from.

Terms (for row and column see `layout`, for cell, point and selection `rows`):
    setting: another row that differs from a given one in hyper-parameters alone (see `hyperparameters`).
    rivals: the row of the best mean together with its settings. To rank them would be to choose hyper-parameters on the test images.
    gap: the difference between two rows in a column, or between two columns of a row, with its confidence interval.

Example: of the rows "scratch, depth 6", "scratch, depth 12", "ssat, depth 6" and "ssat, depth 12" the baseline of "ssat, depth 6" is
"scratch, depth 6", and "ssat, depth 12" is one of its settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from vitssl.config.evals import VAL_COUNTERPARTS
from vitssl.config.metrics import Metric, measured_by, metric_parts
from vitssl.report.results.collect import Cell, Reading, Sweep
from vitssl.report.results.folds import of_folds, overlap_of
from vitssl.report.results.hyperparameters import fields_between, fields_between_arms, is_setting, sets_hyperparameters
from vitssl.report.results.image_errors import estimate_image_errors
from vitssl.report.results.layout import Layout
from vitssl.report.results.rows import Row, changes_nothing, without
from vitssl.report.results.stats import Difference, difference
from vitssl.run_folder import predictions_of
from vitssl.words import listed

Result = TypeVar("Result")
SEED = "seed"
MOST_FIELDS = 3  # the most fields that a sentence names


def keep_result(method: Callable[..., Result]) -> Callable[..., Result]:
    """Make a method or a function of a Grid return the same result, which callers must not change, for the same arguments.

    Sentences and tables ask for the same ranks and gaps again and again, and those of many rows take long. Once a Grid is laid out, neither
    it nor its runs change.
    """

    @wraps(method)
    def find_result(grid: Grid, *arguments: Any, **options: Any) -> Result:
        key = (method, arguments, tuple(options.items()))
        if key not in grid.results:
            grid.results[key] = method(grid, *arguments, **options)
        return grid.results[key]

    return find_result


@dataclass(eq=False)
class Grid(Layout):
    """The rows and columns of a sweep with their scores, and what can be said of the differences between them."""

    results: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False)  # of what has `keep_result`; a copy has none

    @property
    def metric(self) -> Reading:
        """The evaluator of the sweep's metric, and the metric's key."""
        return metric_parts(self.sweep.facts["metric"])

    @property
    def own_evaluator(self) -> str:
        """The run's own evaluator on the test images: that of the sweep's metric, or otherwise the one after the last epoch (``test``)."""
        return self.metric[0] if self.metric[0] in VAL_COUNTERPARTS else "test"

    @property
    def measured(self) -> Metric:
        """The sweep's metric; its name includes the evaluator, unless that is the one after the last epoch on the test split."""
        return measured_by(self.sweep.facts["metric"])

    @property
    def unit_suffix(self) -> str:
        """The unit of a difference, to be put behind its figure."""
        return " points" if self.measured.unit == "%" else ""

    @keep_result
    def scores(self, row: Row, column: Any, reading: Reading | None = None) -> dict[Any, float]:
        """Return the metric of the finished cells by seed; ``reading`` is the evaluator and the metric, if they are not the sweep's."""
        scores = {cell.axes.get(SEED): cell.result(*(reading or self.metric)) for cell in row.columns[column]}
        return {seed: value for seed, value in scores.items() if value is not None}

    def ranking_scores(self, row: Row, column: Any) -> dict[Any, float]:
        """Return the scores by which rows are ranked: those of the seeds that all rows of the column have.

        A seed may draw images and labels, too. Without common seeds there is no score, since no row's mean says more than another's.
        """
        own, common = self.scores(row, column), self.seeds_of_all(column)
        return {seed: value for seed, value in own.items() if seed in common}

    @keep_result
    def seeds_of_all(self, column: Any) -> set[Any]:
        """Return the seeds for which every row of a column has a score; rows without any score do not count."""
        seeds = [set(by_seed) for row in self.rows if (by_seed := self.scores(row, column))]
        return set.intersection(*seeds) if seeds else set()

    def published(self, row: Row, column: Any) -> float | None:
        """Return the paper's number for this cell; None if it has none for the values of all axes here.

        The numbers are keyed by the column axis first, then by every other axis that takes several values; an axis of a single value may be
        a key, too.
        """
        value, axes = row.arm.published, self.sweep.facts["axes"]
        single = {axis: values[0] for axis, values in axes.items() if axis != SEED and len(values) == 1}
        axis_values = {axis: column for axis in [self.sweep.facts["columns"]] if axis} | row.values | single
        unused = [(str(label), axis not in single) for axis, label in axis_values.items()]  # the column axis comes first
        while isinstance(value, dict):
            match = next((item for item in unused if item[0] in value), None)
            if match is None:
                return None
            value = value[match[0]]
            unused.remove(match)
        return None if any(needed for _, needed in unused) else value

    @cached_property
    def unselected_axes(self) -> list[str]:
        """The row axes that set hyper-parameters of an arm in this grid, and over which nothing selects."""
        of_rows = {axis for row in self.rows for axis in row.values}
        return [axis for axis in self.row_axes if axis in of_rows - {*self.equal_cost_axes} and sets_hyperparameters(self.sweep, axis)]

    @property
    def unselected_reason(self) -> str:
        """Why rows are not ranked if there are `unselected_axes`; otherwise empty."""
        return f"held-out images do not choose {' and '.join(self.unselected_axes)}" if self.unselected_axes else ""

    @cached_property
    def has_unselected_columns(self) -> bool:
        """Whether the column axis sets hyper-parameters. Arms are then compared in each column, but columns are not compared."""
        return self.axis is not None and self.axis not in self.equal_cost_axes and sets_hyperparameters(self.sweep, self.axis)

    def ranking(self, column: Any) -> list[Row]:
        """Return the rows from the best mean to the worst; empty if rows cannot be ranked fairly.

        That is so if fewer than two rows have a mean, if one has a single seed, or if the test images would choose hyper-parameters: those
        of an axis that nothing selects over (`unselected_axes`), or those of the leading arm (`rivals`).
        """
        return [] if self.unselected_axes or self.rivals(column) else self._ranked(column)

    @keep_result
    def _ranked(self, column: Any) -> list[Row]:
        """Return the rows from the best mean to the worst, even if the test images would choose hyper-parameters."""
        compared = [(row, by_seed) for row in self.rows if (by_seed := self.ranking_scores(row, column))]
        # an overflow has no rank, nor a difference from others, also at a seed that these lack
        scored = [(row, by_seed) for row, by_seed in compared if all(map(isfinite, self.scores(row, column).values()))]
        if len(scored) < 2 or any(len(by_seed) < 2 for _, by_seed in scored):
            return []
        return [row for row, _ in sorted(scored, key=lambda pair: mean(pair[1].values()), reverse=not self.measured.lower_is_better)]

    @keep_result
    def rivals(self, column: Any) -> list[Row]:
        """Return the row of the best mean and those that differ from it in hyper-parameters alone; empty if no row does."""
        ranked = self._ranked(column)
        others = self.settings_of(ranked[0], column) if ranked else []
        return [row for row in self.rows if row is ranked[0] or row in others] if others else []

    @keep_result
    def settings_of(self, row: Row, column: Any) -> list[Row]:
        """Return the ranked rows that differ from ``row`` in hyper-parameters alone."""
        return [other for other in self._ranked(column) if is_setting(self.differing_fields(row, other, column))]

    def differing_fields(self, row: Row, other: Row, column: Any) -> set[str]:
        """Return the fields in which two rows of a column differ, not counting the axes that held-out images select over.

        Empty if they have different values of an axis of equal cost: the epochs that follow from these are no choice.
        """
        if any(row.values.get(axis) != other.values.get(axis) for axis in self.equal_cost_axes):
            return set()
        between = fields_between if row.arm is other.arm else fields_between_arms
        return between(row.candidates(column)[0], other.candidates(column)[0])

    def unranked_reason(self, column: Any) -> str:
        """Return why no row of a column is the best, if the test images would choose hyper-parameters; otherwise empty."""
        if self.unselected_axes:
            return self.unselected_reason
        if not (rivals := self.rivals(column)):
            return ""
        fields = set().union(*(self.differing_fields(rivals[0], row, column) for row in rivals[1:]))
        names = listed(sorted(fields)) if len(fields) <= MOST_FIELDS else f"{len(fields)} fields"
        return f"{listed(map(self.label, rivals))} differ only in hyper-parameters ({names}), which held-out images do not choose"

    def baseline_name(self, row: Row) -> str | None:
        """Return the name of the arm (of a single arm: the row) that a row is compared with; None for a baseline."""
        if self.has_single_arm:
            return self.label(base) if (base := self.baseline(row)) else None
        arm = next((arm for arm in self.sweep.arms if arm.name == self._baseline(row)), None)
        return self.arm_name(arm) if arm else None

    def _baseline(self, row: Row) -> str | None:
        """Return the name in the sweep file of the arm that a row is compared with; None if that is its own arm."""
        name = row.arm.baseline or self.sweep.facts["baseline"]
        return None if name == row.arm.name else name

    def baselines(self) -> str:
        """Return, for a heading, the name of what rows are compared with, and the axes whose values they share with it."""
        names = {name for row in self.rows if (name := self.baseline_name(row))}
        shared = (
            [] if self.has_single_arm else dict.fromkeys(axis for row in self.rows if (base := self.baseline(row)) for axis in base.values)
        )
        same = f" at the same {listed(map(self.short, shared))}" if shared else ""
        return (names.pop() if len(names) == 1 else "each arm's baseline") + same

    def baseline(self, row: Row) -> Row | None:
        """Return the baseline arm's row at the same values of the row axes that change it; None for a baseline itself.

        The baseline of a single arm is its row at the first values of the axes.
        """
        if self.has_single_arm:
            return self.rows[0] if row is not self.rows[0] else None
        name = self._baseline(row)
        return next((r for r in self.rows if r.arm.name == name and r.values.items() <= row.values.items()), None)

    def against_baseline(self, row: Row, column: Any) -> Difference | None:
        """Return the difference between a row and its baseline; None without a baseline, or if one has no score."""
        base = self.baseline(row)
        return self.gap(row, base, column) if base else None

    @keep_result
    def gap(self, one: Row, other: Row, column: Any, other_column: Any = None, reading: Reading | None = None) -> Difference | None:
        """Return the difference ``one`` minus ``other``; None if one of them has no score.

        Args:
            one, other: two rows, or one row twice, to compare two of its columns.
            column: the column of both.
            other_column: the column of ``other``, if it is not the same.
            reading: the evaluator and metric, if they are not the sweep's.
        """
        reading = reading or self.metric
        places = ((one, column), (other, column if other_column is None else other_column))
        scores, other_scores = (self.scores(*place, reading) for place in places)
        cells = [cell for row, its_column in places for cell in row.finished(its_column)]
        gap, common = difference(scores, other_scores, overlap_of(cells)), scores.keys() & other_scores.keys()
        files, other_files = (self._predictions(*place, common, reading) for place in places)
        if files == other_files:  # two rows may be the same runs
            return gap
        return _with_image_errors(gap, cells, files, other_files, reading)

    def above(self, row: Row, column: Any, level: float) -> Difference | None:
        """Return the difference between a row's metric and the number ``level``; None if the row has no score."""
        scores, cells = self.scores(row, column), row.finished(column)
        gap = difference(scores, dict.fromkeys(scores, level), overlap_of(cells))
        return _with_image_errors(gap, cells, self._predictions(row, column, {*scores}, self.metric), None, self.metric)

    def _predictions(self, row: Row, column: Any, seeds: set[Any], reading: Reading) -> list[Path]:
        """Return the prediction files of the cells of ``seeds`` that have the metric, in the order of their seeds."""
        evaluator, metric = reading
        done = [cell for cell in row.columns[column] if cell.result(evaluator, metric) is not None and cell.axes.get(SEED) in seeds]
        return [predictions_of(cell.last.path, evaluator) for cell in sorted(done, key=lambda cell: str(cell.axes.get(SEED)))]


def _with_image_errors(
    gap: Difference | None, cells: list[Cell], files: list[Path], other_files: list[Path] | None, reading: Reading
) -> Difference | None:
    """Return ``gap`` with the error over the test images, if predictions tell it; an interval over folds covers it already."""
    if gap is None or (gap.overlap and of_folds(reading[0], cells)):
        return gap
    image_errors = estimate_image_errors(files, other_files, reading[1])
    return gap if image_errors is None else gap.with_image_errors(image_errors)


def lay_out(sweep: Sweep) -> Grid:
    """Lay out a sweep: a column for each value of its column axis, rows for its arms and all other axes with several values.

    Seeds are gathered in the cells. If the sweep selects over axes, held-out images choose one of their points for each row and column.
    """
    axis, axes, select = sweep.facts["columns"], sweep.facts["axes"], sweep.facts["select"]
    row_axes = [name for name, values in axes.items() if name not in (SEED, axis, *select) and len(values) > 1]
    columns = list(axes.get(axis) or dict.fromkeys(c.axes.get(axis) for c in sweep.cells)) if axis else [None]
    rows, laid_out = [], Grid(sweep, columns, row_axes, [])
    for arm in sweep.arms:
        arm_cells = [cell for cell in sweep.cells if cell.arm == arm.name]
        # an axis that does not change the arm is dropped, with the cells of all but one of its values
        for idle in [a for a in row_axes if a not in laid_out.equal_cost_axes and changes_nothing(arm_cells, a)]:
            arm_cells = [replace(cell, axes=without(cell.axes, idle)) for cell in arm_cells if cell.axes[idle] == arm_cells[0].axes[idle]]
        axes_of_arm = [a for a in row_axes if arm_cells and a in arm_cells[0].axes]
        combinations = list(dict.fromkeys(tuple(cell.axes.get(a) for a in axes_of_arm) for cell in arm_cells)) or [()]
        for combination in combinations:
            row_cells = [cell for cell in arm_cells if tuple(cell.axes.get(a) for a in axes_of_arm) == combination]
            by_column = {c: [cell for cell in row_cells if axis is None or cell.axes.get(axis) == c] for c in columns}
            rows.append(Row(arm, dict(zip(axes_of_arm, combination, strict=False)), by_column))
    laid_out.rows += rows
    if select:
        evaluator, metric = laid_out.metric
        for row in rows:
            row.choose(select, laid_out.metric, (VAL_COUNTERPARTS.get(evaluator) or "val", metric))
    return laid_out
