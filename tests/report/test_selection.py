"""Settings that held-out images choose, worked out by hand from two seeds of a grid of two rates and two weight decays."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from vitssl import report
from vitssl.report.findings.sentences import findings, sentences
from vitssl.report.pages import spreadsheet
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import Grid, lay_out
from vitssl.report.table import DASH, MINUS, PUBLISHED
from vitssl.report.tables import details, main_table, selection

pytestmark = pytest.mark.usefixtures("without_plots")

AXES = {"data": ["flowers"], "optim.lr": [0.1, 0.2], "optim.weight_decay": [0.0, 0.05], "seed": [0, 1]}
SELECT = ["optim.lr", "optim.weight_decay"]
# (lr, weight decay) -> of both seeds: held out, test. The best held-out mean is 66, the best test mean 79 elsewhere
SCORES = {
    (0.1, 0.0): ((60.0, 60.0), (70.0, 72.0)),
    (0.1, 0.05): ((65.0, 67.0), (74.0, 76.0)),
    (0.2, 0.0): ((64.0, 66.0), (80.0, 78.0)),
    (0.2, 0.05): ((50.0, 50.0), (60.0, 60.0)),
}


@pytest.fixture
def grid_sweep(sweep):
    """A sweep of one arm whose cells have those scores in ``key``; ``states`` of single cells, by (lr, weight decay, seed)."""

    def made(
        key: str = "top1", states: dict[tuple, dict[str, Any]] | None = None, axes: dict[str, list] | None = None, **kwargs: Any
    ) -> Path:
        make = {}
        for (lr, decay), (held_out, test) in SCORES.items():
            for seed in (0, 1):
                results = {"val": {"top1": 1.0, key: held_out[seed]}, "test": {"top1": 1.0, "top5": 99.0, "loss": 9.0, key: test[seed]}}
                make["ssat", "flowers", lr, decay, seed] = {"done": results} | (states or {}).get((lr, decay, seed), {})
        arms = [{"name": "ssat", "row": "Ours", "published": {"flowers": 79.5}}]
        return sweep({"ssat": 1.0}, axes or AXES, make=make, arms=arms, select=SELECT, metric=key, baseline=None, **kwargs)

    return made


def texts(laid_out: Grid) -> dict[str, str]:
    """The only line of the table, by column."""
    table = selection.table(laid_out)
    (row,) = table.rows
    return dict(zip(table.header, (entry.text for entry in row), strict=True))


def test_held_out_images_choose_and_the_best_on_test_stands_beside(grid_sweep) -> None:
    """Cells' test means are 71, 75, 79 and 60: mean 71.25, squares of the distances 200.75, / 3, root 8.18."""
    laid_out = lay_out(collect(grid_sweep()))
    assert texts(laid_out) == {
        "arm": "Ours",
        "lr": "0.1",
        "weight_decay": "0.05",
        "held-out top-1 %": "66.00 ± 1.41",
        "test top-1 %, mean ± std (seeds)": "75.00 ± 1.41 (2)",
        "paper": "79.50",
        "best test top-1 %": "79.00",
        "mean ± std over the cells": "71.25 ± 8.18",
        "cells": "4",
    }
    table = selection.table(laid_out)
    assert table.groups == [("", 1), ("chosen on held-out images", 4), ("", 1), ("selected on test", 2), ("", 1)]
    assert [entry.kind for entry in table.rows[0]].count(PUBLISHED) == 1
    laid_out.rows[0].arm.quoted = True  # by the paper from elsewhere
    assert texts(laid_out)["paper"] == "79.50†"


def test_every_value_has_its_means(grid_sweep) -> None:
    every = selection.points(lay_out(collect(grid_sweep())))
    assert every.header == ["arm", "lr", "weight_decay", "held-out top-1 %", "test top-1 %"]
    assert [[entry.text for entry in row] for row in every.rows] == [
        ["Ours", "0.1", "0.0", "60.00 ± 0.00 (2)", "71.00 ± 1.41 (2)"],
        ["Ours", "0.1", "0.05", "66.00 ± 1.41 (2)", "75.00 ± 1.41 (2)"],
        ["Ours", "0.2", "0.0", "65.00 ± 1.41 (2)", "79.00 ± 1.41 (2)"],
        ["Ours", "0.2", "0.05", "50.00 ± 0.00 (2)", "60.00 ± 0.00 (2)"],
    ]


