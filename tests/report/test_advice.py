"""What is said of arms that few seeds cannot tell apart, and what to type for seeds that can and for equal costs."""

from __future__ import annotations

import csv

import pytest

from vitssl.report.findings.advice import next_steps, recommendation
from vitssl.report.findings.sentences import headlines, sentences
from vitssl.report.pages import spreadsheet
from vitssl.report.results.best import across, best, corrected, near_best, told_apart
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import lay_out
from vitssl.report.results.stats import holm
from vitssl.report.tables.differences import columns, pairs

pytestmark = pytest.mark.usefixtures("without_plots")

EQUAL = "'axes.cost={given epochs: {}, equal MACs: {equalize: macs, equal_to: ssat}}' for arms of equal cost"
SEEDS = {"seed": [0, 1, 2]}
MORE = "To the sweep's command add 'axes.seed=[0,1,2,3,4]' for 5 seeds. Finished runs are kept."
OPEN = {"scratch": lambda at: 74.0 + 3 * at["seed"], "ssat": lambda at: 82.0 - at["seed"]}  # +8, +4 and 0 points


@pytest.fixture
def grid(sweep):
    return lambda top1, axes=SEEDS, **kwargs: lay_out(collect(sweep(top1, axes, columns=None, **kwargs)))


def test_few_seeds_that_cannot_tell_make_one_statement_with_what_to_type(grid):
    """Mean +4, standard error 4/sqrt(3), t(2) = 4.303: from -5.94 to +13.94."""
    made = grid(OPEN)
    found = (
        "3 seeds cannot tell ssat and scratch apart in top-1; the best mean is that of ssat: 81.00 ± 1.00 %, "
        "+4.00 [\N{MINUS SIGN}5.94, +13.94] against scratch."
    )
    take = (
        "For now take scratch if cost matters (its training takes 0.75x the multiply-adds of ssat) "
        "and ssat if top-1 does (its mean is better by 4.00 points, which may be chance)."
    )
    assert sentences(headlines(made))[:3] == [found, take, f"To the sweep's command add {EQUAL}. Finished runs are kept."]
    assert recommendation(made, None) == take


def test_an_arm_that_is_clearly_worse_is_not_among_those_that_are_level(grid):
    said = best(grid(OPEN | {"sslft": lambda at: 40.0 + at["seed"]}), None)
    assert said.startswith("3 seeds cannot tell ssat and scratch apart in top-1;")


def test_an_arm_that_spreads_widely_may_be_as_good_as_one_that_is_worse_but_surer(grid):
    """Of a mean of 72 beside 78.5 and 77, of which the second is told from the first."""
    top1 = {"scratch": lambda at: (60.0, 78.0, 78.0)[at["seed"]], "sslft": lambda at: 77.0 + 0.1 * at["seed"]}
    made = grid(top1 | {"ssat": lambda at: 78.5 + 0.1 * at["seed"]})
    assert [made.label(row) for row in near_best(made, None)] == ["ssat", "scratch"]
    assert best(made, None).startswith("3 seeds cannot tell ssat and scratch apart in top-1; the best mean is that of ssat: 78.60 ± 0.10 %")
    assert recommendation(made, None).endswith(" Worse: sslft.")


def test_an_arm_of_too_few_seeds_leaves_open_which_is_the_best(grid):
    top1 = {"scratch": lambda at: (60.0, 79.0, 0.0)[at["seed"]], "sslft": lambda at: 70.0 + 0.1 * at["seed"]}
    made = grid(top1 | {"ssat": lambda at: 80.0 + 0.1 * at["seed"]}, make={("scratch", 2): {"state": "failed"}})
    assert [made.label(row) for row in near_best(made, None)] == ["ssat", "scratch"]


def test_of_seeds_that_tell_arms_apart_no_more_are_asked_for(grid):
    made = grid({"scratch": lambda at: 60.0 + at["seed"] % 2, "ssat": lambda at: 82.0 - at["seed"]})
    assert best(made, None).startswith("The best arm by top-1 is ssat: 81.00 ± 1.00 % (3 seeds), +20.67 [")
    assert "axes.seed" not in next_steps(made)


def test_two_seeds_name_the_best_mean_without_an_interval(grid):
    made = grid(OPEN, {"seed": [0, 1]})
    said = "2 seeds are too few to tell ssat and scratch apart in top-1; the best mean is that of ssat: 81.50 ± 0.71 %, "
    said += "+6.00 against scratch."
    assert sentences(headlines(made))[:2] == [said, MORE]


