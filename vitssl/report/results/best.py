"""Which arm is the best, as far as the seeds can tell, and how sure that is when all comparisons are looked at together."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import Any

from vitssl.config.evals import OF_TEST, metric_of
from vitssl.report.results.collect import Cell
from vitssl.report.results.grid import Grid
from vitssl.report.results.rows import Row
from vitssl.report.results.stats import CONFIDENCE, LEAST, holm, plus_minus
from vitssl.words import counted, few, listed

MOST_COLUMNS, MOST_ROWS = 3, 4  # of which a sentence gives all differences between columns
SHOWN_P = 0.001  # that is shown
Corrected = dict[frozenset[Row], float]  # p-values after Holm's correction, of two rows


def chosen_metric(grid: Grid) -> str:
    """What the epochs that held-out images choose are told by: the sweep's metric, or top-1 where that is another evaluator's, or where
    runs of an earlier version have no more."""
    evaluator, usual = grid.metric
    return usual if evaluator in OF_TEST and all(cell.result("selected", usual) is not None for cell in _choosing(grid)) else "top1"


def chosen_by(grid: Grid) -> str:
    """What these epochs were chosen by, behind a word; empty for top-1."""
    names = [metric_of(key).name for key in sorted({cell.last.run["data"]["val_metric"] for cell in _choosing(grid)})]
    return "" if names in ([], ["top-1"]) else f" by {listed(names)}"


def when(grid: Grid) -> str:
    """Which weights the sweep's metric is of."""
    evaluator, _ = grid.metric
    configured = [cell.last.evals[evaluator]["config"].get("weights") for cell in grid.done if evaluator in cell.last.evals]
    if evaluator in ("selected", "selected_val") or "best" in configured:
        return f"at the epoch that held-out images choose{chosen_by(grid)}"
    return "after the last epoch" + (", with averaged weights" if evaluator == "test_ema" else "")


def _choosing(grid: Grid) -> list[Cell]:
    """The finished cells whose epoch held-out images chose."""
    return [cell for cell in grid.done if cell.result("selected", "top1") is not None]


def leading(grid: Grid) -> list[str]:
    """What is best in every column; of more than two which arms lead in which."""
    said = [text for column in grid.columns if (text := best(grid, column))]
    return [_winners(grid) or said[0]] if len(said) > 2 else said


def best(grid: Grid, column: Any) -> str:
    """The arm of the best mean and what it stands on: the best one only where the seeds tell it from all others."""
    ranked = grid.ranking(column)
    if not ranked:
        return _unranked(grid, column)
    near, first, metric = near_best(grid, column), ranked[0], grid.measured.name
    scores = list(grid.compared(first, column).values())
    shown = f"{grid.label(first)}: {plus_minus(scores)}{' %' * bool(grid.measured.unit)}"
    seeds = counted(len(scores), "seed") + _of_all(grid, column)
    if len(near) > 1:
        how = "cannot tell" if len(scores) >= LEAST else "are too few to tell"
        said = f"{seeds} {how} {few([grid.label(row) for row in near])} apart in {metric}; the best mean is that of {shown}"
    else:
        said = f"{article(grid, column).capitalize()} best arm by {metric} is {shown} ({seeds})"
    return grid.placed(column, f"{said}{_versus(grid, first, near, column)}{_sure(grid, ranked, column) if len(near) == 1 else ''}.")


def article(grid: Grid, column: Any) -> str:
    """Of the best arm, where that differs from every other one: after the correction for all comparisons it may not."""
    first, *others = grid.ranking(column)
    clear = not undecided(grid, column) and all(settled(grid, column, first, row) for row in others)
    return "the" if clear else "perhaps the"


def near_best(grid: Grid, column: Any) -> list[Row]:
    """The best row and those not significantly worse; stops at the first that is significantly worse than one of them.

    A row after that one may differ significantly from none (`undecided`), but is not counted among the best: its mean is worse than that
    of a row which is significantly worse.
    """
    near: list[Row] = []
    for row in grid.ranking(column):
        if not all(_open(grid, better, row, column) for better in near):
            break
        near.append(row)
    return near


def undecided(grid: Grid, column: Any) -> list[Row]:
    """The rows after `near_best` that are not significantly worse than any row in it either."""
    near = near_best(grid, column)
    return [row for row in grid.ranking(column)[len(near) :] if all(_open(grid, better, row, column) for better in near)]


