"""Columns against each other, where they are of one data set."""

from __future__ import annotations

import csv

from vitssl.report import spreadsheet, tables
from vitssl.report.across import dominating, sentence
from vitssl.report.advice import taken
from vitssl.report.collect import collect
from vitssl.report.findings import sentences
from vitssl.report.grid import lay_out
from vitssl.report.tables import interval

PATCHES = {"backbone.patch_size": [2, 4], "seed": [0, 1, 2]}
TOP1 = {"scratch": lambda at: 60.0 + 5 * at["backbone.patch_size"] + at["seed"], "ssat": lambda at: 80.0 + at["seed"] % 2}


def test_an_arm_at_one_value_is_paired_with_itself_at_the_other(sweep):
    """Ten points more in each seed, and none; what costs as much and is no worse is taken, and what follows is of it alone."""
    grid = lay_out(collect(sweep(TOP1, PATCHES, columns="backbone.patch_size")))
    said = "With patch_size 4, top-1 is higher than with patch_size 2 for scratch (+10.00 in each seed); "
    said += "a difference from patch_size 2 may be chance for ssat (same in each seed). So for now take patch_size 4."
    assert sentence(grid) == said and said in sentences(grid)
    (row, _) = grid.rows
    assert interval(grid.gap(row, row, 4, 2)) == "+10.00 in each seed" and grid.gap(row, row, 2, 4).mean == -10
    assert [text for text in taken(grid) if "patch_size 2" in text] == [] and taken(grid)[0].startswith("On patch_size 4, ")


def test_what_is_better_and_costs_more_is_not_taken_for_you(sweep):
    dearer = {(arm, 4, seed): {"cost": {"macs_train_step": 10**10}} for arm in TOP1 for seed in (0, 1, 2)}
    grid = lay_out(collect(sweep(TOP1, PATCHES, columns="backbone.patch_size", make=dearer)))
    assert (
        dominating(grid) is None
        and "take patch_size" not in sentence(grid)
        and "; training takes 1.98x to 2.65x the multiply-adds of patch_size 2." in sentence(grid)
    )
    assert len(taken(grid)) == 2


def test_of_two_seeds_nothing_is_said_to_be_chance(sweep):
    """No interval: not even twenty points tell anything, but nor are they told to be chance, in the sentence or in the table."""
    grid = lay_out(collect(sweep(TOP1, PATCHES | {"seed": [0, 1]}, columns="backbone.patch_size")))
    said = (
        "With patch_size 4, seeds are too few to tell it from patch_size 2 for scratch (+10.00 in each seed) and ssat (same in each seed)."
    )
    assert sentence(grid) == said
    assert {line["may_be_chance"] for line in csv.DictReader(spreadsheet.pairs(grid).splitlines())} == {""}


def test_data_sets_are_not_compared_nor_many_values(sweep):
    make = {(arm, "svhn", seed): {"data": {"sha256": "f" * 64}} for arm in ("scratch", "ssat") for seed in (0, 1)}
    two = sweep({"scratch": 80.0, "ssat": 82.0}, {"data": ["cifar10", "svhn"], "seed": [0, 1]}, make=make, name="sets")
    assert sentence(lay_out(collect(two))) == ""
    many = sweep(TOP1, {"backbone.patch_size": [1, 2, 4, 8], "seed": [0]}, columns="backbone.patch_size", name="many")
    assert sentence(lay_out(collect(many))) == ""


def test_what_is_taken_of_a_short_training_says_so(sweep):
    """Five seeds are enough; a loss of chance is not."""
    axes = PATCHES | {"seed": [0, 1, 2, 3, 4]}
    grid = lay_out(collect(sweep(TOP1, axes, columns="backbone.patch_size")))
    assert sentence(grid).endswith(" So take patch_size 4.")
    for row in grid.rows:
        for cell in row.cells:
            cell.last.events.append({"event": "train", "step": 10**6, "time": 2.0, "terms": {"classify": 2.2}})
    assert sentence(grid).endswith(" So for now take patch_size 4, as far as training this short can tell.")


def test_the_difference_between_columns_has_a_table(sweep):
    grid = lay_out(collect(sweep(TOP1, PATCHES, columns="backbone.patch_size")))
    table = tables.columns(grid)
    assert table is not None and table.title == "Against patch_size 2" and table.header == ["arm", "patch_size 4"]
    assert [line[1].text for line in table.rows] == ["+10.00 in each seed", "same in each seed"]
    alone = sweep({"scratch": 80.0}, {"seed": [0, 1, 2]}, columns=None, name="alone")
    assert tables.columns(lay_out(collect(alone))) is None