def test_single_seeds_ask_for_more_and_keep_those_that_are_there(grid):
    assert next_steps(grid(OPEN, {"seed": [2]})) == MORE.replace("0,1,2,3,4", "2,0,1,3,4")


def test_nothing_is_asked_for_while_runs_are_to_come_nor_seeds_where_there_are_three(grid):
    assert next_steps(grid(OPEN, make={("ssat", 2): {"state": "not begun"}})) == ""
    assert next_steps(grid(OPEN, name="three")) == f"To the sweep's command add {EQUAL}. Finished runs are kept."


ALONE = {  # p of each pair alone: sslft against scratch 0.02, ssat against scratch 0.04, ssat against sslft 0.3
    "scratch": lambda at: 70.0 + 2 * at["seed"],
    "sslft": lambda at: 70.0 + 2 * at["seed"] + (4.0, 6.0, 9.0)[at["seed"]],
    "ssat": lambda at: 70.0 + 2 * at["seed"] + (6.0, 10.0, 6.0)[at["seed"]],
}


def test_beside_what_an_interval_says_alone_p_is_corrected_for_all_comparisons(grid):
    """Holm: the least of three p-values is multiplied by 3, the next one by 2, and none is below one before it."""
    made = grid(ALONE)
    first, second = sorted(made.gap(made.rows[i], made.rows[0], None).p for i in (1, 2))
    assert all(0.05 / 3 < p < 0.05 for p in (first, second))
    scratch, _, ssat = made.rows
    p = corrected(made, None)[frozenset((scratch, ssat))]
    assert p in (pytest.approx(3 * first), pytest.approx(max(3 * first, 2 * second)))
    assert not told_apart(made, None, scratch, ssat) and not made.gap(scratch, ssat, None).open
    assert near_best(made, None) == made.ranking(None) and "Worse" not in recommendation(made, None)
    table, p_values = pairs(made)
    assert table.best == {(0, 2), (0, 3), (1, 1), (2, 1)} and table.caption.endswith(" Bold: the interval excludes 0.")
    assert p_values.best == set() and p_values.caption.startswith("For 3 comparisons of arms. Bold: at most 0.05.")
    rows = list(csv.DictReader(spreadsheet.pairs(made).splitlines()))
    assert [row["comparisons"] for row in rows] == ["3"] * 3 and [row["may_be_chance"] for row in rows] == ["False", "False", "True"]
    assert sorted(float(row["p_holm"]) for row in rows) == pytest.approx(sorted(holm([float(row["p"]) for row in rows])))


def test_equal_epochs_and_equal_cost_are_two_families_of_comparisons(sweep):
    """As in the sentences, which are of one of them each."""
    equal = {"all": None, "axes": {"cost": {"equal epochs": None, "equal MACs": {"quantity": "macs", "reference": "ssat"}}}}
    folder = sweep(ALONE, {"cost": ["equal epochs", "equal MACs"], "seed": [0, 1, 2]}, columns=None, equal=equal)
    made = lay_out(collect(folder))
    rows = list(csv.DictReader(spreadsheet.pairs(made).splitlines()))
    assert [(row["cost"], row["than_cost"], row["comparisons"]) for row in rows] == [
        (cost, cost, "3") for cost in made.sweep.facts["axes"]["cost"] for _ in range(3)
    ]
    for part, of_part in zip(made.parts, (rows[:3], rows[3:]), strict=True):
        assert sorted(corrected(part, None).values()) == pytest.approx(sorted(float(row["p_holm"]) for row in of_part))
    titles = [
        f"{name}, {cost}"
        for cost in ("equal epochs", "equal MACs")
        for name in ("Arms against each other", "p-values after Holm's correction")
    ]
    assert [table.title for table in pairs(made)] == titles


def test_a_best_arm_says_how_sure_it_is_against_all_others(grid):
    others = {"scratch": lambda at: 70.0 + at["seed"], "sslft": lambda at: 70.0 + (1 - at["seed"]) / 9}
    made = grid(others | {"ssat": lambda at: (77.0, 79.0, 78.0)[at["seed"]]})
    found, (first, *rest) = corrected(made, None), made.ranking(None)
    assert near_best(made, None) == [first]
    most = max(found[frozenset((first, row))] for row in rest)
    said, sure = best(made, None), f"; against every other arm p at most {most:.2g} after Holm's correction for 3 comparisons."
    assert said.startswith("The best arm by top-1 is ssat: ") and said.endswith(sure)
    assert recommendation(made, None).startswith("For now take ssat, the best. Worse: ")


