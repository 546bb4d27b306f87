"""What an arm's models cost, how far it is from its baseline, and other readings of its accuracy, as tables."""

from __future__ import annotations

from statistics import mean
from typing import Any

from vitssl.report import costs, energy
from vitssl.report.collect import Cell, Sweep
from vitssl.report.grid import Grid
from vitssl.report.rows import Row, cost_of
from vitssl.report.stats import Difference, std
from vitssl.report.table import DASH, NOTE, Entry, Table, figure, signed
from vitssl.report.units import fit
from vitssl.words import listed

FEW_COLUMNS, FEWEST_PAIRED, MOST_PAIRED = 2, 3, 6  # of the sweep, and arms, of which every pair is shown
LOWER_IS_BETTER = "↓: lower is better."


# ---------------------------------------------------------------------------------------------------------------- costs


def cost(grid: Grid) -> Table:
    """What one of every arm's models cost, separately for every column."""
    rows = [[*which(grid, row, column), *_training(grid, row, column, done), *_spending(done)] for row, column, done in grid.models()]
    spent = ["PMACs of training", f"against {grid.baselines()}", grid.sweep.hours_name, grid.sweep.busy_name]
    spent += ["kWh", "kg CO2e tracked", "kg CO2e estimate", currency(grid.sweep)]
    return fit(Table("Cost", ["arm", grid.axis_name, *spent], rows, _cost_caption(grid), left=frozenset({0, 1})).trimmed())


def which(grid: Grid, row: Row, column: Any) -> list[Entry]:
    """The text columns of a table of models: the arm, and its column where there are several."""
    return [Entry(grid.label(row)), Entry(str(column) if grid.axis else DASH)]


def currency(sweep: Sweep) -> str:
    return sweep.currency or "money"


def plus_minus(values: list[float]) -> str:
    spread = std(values)
    return f"{mean(values):.2f}" + (f" ± {spread:.2f}" if spread is not None else "")


def _training(grid: Grid, row: Row, column: Any, done: list[Cell]) -> list[Entry]:
    """Multiply-adds of training, and relative to the baseline's."""
    count, relative = costs.macs(done), costs.macs_ratio(grid, row, column)
    return [Entry() if count is None else figure(count / 1e15), Entry(str(relative)) if relative else Entry()]


def _spending(done: list[Cell]) -> list[Entry]:
    """Hours in all and busy, kWh, CO2e tracked and estimated, money, with their spread over seeds; what was not recorded, or a CPU or a
    site without a price does not have, stays a dash."""
    busy = "gpu_busy_hours" if any(cost_of(cell)["gpu_hours"] for cell in done) else "cpu_hours"
    names = ("device_hours", busy, "energy_kwh", "co2e_kg", "estimate_kg", "money")
    return [_mean([cost_of(cell)[name] for cell in done]) for name in names]


def _mean(values: list[float]) -> Entry:
    return figure(mean(values), spread=std(values)) if all(values) else Entry()


def not_compared(grid: Grid, why: bool = False) -> str:
    """A sentence that measured hours and energy do not compare the arms, and why; empty where nothing speaks against it."""
    reason = costs.doubted(grid)
    return f" Measured hours and energy are not comparable between arms{f': {reason}' if why else ''}." if reason else ""


def _cost_caption(grid: Grid) -> str:
    sweep = grid.sweep
    said = [
        "Cost of one model: sum over its stages, including all attempts; mean ± standard deviation over seeds. Training counts the "
        f"multiply-adds of all steps, forward and backward.{not_compared(grid, why=True)}"
    ]
    if select := sweep.facts["select"]:
        said.append(f"This is the chosen setting; the search over {listed(select)} took all runs below.")
    if sweep.on_gpu:
        sites = {(run.site.gpu_power_w, run.site.estimate_kg_per_kwh) for run in sweep.runs.values()}
        factors = " or ".join(f"board power ({power_w:g} W) x {intensity:g}" for power_w, intensity in sorted(sites))
        said.append(f"Estimate: GPU-hours x {factors} kg/kWh, as the SSAT paper's Table 3.")
    return " ".join(filter(None, [*said, energy.tracked(sweep), energy.sites(sweep)]))


# -------------------------------------------------------------------------------------------------------- further tables


