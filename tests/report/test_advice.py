"""What is said of arms that few seeds cannot tell apart: one statement, and what to type for more seeds."""

from __future__ import annotations

import pytest

from vitssl.report.advice import advice, recommendation
from vitssl.report.best import best, level
from vitssl.report.collect import collect
from vitssl.report.findings import headlines
from vitssl.report.grid import lay_out
from vitssl.report.stats import difference

SEEDS = {"seed": [0, 1, 2]}
MORE = "To the sweep's command add 'axes.seed=[0,1,2,3,4]' for more seeds: finished runs are kept."
OPEN = {"scratch": lambda at: 74.0 + 3 * at["seed"], "ssat": lambda at: 82.0 - at["seed"]}  # +8, +4 and 0 points


@pytest.fixture
def grid(sweep):
    return lambda top1, axes=SEEDS, **kwargs: lay_out(collect(sweep(top1, axes, columns=None, **kwargs)))


def test_few_seeds_that_cannot_tell_make_one_statement_with_what_to_type(grid):
    """Mean +4, standard error 4/sqrt(3), t(2) = 4.303: from -5.94 to +13.94."""
    made = grid(OPEN)
    found = (
        "3 seeds cannot tell ssat and scratch apart in top-1; the best mean is that of ssat: 81.00 ± 1.00 %, "
        "+4.00 points against scratch (95 % interval \N{MINUS SIGN}5.94 to +13.94)."
    )
    take = (
        "For now take scratch where cost matters (its training takes 0.75x the multiply-adds of ssat) "
        "and ssat where top-1 does (its mean is better by 4.00 points, which may be chance)."
    )
    both = MORE.replace(" for more seeds", " for more seeds and equalize=macs equal_to=ssat for arms of equal cost")
    assert headlines(made)[:2] == [found, f"{take} {both}"]
    assert recommendation(made, None) == take


def test_an_arm_that_is_clearly_worse_is_not_among_those_that_are_level(grid):
    said = best(grid(OPEN | {"sslft": lambda at: 40.0 + at["seed"]}), None)
    assert said.startswith("3 seeds cannot tell ssat and scratch apart in top-1;")


def test_of_seeds_that_tell_arms_apart_no_more_are_asked_for(grid):
    made = grid({"scratch": lambda at: 60.0 + at["seed"] % 2, "ssat": lambda at: 82.0 - at["seed"]})
    assert best(made, None).startswith("The best arm by top-1 is ssat: 81.00 ± 1.00 % (3 seeds), +20.67 points against scratch (95 %")
    assert "axes.seed" not in " ".join(advice(made))


def test_two_seeds_name_the_best_mean_without_an_interval(grid):
    made = grid(OPEN, {"seed": [0, 1]})
    said = "2 seeds are too few to tell ssat and scratch apart in top-1; the best mean is that of ssat: 81.50 ± 0.71 %, "
    said += "+6.00 points against scratch."
    assert headlines(made)[:2] == [said, MORE]


def test_single_seeds_ask_for_more_and_keep_those_that_are_there(grid):
    assert advice(grid(OPEN, {"seed": [2]})) == [MORE.replace("0,1,2,3,4", "2,0,1,3,4")]


def test_no_seeds_are_asked_for_while_some_are_to_come_or_where_they_are_enough(grid):
    assert advice(grid(OPEN, make={("ssat", 2): {"status": "waiting"}})) == [""]
    enough = grid({"scratch": lambda at: 80.0 + at["seed"], "ssat": lambda at: 84.1 - at["seed"]}, {"seed": [0, 1, 2, 3, 4]}, name="enough")
    assert advice(enough)[0].startswith(
        "For now take scratch where cost matters (its training takes 0.75x the multiply-adds of ssat) and ssat where top-1 does "
        "(its mean is better by 0.10 points, which may be chance). To the sweep's command add equalize"
    )


def test_runs_that_gave_the_same_are_said_to_and_what_may_not_have_worked(grid):
    same = {"scratch": lambda at: 14.0 + at["seed"], "ssat": lambda at: 14.0 + at["seed"]}
    said = "scratch and ssat gave the same top-1 in each of the 2 seeds: 14.50 ± 0.71 %"
    assert best(grid(same, {"seed": [0, 1]}), None) == f"{said}; MAE may have had no effect, as after few steps."
    alike = {"scratch": same["scratch"], "scratch_again": same["scratch"]}
    assert best(grid(alike, {"seed": [0, 1]}, name="alike"), None) == f"{said.replace('ssat', 'scratch_again')}."


def test_an_arm_that_another_clearly_beats_is_not_level_with_the_best(sweep):
    """The quickstart's case: the best mean spreads widely, so that its seeds do not tell scratch from it, and the second's do."""
    spread = {0: 70.0, 1: 85.0, 2: 69.0, 3: 84.0, 4: 72.0}
    top1 = {"scratch": 70.0, "sslft": lambda at: spread[at["seed"]], "ssat": lambda at: 74.5 + 0.1 * at["seed"]}
    grid = lay_out(collect(sweep(top1, {"seed": list(spread)}, columns=None)))
    first, *others = grid.ranking(None)
    gap = difference(grid.scores(first, None), grid.scores(others[-1], None))
    assert first.arm.name == "sslft" and others[-1].arm.name == "scratch" and gap is not None and gap.open
    assert [row.arm.name for row in level(grid, None)] == ["sslft", "ssat"]
    assert best(grid, None).startswith("5 seeds cannot tell sslft and ssat apart in top-1; the best mean is that of sslft: 76.00 ± 7.84 %")


def test_arms_of_unequal_seeds_are_ranked_by_those_that_all_have(sweep):
    """SSAT lacks the two seeds that were easy, and is ahead on each of the others."""
    top1 = {"scratch": lambda at: (60.0, 61.0, 62.0, 90.0, 91.0)[at["seed"]], "ssat": lambda at: 64.0 + at["seed"]}
    make = {("ssat", seed): {"status": "failed"} for seed in (3, 4)}
    made = lay_out(collect(sweep(top1, {"seed": [0, 1, 2, 3, 4]}, columns=None, make=make)))
    assert [row.arm.name for row in made.ranking(None)] == ["ssat", "scratch"]
    assert best(made, None) == (
        "The best arm by top-1 is ssat: 65.00 ± 1.00 % (3 seeds that all arms have), +4.00 points against scratch (in each of 3 seeds)."
    )


def test_arms_without_two_seeds_in_common_have_no_best(sweep):
    make = {("ssat", 1): {"status": "failed"}, ("ssat", 2): {"status": "failed"}, ("scratch", 0): {"status": "failed"}}
    made = lay_out(collect(sweep({"scratch": 60.0, "ssat": 70.0, "sslft": 65.0}, {"seed": [0, 1, 2, 3]}, columns=None, make=make)))
    assert made.ranking(None) == []
    assert best(made, None).startswith("No arm is named the best, since the arms have not two seeds in common; ssat has 70.00 %")