def test_an_arm_that_the_axes_leave_alone_has_no_values(grid_sweep) -> None:
    """All of its cells are the same runs."""
    found = collect(grid_sweep())
    first = {
        cell.axes["seed"]: cell.stages for cell in found.cells if (cell.axes["optim.lr"], cell.axes["optim.weight_decay"]) == (0.1, 0.0)
    }
    for cell in found.cells:
        cell.stages = first[cell.axes["seed"]]
    laid_out = lay_out(found)
    line = texts(laid_out)
    assert selection.points(laid_out) is None
    assert "lr" not in line and line["held-out top-1 %"] == "60.00 ± 0.00" and line["cells"] == "1"


def test_rows_collapse_and_every_run_stays_listed(grid_sweep) -> None:
    laid_out = lay_out(collect(grid_sweep()))
    (row,) = main_table.table(laid_out).rows
    assert [entry.text for entry in row][:4] == ["Ours", "75.00 ± 1.41 (2)", "79.50", f"{MINUS}4.50"]
    assert "Each uses the optim.lr and optim.weight_decay chosen on held-out images." in main_table.table(laid_out).caption
    assert [cell.axes["optim.weight_decay"] for cell in laid_out.rows[0].cells] == [0.05, 0.05]
    assert len(details.runs(laid_out.sweep).rows) == 8


def test_of_a_loss_the_lowest_is_the_best(grid_sweep) -> None:
    shown = texts(lay_out(collect(grid_sweep("loss"))))
    assert (shown["lr"], shown["weight_decay"], shown["held-out NLL ↓"]) == ("0.2", "0.05", "50.00 ± 0.00")
    assert shown["test NLL ↓, mean ± std (seeds)"] == "60.00 ± 0.00 (2)" and shown["best test NLL ↓"] == "60.00"


def test_a_cell_counts_when_all_of_its_seeds_are_done(grid_sweep) -> None:
    """Without the cell of 66 the next is 65, whose test mean is 79; of 71, 79 and 60 the mean is 70, the deviation 9.54."""
    laid_out = lay_out(collect(grid_sweep(states={(0.1, 0.05, 1): {"state": "running"}})))
    shown = texts(laid_out)
    assert (shown["lr"], shown["weight_decay"], shown["cells"]) == ("0.2", "0.0", "3 of 4, 1 missing")
    assert shown["mean ± std over the cells"] == "70.00 ± 9.54"
    assert [entry.text for entry in main_table.table(laid_out).rows[0]][1] == "79.00 ± 1.41 (2)"
    assert "Some cells to select from are missing, so the choice may still change: Ours on flowers (1 of 4)." in sentences(
        findings(laid_out)
    )


def test_until_a_cell_is_done_nothing_is_chosen(grid_sweep) -> None:
    states = {(*point, 1): {"state": "failed" if point == (0.1, 0.0) else "not begun"} for point in SCORES}
    folder = grid_sweep(states=states)
    laid_out = lay_out(collect(folder))
    assert texts(laid_out) == {"arm": "Ours", "paper": "79.50", "cells": "0 of 4, 4 missing"}
    assert main_table.table(laid_out).rows[0][1].text == "done (4), failed (1), not begun (3)"
    assert "0 of 4, 4 missing" in report.write(folder).read_text()


def test_one_value_of_each_axis_is_a_grid_of_one_cell(sweep) -> None:
    axes = {"optim.lr": [0.1], "seed": [0]}
    make = {("ssat", 0.1, 0): {"done": {"val": {"top1": 60.0}}}}
    laid_out = lay_out(collect(sweep({"ssat": 70.0}, axes, columns=None, baseline=None, make=make, select=["optim.lr"])))
    shown = texts(laid_out)
    assert (shown["lr"], shown["best test top-1 %"], shown["mean ± std over the cells"], shown["cells"]) == ("0.1", "70.00", "70.00", "1")


