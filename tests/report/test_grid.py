"""The rows of a sweep's tables: an arm stands once at the values of an axis that changes nothing of it."""

from __future__ import annotations

import csv
import dataclasses
import json

import pytest

from vitssl import report
from vitssl.report.findings.sentences import findings
from vitssl.report.results.collect import Cell, collect
from vitssl.report.results.grid import lay_out

AXIS = "objectives.mae.mask_ratio"
ARMS = [{"name": "scratch", "row": "Scratch"}, {"name": "ssat", "row": "SSAT"}]


@pytest.fixture
def folder(sweep):
    """Of an axis of MAE's mask ratios, which scratch does not have: its cells name the same runs."""
    top1 = {"scratch": lambda at: 80.0 + at["seed"], "ssat": lambda at: 82.0 + at["seed"] + 4 * at[AXIS]}
    made = sweep(top1, {AXIS: [0.5, 0.75], "seed": [0, 1, 2]}, columns=None, arms=ARMS)
    facts = json.loads((made / "sweep.json").read_text())
    for cell in facts["cells"]:
        for stage in cell["stages"] if cell["arm"] == "scratch" else ():
            stage["folder"] = stage["folder"].replace("-0.75-", "-0.5-")
    (made / "sweep.json").write_text(json.dumps(facts))
    return made


def test_an_arm_that_an_axis_does_not_change_is_one_row_and_the_baseline_of_all(folder) -> None:
    grid = lay_out(collect(folder))
    assert [grid.label(row) for row in grid.rows] == ["Scratch", "SSAT, mask_ratio 0.5", "SSAT, mask_ratio 0.75"]
    assert [len(row.cells) for row in grid.rows] == [3, 3, 3]
    scratch, *others = grid.rows
    assert all(grid.baseline(row) is scratch for row in others)
    assert [grid.against_baseline(row, None).mean for row in others] == pytest.approx([4.0, 5.0])
    assert grid.baselines() == "Scratch"


def test_its_report_has_it_once(folder) -> None:
    text = report.write(folder).read_text()
    assert "Scratch, mask_ratio" not in text and "SSAT, mask_ratio 0.75" in text
    with (folder / "report" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row[AXIS]) for row in rows] == [("scratch", ""), ("ssat", "0.5"), ("ssat", "0.75")]


def test_a_heading_says_what_arms_share_with_their_baseline(sweep) -> None:
    grid = lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {"optim.lr": [1e-4, 1e-3], "seed": [0, 1]}, columns=None)))
    assert [grid.baseline(row) for row in grid.rows] == [None, None, *grid.rows[:2]]
    assert grid.baselines() == "scratch at the same lr"


def test_arms_that_it_changes_keep_their_values(sweep) -> None:
    grid = lay_out(collect(sweep({"ssat": 82.0}, {AXIS: [0.5, 0.75], "seed": [0, 1]}, columns=None, baseline=None)))
    assert [grid.label(row) for row in grid.rows] == ["mask_ratio 0.5", "mask_ratio 0.75"]


def test_the_values_of_a_single_arm_are_compared_with_its_first(sweep) -> None:
    top1 = {"ssat": lambda at: 80.0 + at["seed"] + 4 * at[AXIS]}
    made = sweep(top1, {AXIS: [0.5, 0.25, 0.75], "seed": [0, 1, 2]}, columns=None, baseline=None)
    grid = lay_out(collect(made))
    gaps = [grid.against_baseline(row, None) for row in grid.rows]
    assert [gap and gap.mean for gap in gaps] == [None, pytest.approx(-1), pytest.approx(1)]
    text = report.write(made).read_text()
    assert "against mask_ratio 0.5" in text and "-1.00 in each seed" in text.replace("\N{MINUS SIGN}", "-")


def test_a_copy_with_other_rows_has_ranks_of_its_own(sweep) -> None:
    """Of three seeds of an arm the third one is missing: without it the other two have three seeds in common."""
    make = {("ssat_b", 2): {"state": "failed"}}
    arms = {"scratch": lambda at: 80.0 + at["seed"], "ssat": lambda at: 82.0 + at["seed"], "ssat_b": lambda at: 84.0 + at["seed"]}
    grid = lay_out(collect(sweep(arms, {"seed": [0, 1, 2]}, columns=None, make=make)))
    first, second, third = grid.rows
    assert grid.ranking(None) == [third, second, first] and grid.seeds_of_all(None) == {0, 1}
    copy = dataclasses.replace(grid, rows=[first, second])
    assert copy.ranking(None) == [second, first] and copy.seeds_of_all(None) == {0, 1, 2}
    assert grid.ranking(None) == [third, second, first] and grid.seeds_of_all(None) == {0, 1}


def test_scores_are_read_once_for_each_pair_of_rows_and_not_for_each_question(sweep, monkeypatch) -> None:
    """Of eight arms there are 28 pairs, of two times three seeds; rows, ranks and other sentences add about as many again."""
    arms = {f"scratch_{i}": lambda at, i=i: 80.0 + i + at["seed"] for i in range(8)}
    grid = lay_out(collect(sweep(arms, {"seed": [0, 1, 2]}, columns=None, baseline="scratch_0")))
    reads, read = [], Cell.result
    monkeypatch.setattr(Cell, "result", lambda cell, *reading: reads.append(reading) or read(cell, *reading))
    findings(grid)
    assert len(reads) < 3 * 28 * 2 * 3