def differences(grid: Grid) -> Table | None:
    """Every arm minus the baseline, with a 95 % confidence interval."""
    rows = []
    for row in grid.rows:
        intervals = [grid.against_baseline(row, column) for column in grid.columns]
        if any(intervals):
            against = f" against {grid.baseline_name(row)}" if row.arm.baseline else ""
            how = "; ".join(dict.fromkeys(d.how for d in intervals if d))
            rows.append([Entry(grid.label(row) + against), *map(versus, intervals), Entry(how, NOTE)])
    if not rows:
        return None
    what = f"Percentage points of {grid.measured.name}" if grid.measured.unit == "%" else grid.measured.name
    direction = f" {LOWER_IS_BETTER}" if grid.measured.lower_is_better else ""
    return Table(
        f"Difference from {grid.baselines()}", ["arm", *(grid.name(c) or grid.measured.title for c in grid.columns), "interval"], rows,
        caption=f"{what}{_in_brackets(rows)}.{direction}",
        left=frozenset({0, len(grid.columns) + 1}),
    )  # fmt: skip


def _in_brackets(rows: list[list[Entry]]) -> str:
    """What the brackets of differences hold, where there are any: of two seeds there is no interval."""
    return ", with the 95 % confidence interval in brackets" if any("[" in entry.text for row in rows for entry in row) else ""


def pairs(grid: Grid) -> list[Table]:
    """Every arm minus every other, a table for each of few columns, and for equal epochs and equal cost; none where the differences from
    the baseline are all, or very many."""
    return [table for part in grid.parts for table in _pairs(part)]


def _pairs(grid: Grid) -> list[Table]:
    made = []
    for column in grid.columns if len(grid.columns) <= FEW_COLUMNS else []:
        rows = [row for row in grid.rows if grid.scores(row, column)]
        if FEWEST_PAIRED <= len(rows) <= MOST_PAIRED:
            lines = [
                [Entry(grid.label(one)), *(versus(grid.gap(one, other, column)) if other is not one else Entry() for other in rows)]
                for one in rows
            ]
            title = ", ".join(filter(None, ["Arms against each other", grid.name(column), grid.part]))
            caption = "The row's arm minus the column's arm."
            if intervals := _in_brackets(lines):
                caption = (
                    f"{caption[:-1]}{intervals}. Bold: the interval excludes 0. p-values, uncorrected and after Holm's correction for all "
                )
                caption += "comparisons, are in differences.csv."
            told = {
                (i, j)
                for i, one in enumerate(rows)
                for j, other in enumerate(rows, start=1)
                if other is not one and (gap := grid.gap(one, other, column)) and not gap.open
            }
            made.append(Table(title, ["arm", *map(grid.label, rows)], lines, caption, best=told))
    return made


def columns(grid: Grid) -> Table | None:
    """Every arm at the other columns minus itself at the first; None where these are of several data sets, or many."""
    first, *others = grid.columns
    if not 0 < len(others) < MOST_PAIRED or not grid.of_one_set:
        return None
    rows = [[Entry(grid.label(row)), *(versus(grid.gap(row, row, column, first)) for column in others)] for row in grid.rows]
    caption = f"Each arm minus the same arm at {grid.name(first)}{_in_brackets(rows)}."
    return Table(f"Against {grid.name(first)}", ["arm", *map(grid.name, others)], rows, caption)


def versus(difference: Difference | None) -> Entry:
    """A difference and its interval as a cell, sorted by the difference."""
    return Entry(interval(difference), parts=(difference.mean,)) if difference else Entry()


def interval(difference: Difference) -> str:
    """The difference and its interval; where there is no spread it says that."""
    if difference.constant:
        return f"{signed(difference.mean)} in each seed" if difference.mean else "same in each seed"
    low, high = difference.low, difference.high
    return signed(difference.mean) + (f" [{signed(low)}, {signed(high)}]" if low is not None and high is not None else "")


def readings(grid: Grid) -> Table | None:
    """Other accuracies of the same runs: what choosing the epoch on the test set or on held-out images would give."""
    kinds = {"test_ema": "top-1 of averaged weights", "selected": "top-1 at the best validation epoch", "test_best": "best on the TEST set"}
    kinds = {k: name for k, name in kinds.items() if any(grid.scores(r, c, k, "top1") for r in grid.rows for c in grid.columns)}
    if all(grid.scores(r, c, "test_best", "top1") == grid.scores(r, c, "test", "top1") for r in grid.rows for c in grid.columns):
        kinds.pop("test_best", None)  # of a single evaluation
    if not kinds:
        return None
    rows = []
    for row in (r for r in grid.rows if r.done):
        scores = [list(grid.scores(row, column, kind, "top1").values()) for column in grid.columns for kind in kinds]
        rows.append([Entry(grid.label(row)), *(Entry(plus_minus(s) if s else DASH) for s in scores)])
    groups = [("", 1), *((grid.name(c) or "accuracy", len(kinds)) for c in grid.columns)]
    caption = (
        "“Best on the TEST set” chooses the epoch on the test images themselves, which flatters every arm; no other number here does so."
    )
    return Table("Other readings of the same runs", ["arm", *list(kinds.values()) * len(grid.columns)], rows, caption, groups)