def _open(grid: Grid, one: Row, other: Row, column: Any) -> bool:
    """May the difference between two ranked rows be chance?"""
    gap = grid.gap(one, other, column)
    assert gap is not None  # both have scores
    return gap.open


def _of_all(grid: Grid, column: Any) -> str:
    """That arms are compared by fewer seeds than some of them have."""
    most = max(len(grid.scores(row, column)) for row in grid.rows)
    return " that all arms have" if most > len(grid.seeds_of_all(column)) else ""


def _versus(grid: Grid, first: Row, near: list[Row], column: Any) -> str:
    """The first row against its baseline; of rows that the seeds do not tell from it against one of these."""
    base = grid.baseline(first)
    if len(near) > 1 and not any(row is base for row in near):
        base = near[1]
    gap = grid.gap(first, base, column) if base else None
    return f", {gap} against {grid.label(base)}" if base and gap else ""


def _sure(grid: Grid, ranked: list[Row], column: Any) -> str:
    """The largest p-value of the best arm against the others, where there are several comparisons."""
    found = corrected(grid, column)
    known = [p for row in ranked[1:] if (p := found.get(frozenset((ranked[0], row)))) is not None]
    if len(found) < 2 or not known:
        return ""
    p = f"{max(known):.2g}" if max(known) >= SHOWN_P else f"below {SHOWN_P}"
    return f"; p {p} after Holm's correction for {len(found)} comparisons"


def _unranked(grid: Grid, column: Any) -> str:
    """Why no arm is named, where several have a result."""
    if grid.unselected or sum(bool(grid.scores(row, column)) for row in grid.rows) < 2:
        return ""
    if reason := grid.unchosen(column):
        return grid.placed(column, f"No best arm is named, since {reason}, and choosing on test images would bias the result.")
    return grid.placed(column, "No best arm is named, since the arms have fewer than two seeds in common.")


def _winners(grid: Grid) -> str:
    """The columns that each arm leads; empty where no arm is named in any."""
    leads: dict[str, list[str]] = {}
    open_in: list[str] = []
    for column in grid.columns:
        if ranked := grid.ranking(column):
            leads.setdefault(grid.label(ranked[0]), []).append(grid.name(column))
            if corrected(grid, column).get(frozenset(ranked[:2]), 1.0) > 1 - CONFIDENCE:
                open_in.append(grid.name(column))
    if not leads:
        return ""
    told = [f"{arm} in {listed(names)}" for arm, names in sorted(leads.items(), key=lambda lead: -len(lead[1]))]
    where = "" if len(open_in) == sum(map(len, leads.values())) else f" in {listed(open_in)}"
    doubt = f" The lead over the next arm may be chance{where}." if open_in else ""
    return grid.placed(None, f"Best mean {grid.measured.name}: {'; '.join(told)}.{doubt}")


def across(grid: Grid) -> list[str]:
    """Every arm at the other columns against the first; nothing for data sets, which are not compared, and where there are many."""
    if len(grid.columns) > MOST_COLUMNS or len(grid.rows) > MOST_ROWS or not grid.of_one_set:
        return []
    first, *others = grid.columns
    said = []
    for column in others:
        gaps = [f"{grid.label(row)} {gap}" for row in grid.rows if (gap := grid.gap(row, row, column, first))]
        said += [f"With {grid.name(column)} against {grid.name(first)}: {', '.join(gaps)}."] if gaps else []
    return said


# ------------------------------------------------------------------------------------------------- several comparisons


@lru_cache(64)
def corrected(grid: Grid, column: Any) -> Corrected:
    """The p-values of every two rows of a column that have an interval, as one family."""
    gaps = {frozenset(pair): grid.gap(*pair, column) for pair in combinations(grid.rows, 2)}
    known = {pair: gap.p for pair, gap in gaps.items() if gap and gap.p is not None}
    return dict(zip(known, holm(list(known.values())), strict=True))


def settled(grid: Grid, column: Any, one: Row, other: Row) -> bool:
    """Does a pair of rows differ after the correction too?"""
    return corrected(grid, column).get(frozenset((one, other)), 0.0) <= 1 - CONFIDENCE