def test_the_epoch_may_be_chosen_by_held_out_images_too(grid_sweep, sweep) -> None:
    """Settings are then chosen at that epoch, by the same images."""
    usual = lay_out(collect(grid_sweep()))
    make = {
        ("ssat", "flowers", lr, decay, seed): {"done": {"selected_val": {"top1": held_out[seed]}, "selected": {"top1": test[seed]}}}
        for (lr, decay), (held_out, test) in SCORES.items()
        for seed in (0, 1)
    }
    arms = [{"name": "ssat", "row": "Ours", "published": {"flowers": 79.5}}]
    folder = sweep({"ssat": 1.0}, AXES, make=make, arms=arms, select=SELECT, metric="selected/top1", baseline=None)
    laid_out = lay_out(collect(folder))
    assert list(texts(laid_out).values()) == list(texts(usual).values())
    assert [entry.text for line in selection.points(laid_out).rows for entry in line] == [
        entry.text for line in selection.points(usual).rows for entry in line
    ]


def test_axes_that_are_not_selected_over_stay_rows(sweep) -> None:
    axes = {"epochs": [10, 20], "finetune.optim.lr": [0.1, 0.2], "pretrain.optim.lr": [1.0], "seed": [0]}
    at = [(epochs, lr) for epochs in axes["epochs"] for lr in axes["finetune.optim.lr"]]
    make = {("ssat", epochs, lr, 1.0, 0): {"done": {"val": {"top1": 50 + 10 * lr * (15 - epochs)}}} for epochs, lr in at}
    select = ["finetune.optim.lr", "pretrain.optim.lr"]
    laid_out = lay_out(collect(sweep({"ssat": lambda at: at["epochs"]}, axes, columns=None, baseline=None, make=make, select=select)))
    table = selection.table(laid_out)
    assert table.header[1:3] == select  # both are a lr, so that the whole names are shown
    assert [[entry.text for entry in row][:2] for row in table.rows] == [["epochs 10", "0.2"], ["epochs 20", "0.1"]]


def test_an_arm_that_is_only_quoted_chose_nothing(sweep) -> None:
    arms = [{"name": "dino", "quoted": True, "published": 87.0}, {"name": "ssat"}]
    make = {("ssat", 0.1, 0): {"done": {"val": {"top1": 60.0}}}}
    axes = {"optim.lr": [0.1], "seed": [0]}
    laid_out = lay_out(collect(sweep({"ssat": 70.0}, axes, columns=None, baseline=None, arms=arms, make=make, select=["optim.lr"])))
    assert texts(laid_out)["arm"] == "ssat"
    assert [[entry.text for entry in row][1:3] for row in main_table.table(laid_out).rows] == [[DASH, "87.00†"], ["70.00 (1)", DASH]]


def test_the_spreadsheet_has_the_choice_unrounded(grid_sweep) -> None:
    (line,) = csv.DictReader(StringIO(spreadsheet.numbers(lay_out(collect(grid_sweep())))))
    assert (line["chosen_optim.lr"], line["chosen_optim.weight_decay"], line["held_out_top1"]) == ("0.1", "0.05", "66.0")
    assert (line["top1_mean"], line["selected_on_test_top1"], line["cells_top1_mean"]) == ("75.0", "79.0", "71.25")
    assert float(line["cells_top1_std"]) == pytest.approx((200.75 / 3) ** 0.5)
    assert (line["cells"], line["cells_missing"]) == ("4", "0")


def test_a_report_of_a_selection_has_it_everywhere(grid_sweep) -> None:
    folder = grid_sweep()
    page = report.write(folder)
    for text in (page.read_text(), page.with_name("report.md").read_text(), page.with_name("table.tex").read_text()):
        assert "selected on test" in text.lower() and "71.25" in text
    assert "71.25 ± 8.18" in report.summary(folder, width=200)