def test_arms_of_unequal_seeds_are_ranked_by_those_that_all_have(sweep):
    """SSAT lacks the two seeds that were easy, and is ahead on each of the others."""
    top1 = {"scratch": lambda at: (60.0, 61.0, 62.0, 90.0, 91.0)[at["seed"]], "ssat": lambda at: 64.0 + at["seed"]}
    make = {("ssat", seed): {"state": "failed"} for seed in (3, 4)}
    made = lay_out(collect(sweep(top1, {"seed": [0, 1, 2, 3, 4]}, columns=None, make=make)))
    assert [row.arm.name for row in made.ranking(None)] == ["ssat", "scratch"]
    assert best(made, None) == (
        "The best arm by top-1 is ssat: 65.00 ± 1.00 % (3 seeds that all arms have), +4.00 in each seed against scratch."
    )


def test_arms_without_two_seeds_in_common_have_no_best(sweep):
    make = {("ssat", 1): {"state": "failed"}, ("ssat", 2): {"state": "failed"}, ("scratch", 0): {"state": "failed"}}
    made = lay_out(collect(sweep({"scratch": 60.0, "ssat": 70.0, "sslft": 65.0}, {"seed": [0, 1, 2, 3]}, columns=None, make=make)))
    assert made.ranking(None) == []
    assert best(made, None) == "No best arm is named, since the arms have fewer than two seeds in common."


def test_an_arm_at_one_column_is_paired_with_itself_at_the_other(sweep):
    """Ten points more in each seed, and none; columns of several data sets, and many, are not compared."""
    axes = {"backbone.patch_size": [2, 4], **SEEDS}
    top1 = {"scratch": lambda at: 60.0 + 5 * at["backbone.patch_size"] + at["seed"], "ssat": lambda at: 80.0 + at["seed"] % 2}
    made = lay_out(collect(sweep(top1, axes, columns="backbone.patch_size")))
    said = "With patch_size 4 against patch_size 2: scratch +10.00 in each seed, ssat same in each seed."
    assert across(made) == [said] and sentences(headlines(made))[0] == said
    assert made.gap(made.rows[0], made.rows[0], 2, 4).mean == -10
    table = columns(made)
    assert table is not None and table.title == "Against patch_size 2" and table.header == ["arm", "patch_size 4"]
    assert [line[1].text for line in table.rows] == ["+10.00 in each seed", "same in each seed"]
    begun = sweep(top1, axes, columns="backbone.patch_size", make={("ssat", 4, 1): {"state": "not begun"}}, name="begun")
    (waiting,) = begun.glob("ssat-train-4-1")
    (waiting / "job.json").unlink()  # the launcher has not come to it
    assert across(lay_out(collect(begun)))[0].startswith("With patch_size 4 against patch_size 2: scratch +10.00 in each seed, ssat ")
    make = {(arm, "svhn", seed): {"data": {"sha256": "f" * 64}} for arm in ("scratch", "ssat") for seed in (0, 1)}
    sets = sweep({"scratch": 80.0, "ssat": 82.0}, {"data": ["cifar10", "svhn"], "seed": [0, 1]}, make=make, name="sets")
    assert across(lay_out(collect(sets))) == []
    many = sweep(top1, {"backbone.patch_size": [1, 2, 4, 8], "seed": [0]}, columns="backbone.patch_size", name="many")
    assert across(lay_out(collect(many))) == []


def test_of_two_seeds_no_pair_is_said_to_be_chance(grid):
    """No interval: not even twenty points tell anything, but nor are they told to be chance."""
    lines = csv.DictReader(spreadsheet.pairs(grid(OPEN, {"seed": [0, 1]})).splitlines())
    assert {line["may_be_chance"] for line in lines} == {""}


def test_of_folds_all_are_asked_for(grid):
    stages = {
        arm: [("train", {"objectives.classify": {}, "data.folds": 7, **more})] for arm, more in {"a": {}, "b": {"optim.lr": 1e-3}}.items()
    }
    made = grid({"a": 70.0, "b": lambda at: 70.0 + at["seed"]}, {"seed": [0, 4]}, stages=stages, baseline="a")
    assert "'axes.seed=[0,4,1,2,3,5,6]' for 7 seeds" in next_steps(made)
