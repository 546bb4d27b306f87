"""Which arm is the best, as far as the seeds can tell, and how sure that is once all comparisons are taken together.

There is one rule for sentences, recommendations and bold figures: two arms of a column are told apart if the p-value of their difference
is at most 0.05 after Holm's correction for all comparisons of the column. `near_best` is the arm of the best mean with those that are not
told apart from it. For ranking and gap see `grid`.

Example: of A, B and C, ranked in this order, A and B are not told apart, and C is told apart from A. The sentence says that the seeds
cannot tell A and B apart, both are bold, and C is called worse.
"""

from __future__ import annotations

from itertools import combinations
from math import isfinite
from typing import Any

from vitssl.config.evals import VAL_COUNTERPARTS
from vitssl.config.metrics import metric_of
from vitssl.report.results.collect import Cell
from vitssl.report.results.grid import Grid, keep_result
from vitssl.report.results.rows import Row
from vitssl.report.results.stats import CONFIDENCE, MIN_SEEDS, holm, plus_minus
from vitssl.words import counted, few, listed

MOST_COLUMNS, MOST_ROWS = 3, 4  # up to which all differences between columns are given in sentences
SHOWN_P = 0.001  # the smallest p-value that is shown
Corrected = dict[frozenset[Row], float]  # p-values after Holm's correction, by pair of rows


def chosen_metric(grid: Grid) -> str:
    """Return the metric of the results at the epochs that held-out images choose: the sweep's metric, or else top-1.

    Top-1 is taken if the sweep's metric is another evaluator's, or if a run's record lacks it.
    """
    evaluator, usual = grid.metric
    return (
        usual if evaluator in VAL_COUNTERPARTS and all(cell.result("selected", usual) is not None for cell in _choosing(grid)) else "top1"
    )


def chosen_by(grid: Grid) -> str:
    """Return the metric by which held-out images chose the epochs, to be put behind a word (`` by macro F1``); empty for top-1."""
    names = [metric_of(key).name for key in sorted({cell.last.config.data.val_metric for cell in _choosing(grid)})]
    return "" if names in ([], ["top-1"]) else f" by {listed(names)}"


def weights_text(grid: Grid) -> str:
    """Return, in words, which weights the sweep's metric was measured with, such as ``after the last epoch``."""
    evaluator, _ = grid.metric
    configured = [cell.last.evals[evaluator]["config"].get("weights") for cell in grid.done if evaluator in cell.last.evals]
    if evaluator in ("selected", "selected_val") or "best" in configured:
        return f"at the epoch that held-out images choose{chosen_by(grid)}"
    return "after the last epoch" + (", with averaged weights" if evaluator == "test_ema" else "")


def own_weights_text(grid: Grid) -> str:
    """Return, in words, which weights the run's own classifier had when it was evaluated by metrics other than the sweep's."""
    return weights_text(grid) if grid.own_evaluator == grid.metric[0] else "after the last epoch"


def _choosing(grid: Grid) -> list[Cell]:
    """Return the finished cells whose best epoch held-out images chose."""
    return [cell for cell in grid.done if cell.result("selected", "top1") is not None]


def leading(grid: Grid) -> list[str]:
    """Return what is best in every column; for more than two columns, one sentence on which arms lead in which."""
    sentences = [text for column in grid.columns if (text := best(grid, column))]
    return [_winners(grid) or sentences[0]] if len(sentences) > 2 else sentences


def best(grid: Grid, column: Any) -> str:
    """Return a sentence on the arm of the best mean, which is called the best arm only if it is told apart from all others."""
    ranked = grid.ranking(column)
    if not ranked:
        return _unranked(grid, column)
    near, first, metric = near_best(grid, column), ranked[0], grid.measured.name
    scores = list(grid.ranking_scores(first, column).values())
    winner = f"{grid.label(first)}: {plus_minus(scores)}{' %' * bool(grid.measured.unit)}"
    seeds = counted(len(scores), "seed") + _of_all(grid, column)
    if len(near) > 1:
        verdict = "cannot tell" if len(scores) >= MIN_SEEDS else "are too few to tell"
        sentence = f"{seeds} {verdict} {few([grid.label(row) for row in near])} apart in {metric}; the best mean is that of {winner}"
    else:
        sentence = f"The best arm by {metric} is {winner} ({seeds})"
    difference, sure = _difference_text(grid, first, near, column), _sure(grid, ranked, column) if len(near) == 1 else ""
    return grid.prefixed_text(column, f"{sentence}{difference}{sure}.")


@keep_result
def near_best(grid: Grid, column: Any) -> list[Row]:
    """Return the row of the best mean and, in the order of their means, those that are not told apart from it."""
    ranked = grid.ranking(column)
    return [row for row in ranked if row is ranked[0] or not told_apart(grid, column, ranked[0], row)]


def told_apart(grid: Grid, column: Any, one: Row, other: Row) -> bool:
    """Whether two ranked rows differ by more than chance, after the correction for all comparisons of the column."""
    if (p := corrected(grid, column).get(frozenset((one, other)))) is not None:
        return p <= 1 - CONFIDENCE
    gap = grid.gap(one, other, column)  # without an interval: too few seeds, or the same difference in each
    return gap is not None and not gap.open


