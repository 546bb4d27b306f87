"""The report's CSV files: every model, evaluation and pair with unrounded figures, and no name that is a formula."""

from __future__ import annotations

import csv
import math

import pytest

from vitssl.report.pages import spreadsheet
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import lay_out
from vitssl.report.results.rows import cost_of
from vitssl.report.results.schedule import training_macs

pytestmark = pytest.mark.usefixtures("without_plots")


def test_no_name_is_a_formula_in_a_spreadsheet(sweep):
    """Figures stay figures, negative ones too."""
    arms = [{"name": "scratch", "row": "=1+1"}, {"name": "ssat", "row": "@SUM(A1)"}]
    axes = {"size": ["-large", "+0.5", "small"], "seed": [0]}
    folder = sweep({"scratch": 80.0, "ssat": 79.0}, axes, columns="size", arms=arms)
    lines = list(csv.DictReader(spreadsheet.numbers(lay_out(collect(folder))).splitlines()))
    assert [line["paper_row"] for line in lines] == ["'=1+1"] * 3 + ["'@SUM(A1)"] * 3
    assert [line["size"] for line in lines[:3]] == ["'-large", "'+0.5", "small"]
    assert lines[-1]["minus_baseline"] == "-1.0" and lines[-1]["arm"] == "ssat"


def test_a_spreadsheet_has_every_seed_with_all_that_was_measured(sweep):
    """A chain's stages are joined, and what was not finished has no line."""
    make = {("ssat", 1): {"state": "failed"}}
    grid = lay_out(collect(sweep({"sslft": 70.0, "ssat": lambda at: 80.0 + at["seed"]}, {"seed": [0, 1]}, columns=None, make=make)))
    lines = list(csv.DictReader(spreadsheet.by_seed(grid).splitlines()))
    assert [(line["arm"], line["seed"], float(line["test_top1"])) for line in lines] == [
        ("sslft", "0", 70.0), ("sslft", "1", 70.0), ("ssat", "0", 80.0),
    ]  # fmt: skip
    assert lines[0]["run"] == "sslft-finetune-0" and (lines[0]["steps_pretrain"], lines[0]["steps"]) == ("500", "500")
    first = grid.rows[0].cells[0]
    assert float(lines[0]["training_macs"]) == training_macs(first) and float(lines[0]["kwh"]) == cost_of(first)["energy_kwh"]


def test_a_spreadsheet_has_every_pair_and_columns_of_one_set(sweep):
    axes = {"backbone.patch_size": [2, 4], "seed": [0, 1, 2]}
    top1 = {
        "scratch": lambda at: 60.0 + at["seed"],
        "sslft": lambda at: 70.0 + 2 * at["seed"],
        "ssat": lambda at: 80.0 + at["backbone.patch_size"],
    }
    grid = lay_out(collect(sweep(top1, axes, columns="backbone.patch_size")))
    lines = list(csv.DictReader(spreadsheet.pairs(grid).splitlines()))
    assert len(lines) == 2 * 3 + 3, "three pairs at each of two columns, and three arms between these"
    first = grid.gap(grid.rows[0], grid.rows[1], 2)
    assert (lines[0]["arm"], lines[0]["than_arm"], lines[0]["backbone.patch_size"]) == ("scratch", "sslft", "2")
    assert (float(lines[0]["difference"]), float(lines[0]["ci95_low"])) == (first.mean, first.low) and lines[0]["may_be_chance"] == "False"
    assert [(line["arm"], line["backbone.patch_size"], line["than_backbone.patch_size"]) for line in lines[6:]] == [
        (arm, "4", "2") for arm in ("scratch", "sslft", "ssat")
    ]
    assert [float(line["difference"]) for line in lines[6:]] == [0.0, 0.0, 2.0]
    sets = lay_out(collect(sweep({"scratch": 60.0, "ssat": 80.0}, {"data": ["a", "b"], "seed": [0, 1]}, name="sets")))
    assert len(list(csv.DictReader(spreadsheet.pairs(sets).splitlines()))) == 2, "data sets are not compared"


def test_arms_that_share_no_seed_are_said_not_to(sweep):
    make = {("ssat", 0): {"state": "failed"}, ("scratch", 1): {"state": "failed"}}
    grid = lay_out(collect(sweep({"scratch": 70.0, "ssat": 80.0}, {"seed": [0, 1]}, columns=None, make=make)))
    (line,) = csv.DictReader(spreadsheet.pairs(grid).splitlines())
    assert (line["difference"], line["interval"]) == ("", "no seed has a figure for both")


def test_a_spreadsheet_has_every_evaluation_of_every_stage(sweep):
    grid = lay_out(collect(sweep({"sslft": 70.0, "scratch": 60.0}, {"seed": [0, 1]}, columns=None)))
    lines = list(csv.DictReader(spreadsheet.curves(grid).splitlines()))
    finetuned = [line for line in lines if (line["arm"], line["stage"], line["seed"]) == ("sslft", "finetune", "1")]
    assert len(finetuned) == 50 and finetuned[24]["epoch"] == "25" and finetuned[24]["run"] == "sslft-finetune-1"
    assert float(finetuned[24]["test_top1"]) == 70 * (1 - math.exp(-2.5))
    assert float(finetuned[24]["loss_classify"]) == 2.3 - 1.9 * (1 - math.exp(-2.5))
    assert len(lines) == len(finetuned) * 2 + 100 * 2, "a pretraining without evaluations has no line"
