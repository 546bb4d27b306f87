"""Columns against each other, where they are of one data set."""

from __future__ import annotations

from vitssl.report.across import sentence
from vitssl.report.collect import collect
from vitssl.report.findings import sentences
from vitssl.report.grid import lay_out
from vitssl.report.tables import interval

PATCHES = {"backbone.patch_size": [2, 4], "seed": [0, 1, 2]}
TOP1 = {"scratch": lambda at: 60.0 + 5 * at["backbone.patch_size"] + at["seed"], "ssat": lambda at: 80.0 + at["seed"] % 2}


def test_an_arm_at_one_value_is_paired_with_itself_at_the_other(sweep):
    """Ten points more in each seed, and none."""
    grid = lay_out(collect(sweep(TOP1, PATCHES, columns="backbone.patch_size")))
    said = "In top-1, patch_size 4 against patch_size 2: +10.00 in each seed (scratch) and same in each seed (ssat; may be chance)."
    assert sentence(grid) == said and said in sentences(grid)
    (row, _) = grid.rows
    assert interval(grid.gap(row, row, 4, 2)) == "+10.00 in each seed" and grid.gap(row, row, 2, 4).mean == -10


def test_data_sets_are_not_compared_nor_many_values(sweep):
    make = {(arm, "svhn", seed): {"data": {"sha256": "f" * 64}} for arm in ("scratch", "ssat") for seed in (0, 1)}
    two = sweep({"scratch": 80.0, "ssat": 82.0}, {"data": ["cifar10", "svhn"], "seed": [0, 1]}, make=make, name="sets")
    assert sentence(lay_out(collect(two))) == ""
    many = sweep(TOP1, {"backbone.patch_size": [1, 2, 4, 8], "seed": [0]}, columns="backbone.patch_size", name="many")
    assert sentence(lay_out(collect(many))) == ""