def _of_all(grid: Grid, column: Any) -> str:
    """Return the words for seeds `` that all arms have``, if some of the arms have more; otherwise empty."""
    most_seeds = max(len(grid.scores(row, column)) for row in grid.rows)
    return " that all arms have" if most_seeds > len(grid.seeds_of_all(column)) else ""


def _difference_text(grid: Grid, first: Row, near: list[Row], column: Any) -> str:
    """Return the difference between the first row and its baseline, to be put behind the sentence.

    If the seeds do not tell other rows from the first, and the baseline is not one of these, it is the difference from the second row.
    """
    base = grid.baseline(first)
    if len(near) > 1 and not any(row is base for row in near):
        base = near[1]
    gap = grid.gap(first, base, column) if base else None
    if not base or not gap:
        return ""
    of_more = f" ({counted(gap.seeds, 'seed')})" if gap.seeds > len(grid.seeds_of_all(column)) else ""
    return f", {gap} against {grid.label(base)}{of_more}"


def _sure(grid: Grid, ranked: list[Row], column: Any) -> str:
    """Return the largest p-value of the best arm against the others after the correction; empty unless there are several comparisons."""
    p_values = corrected(grid, column)
    of_best = [p for row in ranked[1:] if (p := p_values.get(frozenset((ranked[0], row)))) is not None]
    if len(p_values) < 2 or not of_best:
        return ""
    shown = f"at most {p_text(max(of_best))}" if max(of_best) >= SHOWN_P else f"below {SHOWN_P}"
    others = "every other arm" if len(of_best) == len(ranked) - 1 else "other arms"  # there is no p-value without an interval
    return f"; against {others} p {shown} after Holm's correction for {len(p_values)} comparisons"


def p_text(p: float) -> str:
    """Format a p-value with two significant digits; very small ones as < SHOWN_P."""
    return f"{p:.2g}" if p >= SHOWN_P else f"< {SHOWN_P}"


def _unranked(grid: Grid, column: Any) -> str:
    """Return a sentence on why no best arm is named; empty unless several arms have a result."""
    if grid.unselected_axes or sum(bool(grid.scores(row, column)) for row in grid.rows) < 2:
        return ""
    if reason := grid.unranked_reason(column):
        return grid.prefixed_text(column, f"No best arm is named, since {reason}, and choosing on test images would bias the result.")
    scored = [row for row in grid.rows if grid.scores(row, column)]
    not_finite = [row for row in scored if not all(map(isfinite, grid.scores(row, column).values()))]
    reason = "the arms have fewer than two seeds in common"
    if len(scored) - len(not_finite) < 2:
        reason = f"the {grid.measured.name} of {few([grid.label(row) for row in not_finite])} is not finite at some seed"
    return grid.prefixed_text(column, f"No best arm is named, since {reason}.")


def _winners(grid: Grid) -> str:
    """Return a sentence on the columns that each arm leads; empty if no column has a ranking."""
    leads: dict[str, list[str]] = {}
    open_in: list[str] = []
    for column in grid.columns:
        if ranked := grid.ranking(column):
            first, second, *_ = ranked
            leads.setdefault(grid.label(first), []).append(grid.name(column))
            if not told_apart(grid, column, first, second):
                open_in.append(grid.name(column))
    if not leads:
        return ""
    winners = [f"{arm} in {listed(names)}" for arm, names in sorted(leads.items(), key=lambda lead: -len(lead[1]))]
    in_columns = "" if len(open_in) == sum(map(len, leads.values())) else f" in {listed(open_in)}"
    doubt = f" The lead over the next arm may be chance{in_columns}." if open_in else ""
    return grid.prefixed_text(None, f"Best mean {grid.measured.name}: {'; '.join(winners)}.{doubt}")


def across(grid: Grid) -> list[str]:
    """Return a sentence for every other column, with the differences of all arms from themselves at the first column.

    There are none for columns of several data sets, which are not compared, nor for many columns or many rows.
    """
    if len(grid.columns) > MOST_COLUMNS or len(grid.rows) > MOST_ROWS or not grid.of_one_set:
        return []
    first, *others = grid.columns
    sentences = []
    for column in others:
        gaps = [f"{grid.label(row)} {gap}" for row in grid.rows if (gap := grid.gap(row, row, column, first))]
        sentences += [f"With {grid.name(column)} against {grid.name(first)}: {', '.join(gaps)}."] if gaps else []
    return sentences


# ------------------------------------------------------------------------------------------------- several comparisons


@keep_result
def corrected(grid: Grid, column: Any) -> Corrected:
    """Return the p-values of all pairs of rows of a column whose difference has an interval, corrected as one family."""
    gaps = {frozenset(pair): grid.gap(*pair, column) for pair in combinations(grid.rows, 2)}
    by_pair = {pair: gap.p for pair, gap in gaps.items() if gap and gap.p is not None}
    return dict(zip(by_pair, holm(list(by_pair.values())), strict=True))
