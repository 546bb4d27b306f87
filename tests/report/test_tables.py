"""What stands in the tables, worked out by hand from the builder's numbers."""

from __future__ import annotations

import csv
import json
import re
import shutil
from io import StringIO

import pytest

from tests.report.conftest import SITE
from vitssl import config, report
from vitssl.config import Site
from vitssl.report import summary
from vitssl.report.findings.sentences import findings, progress, sentences
from vitssl.report.pages import latex, spreadsheet
from vitssl.report.results.best import corrected, p_text
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import Grid, lay_out
from vitssl.report.table import BAD, DASH, MEASURED, MINUS, PUBLISHED, Table, number
from vitssl.report.tables import details, differences, evaluations, main_table, spending
from vitssl.report.tables.settings import _text, provenance, settings

pytestmark = pytest.mark.usefixtures("without_plots")


def texts(table: Table) -> dict[str, list[str]]:
    return {row[0].text: [entry.text for entry in row[1:]] for row in table.rows}


def accuracies(grid: Grid) -> dict[str, list[str]]:
    """The main table without costs."""
    return texts(main_table.table(grid, ["accuracy", "paper", "difference"]))


def models(table: Table) -> dict[tuple[str, str], list[str]]:
    """Rows by arm and column."""
    return {(row[0].text, row[1].text): [entry.text for entry in row[2:]] for row in table.rows}


def test_table_3_beside_the_papers_numbers(grid_3):
    """Seeds lie at -1.0, -0.9 and -0.8 of the paper's number: mean -0.9, standard deviation 0.1."""
    table = main_table.table(grid_3)
    assert table.groups == [("", 1), ("cifar10", 3), ("cifar100", 3), ("", 1)]
    measured = ["78.57 ± 0.10 (3)", "79.47", f"{MINUS}0.90", "54.21 ± 0.10 (3)", "55.11", f"{MINUS}0.90"]
    assert texts(table)["Scratch"] == [*measured, "100"]
    assert texts(table)["(1) SSL+FT"][-1] == "50 + 50" and texts(table)["Ours"][0] == "90.75 ± 0.10 (3)"
    assert table.best == {(5, 1), (5, 4)}
    kinds = {entry.kind for row in table.rows for entry in (row[2], row[5])}
    assert kinds == {PUBLISHED}


def test_cost_of_a_chain_is_the_sum_of_its_stages(grid_3):
    """A stage of 50 epochs took half an hour: 125 Wh, 50 g at 0.4 kg/kWh; the estimate is 0.5 x 230 x 0.432 = 49.7."""
    table, sizes = models(spending.cost(grid_3)), models(main_table.size_table(grid_3))
    assert table["(1) SSL+FT", "cifar100"][2:7] == ["1.00 ± 0.00", "250 ± 0", "100 ± 0", "99.4 ± 0.0", "0.500 ± 0.000"]
    assert sizes["(1) SSL+FT", "cifar100"] == ["5.85 + 5.53", "5.53", "14.2", "0.426 + 1.26", "1.26", "4,000"]
    assert sizes["Ours", "cifar10"][:5] == ["5.85", "5.53", "14.2", "1.68", "1.26"]


BIG = {"params_inference": 5_700_000, "activations_inference": 28_500_000, "macs_inference": 2_500_000_000}


def two_columns(sweep, emissions_record, **kwargs) -> Grid:
    """scratch and ssat: 1 and 2 h on cifar10, 60 and 82 h (mean of 80 and 84) on imagenet, whose models are larger."""
    hours = {("scratch", "cifar10"): (1, 1), ("ssat", "cifar10"): (2, 2), ("scratch", "imagenet"): (60, 60), ("ssat", "imagenet"): (80, 84)}
    make = {(*place, seed): {"records": [emissions_record(hours=h)]} for place, both in hours.items() for seed, h in enumerate(both)}
    for seed, speed in enumerate((1000.0, 1400.0)):
        make["ssat", "imagenet", seed]["cost"] = BIG | {"inference_images_per_s": speed}
    axes = {"data": ["cifar10", "imagenet"], "seed": [0, 1]}
    return lay_out(collect(sweep({"scratch": 80.0, "ssat": 90.0}, axes, make=make, **kwargs)))


def test_size_and_cost_are_of_one_column(sweep, emissions_record):
    """Means over the seeds of a column, never over columns: 82 h x 0.25 kWh = 20.5 kWh; x 0.4 = 8.2 kg; 82 x 0.230 x 0.432 = 8.15 kg."""
    grid = two_columns(sweep, emissions_record)
    table = spending.cost(grid)
    assert table.header[2:5] == ["TMACs of training", "against scratch", "GPU-hours"]
    assert [[e.text for e in row[:2]] for row in table.rows] == [
        ["scratch", "cifar10"], ["ssat", "cifar10"], ["scratch", "imagenet"], ["ssat", "imagenet"]
    ]  # fmt: skip
    rows, sizes = models(table), models(main_table.size_table(grid))
    assert rows["ssat", "cifar10"][1:7] == ["1.34x", "2.00 ± 0.00", "0.500 ± 0.000", "0.200 ± 0.000", "0.199 ± 0.000", "1.00 ± 0.00"]
    assert sizes["ssat", "cifar10"] == ["5.85", "5.53", "14.2", "1.68", "1.26", "4,000"]
    assert rows["ssat", "imagenet"][2:7] == ["82.0 ± 2.8", "20.5 ± 0.7", "8.20 ± 0.28", "8.15 ± 0.28", "41.0 ± 1.4"]
    assert sizes["ssat", "imagenet"][:5] == ["5.85", "5.70", "28.5", "1.68", "2.50"]


@pytest.mark.parametrize("columns, axes", [(None, {"seed": [0]}), ("data", {"data": ["cifar10"], "seed": [0]})])
def test_one_column_is_not_named_in_every_row(sweep, columns, axes):
    laid_out = lay_out(collect(sweep({"scratch": 80.0}, axes, columns=columns)))
    assert spending.cost(laid_out).header[:2] == ["arm", "TMACs of training"]
    assert spending.by_stage(laid_out).header[:2] == ["arm", "stage"]


def test_differences_are_paired_over_seeds(grid_3):
    """ssat - scratch is 91.65 - 79.47 = 12.18 at every seed, which is no interval of no width."""
    table = differences.differences(grid_3)
    assert table.title == "Difference from Scratch" and "Scratch" not in texts(table)
    assert texts(table)["Ours"] == ["+12.18 in each seed", "+14.53 in each seed", "Student's t, paired over 3 seeds"]


def test_one_seed_says_so(sweep):
    laid_out = lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.5}, {"data": ["cifar10"], "seed": [0]})))
    assert texts(main_table.table(laid_out))["ssat"][:2] == ["82.50 (1)", "+2.50"] and "(one seed)" in main_table.table(laid_out).caption
    assert main_table.table(laid_out).best == set()
    unranked = "cifar10: No best arm is named, since the arms have fewer than two seeds in common."
    assert unranked in sentences(findings(laid_out))


def test_an_arm_with_a_single_seed_leaves_the_others_unranked(sweep):
    make = {("ssat", "cifar10", 1): {"state": "not begun"}}
    laid_out = lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.5}, {"data": ["cifar10"], "seed": [0, 1]}, make=make)))
    assert main_table.table(laid_out).best == set()
    assert "cifar10: No best arm is named, since the arms have fewer than two seeds in common." in sentences(findings(laid_out))


def test_a_lead_that_seeds_leave_open_is_called_so(sweep):
    """ssat leads by 0, 1 and 2 points: mean 1, standard error 0.577, t(2) = 4.303: from -1.48 to 3.48."""
    top1 = {"scratch": lambda at: 80.0, "ssat": lambda at: 80.0 + at["seed"], "sslft": 70.0}
    folder = sweep(top1, {"data": ["cifar10"], "seed": [0, 1, 2]})
    versus = f", +1.00 [{MINUS}1.48, +3.48] against scratch."
    first = "cifar10: 3 seeds cannot tell ssat and scratch apart in top-1; the best mean is that of ssat: 81.00 ± 1.00 %"
    assert sentences(findings(lay_out(collect(folder))))[0] == f"{first}{versus}"
    facts = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(facts | {"baseline": "sslft"}))
    sentence = sentences(findings(lay_out(collect(folder))))[0]
    assert sentence == f"{first}{versus}", "its baseline is clearly worse"


def test_without_a_paper_nothing_is_the_papers(sweep):
    laid_out = lay_out(collect(sweep({"ssat": 80.0}, {"seed": [0]}, columns=None, arms=[{"name": "ssat", "row": "SSAT"}])))
    assert main_table.table(laid_out).header == ["arm", "top-1 %", "TMACs of training", "GPU-hours", "Wh", "g CO2e"]
    assert list(texts(main_table.table(laid_out))) == ["SSAT"]


def test_an_arm_may_have_a_baseline_of_its_own(sweep):
    arms = [{"name": "swin"}, {"name": "swin_drloc", "baseline": "swin"}, {"name": "cvt"}, {"name": "cvt_drloc", "baseline": "cvt"}]
    top1 = {"swin": 80.0, "swin_drloc": 82.5, "cvt": 88.0, "cvt_drloc": 89.0}
    stages = {name: [("train", {"objectives": {"classify": {}}})] for name in ("swin", "cvt")}
    laid_out = lay_out(collect(sweep(top1, {"data": ["cifar10"], "seed": [0, 1]}, arms=arms, baseline=None, stages=stages)))
    main = main_table.table(laid_out, ["baseline"])
    assert main.header == ["arm", "against each arm's baseline"]
    assert texts(main) == {"swin": [DASH], "swin_drloc": ["+2.50 in each seed"], "cvt": [DASH], "cvt_drloc": ["+1.00 in each seed"]}
    assert any("89.00 ± 0.00 %, +1.00 in each seed against cvt" in sentence for sentence in sentences(findings(laid_out)))


def test_details_show_every_stage_and_the_papers_count(grid_3):
    table = spending.by_stage(grid_3)
    rows = [[e.text for e in row] for row in table.rows if row[0].text == "(1) SSL+FT" and row[1].text == "cifar10"]
    assert [row[2] for row in rows] == ["pretrain", "finetune", "all"]
    assert [row[3] for row in rows] == ["426 MMACs (mae)", "1.26 GMACs (classify)", DASH]
    assert [row[4] for row in rows] == ["0.500", "0.500", "1.00"]
    ssat = next(row for row in table.rows if row[0].text == "Ours")
    assert ssat[3].text == "1.26 GMACs (classify) + 426 MMACs (mae)"


def test_published_costs_without_a_column_stand_apart(grid_3):
    table = spending.published(grid_3)
    assert texts(table)["Ours"] == ["1.67", "78", "7.55"]
    assert all(entry.kind == PUBLISHED for row in table.rows for entry in row[1:])


PRINTED = {"gmacs": "1.67", "gpu_hours": 78, "kg_co2e": 7.55, "column": "imagenet"}


def test_published_costs_stand_beside_their_column(sweep, emissions_record):
    """SSAT's two passes are 1.258 + 0.426 GMACs; 82 h, 8.15 kg by the estimate and 8.20 kg measured are imagenet's alone."""
    arms = [{"name": "scratch", "row": "Scratch"}, {"name": "ssat", "row": "Ours", "published_cost": PRINTED}]
    table = spending.published(two_columns(sweep, emissions_record, arms=arms))
    assert texts(table) == {"Ours": ["imagenet", "1.67", "1.68", "78", "82.0", "7.55", "8.15", "8.20"]}
    assert [name for name, entry in zip(table.header, table.rows[0], strict=True) if entry.kind == PUBLISHED] == [
        "GMACs, paper", "GPU-hours, paper", "kg CO2e, paper"
    ]  # fmt: skip
    assert "on the same data" in table.caption


def test_published_costs_wait_for_their_column(sweep):
    """Where no model of the column has finished, the paper's numbers stand alone, whatever finished elsewhere."""
    make = {("ssat", "imagenet", 0): {"state": "running"}}
    axes = {"data": ["cifar10", "imagenet"], "seed": [0]}
    laid_out = lay_out(collect(sweep({"ssat": 90.0}, axes, make=make, arms=[{"name": "ssat", "published_cost": PRINTED}])))
    table = spending.published(laid_out)
    assert texts(table) == {"ssat": ["imagenet", "1.67", "78", "7.55"]}


def test_unfinished_runs_show_as_such(sweep):
    make = {
        ("scratch", "cifar10", 1): {"state": "failed"},
        ("ssat", "cifar10", 0): {"state": "failed"},
        ("ssat", "cifar10", 1): {"state": "not begun"},
        ("ssat", "cifar10", 2): {"skip": True},
    }
    laid_out = lay_out(collect(sweep({"scratch": 80.0, "ssat": 90.0}, {"data": ["cifar10"], "seed": [0, 1, 2]}, make=make)))
    assert accuracies(laid_out) == {"scratch": ["80.00 ± 0.00 (2 of 3)"], "ssat": ["failed (1), not begun (2)"]}
    assert [line["state"] for line in csv.DictReader(StringIO(spreadsheet.numbers(laid_out)))] == ["done, failed", "failed, not begun"]
    assert main_table.table(laid_out).rows[1][1].kind == BAD
    runs = texts(details.runs(laid_out.sweep))
    assert runs["scratch-train-cifar10-1"][1] == "failed: loss is not finite at step 70 (optim.lr)"
    assert runs["ssat-train-cifar10-2"][1] == "not begun"


def test_of_a_run_that_was_killed_it_is_told(sweep):
    folder = sweep({"ssat": 90.0}, {"seed": [0, 1]}, columns=None, make={("ssat", seed): {"state": "running"} for seed in (0, 1)})
    with (folder / "ssat-train-1" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"event": "end", "attempt": 0, "step": 500, "time": 0.0, "reason": "stopped"}) + "\n")
    killed, stopped = (row[2] for row in details.runs(collect(folder)).rows)
    assert (killed.text, killed.kind) == ("stopped (killed) at step 500 of 1000", BAD)
    assert (stopped.text, stopped.kind) == ("stopped at step 500 of 1000", MEASURED)


def test_arms_that_cannot_run_keep_their_row(sweep):
    arms = [
        {"name": "scratch"},
        {"name": "in1k", "row": "IN-1K", "published": {"cifar10": 93.1}, "quoted": True, "not_runnable": "no weights"},
    ]
    laid_out = lay_out(collect(sweep({"scratch": 80.0}, {"data": ["cifar10"], "seed": [0]}, arms=arms)))
    assert accuracies(laid_out)["IN-1K"] == ["not runnable", "93.10†"]
    assert "† quoted by the paper from elsewhere" in main_table.table(laid_out).caption


def test_a_spreadsheet_may_begin_with_an_arm_that_cannot_run(sweep):
    arms = [{"name": "in1k", "not_runnable": "no weights"}, {"name": "scratch"}]
    axes = {"optim.lr": [0.1, 0.2], "seed": [0]}
    lines = list(csv.DictReader(StringIO(spreadsheet.numbers(lay_out(collect(sweep({"scratch": 80.0}, axes, columns=None, arms=arms)))))))
    assert [(line["arm"], line["optim.lr"]) for line in lines] == [("in1k", ""), ("scratch", "0.1"), ("scratch", "0.2")]


def test_an_empty_sweep(sweep):
    make = {("ssat", "cifar10", 0): {"skip": True}}
    laid_out = lay_out(collect(sweep({"ssat": 1.0}, {"data": ["cifar10"], "seed": [0]}, make=make)))
    assert texts(main_table.table(laid_out)) == {"ssat": ["not begun (1)"]}
    assert spending.cost(laid_out).rows == spending.by_stage(laid_out).rows == []
    assert findings(laid_out) == {} and progress(laid_out.sweep) == "0 of 1 run is done; 1 not begun."


def test_a_matrix_of_two_axes(sweep):
    axes = {"pretrain": ["a", "b"], "target": ["x", "y"], "seed": [0]}
    top1 = {"sslft": lambda at: 80.0 + 5 * (at["pretrain"] == "b") + 2 * (at["target"] == "y")}
    laid_out = lay_out(
        collect(sweep(top1, axes, columns="target", baseline=None, arms=[{"name": "sslft", "published": {"b": {"y": 88.0}}}]))
    )
    assert accuracies(laid_out) == {
        "pretrain a": ["80.00 (1)", "82.00 (1)", DASH, DASH],
        "pretrain b": ["85.00 (1)", "87.00 (1)", "88.00", f"{MINUS}1.00"],
    }


@pytest.mark.parametrize("published, expected", [({"x": 3.0}, 3.0), (3.0, None), (None, None), ({"z": 3.0}, None)])
def test_a_published_number_must_name_its_column(sweep, published, expected):
    arms = [{"name": "ssat", "published": published}]
    laid_out = lay_out(collect(sweep({"ssat": 1.0}, {"data": ["x", "y"], "seed": [0]}, arms=arms)))
    assert laid_out.published(laid_out.rows[0], "x") == expected


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"pretrain": ["b"], "target": ["x", "y"]}, {"x": None, "y": 88.0}),
        ({"pretrain": ["a", "b"], "target": ["y"]}, {"y": 88.0}),
        ({"pretrain": ["b"], "target": ["y"]}, {"y": 88.0}),
        ({"pretrain": ["a"], "target": ["y"]}, {"y": None}),
    ],
)
def test_a_published_number_is_found_where_its_axes_are_narrowed(sweep, axes, expected):
    arms = [{"name": "sslft", "published": {"b": {"y": 88.0}}}]
    laid_out = lay_out(collect(sweep({"sslft": 80.0}, {**axes, "seed": [0]}, columns="target", baseline=None, arms=arms)))
    assert {column: laid_out.published(laid_out.rows[-1], column) for column in laid_out.columns} == expected


@pytest.mark.parametrize("targets", [["pets", "flowers"], ["pets"]])
def test_a_published_number_is_not_transposed_where_two_axes_have_the_same_labels(sweep, targets):
    published = {"pets": {"pets": 1.0, "flowers": 2.0}, "flowers": {"pets": 3.0, "flowers": 4.0}}  # target, then pretraining
    axes = {"target": targets, "pretrain": ["pets", "flowers"], "seed": [0]}
    laid_out = lay_out(
        collect(sweep({"sslft": 80.0}, axes, columns="target", baseline=None, arms=[{"name": "sslft", "published": published}]))
    )
    shown = {(target, row.values["pretrain"]): laid_out.published(row, target) for row in laid_out.rows for target in targets}
    assert shown == {(target, pretrain): published[target][pretrain] for target in targets for pretrain in ["pets", "flowers"]}


def test_other_readings_carry_their_name_only_there(sweep):
    done = {"selected": {"top1": 79.0, "epoch": 40}, "val": {"top1": 81.0}}
    make = {("ssat", "cifar10", 0): {"done": done}}
    laid_out = lay_out(collect(sweep({"ssat": 80.0}, {"data": ["cifar10"], "seed": [0]}, make=make)))
    table = evaluations.readings(laid_out)
    assert table.header == ["arm", "top-1 at the best validation epoch", "best top-1 on the TEST set"]
    assert texts(table) == {"ssat": ["79.00", "80.30"]}
    assert "80.30" not in str(texts(main_table.table(laid_out)))


def test_what_held_out_images_choose_is_told_in_the_terminal(sweep):
    axes, arms = {"data": ["cifar10"], "seed": [0, 1]}, {"ssat": 80.0, "sslft": 75.0}
    make = {("ssat", "cifar10", seed): {"done": {"selected": {"top1": 79.0 + seed, "epoch": 40}}} for seed in (0, 1)}
    said = " ".join(summary(sweep(arms, axes, make=make), width=200).split())
    assert "Test top-1 at the epoch that held-out images choose, which best.pt holds: ssat on cifar10 79.50 ± 0.71 %." in said
    assert "best.pt" not in summary(sweep(arms, axes), width=200)


@pytest.mark.parametrize("metric", ["top1", "loss", "balanced_accuracy"])
@pytest.mark.parametrize("told", ["top-1", "balanced accuracy"])
def test_epochs_are_told_by_the_sweeps_metric_where_it_is_known_of_all(sweep, metric, told):
    """Of runs of an earlier version it may not be."""
    of_seed = [{"top1": 79.0 + seed, "balanced_accuracy": 60.0 + 2 * seed} for seed in (0, 1)]
    if told == "top-1":
        del of_seed[1]["balanced_accuracy"]
    make = {("ssat", seed): {"done": {"selected": of_seed[seed]}} for seed in (0, 1)}
    folder = sweep({"ssat": 80.0}, {"seed": [0, 1]}, make=make, metric="test/balanced_accuracy")
    for path in folder.glob("ssat-train-*/run.yaml"):
        run = config.load(path.parent)
        run.data.val_metric = metric
        config.save(run, path.parent)
    laid_out = lay_out(collect(folder))
    how = {"top1": "", "loss": " by NLL", "balanced_accuracy": " by balanced accuracy"}[metric]
    shown = {"top-1": "79.50 ± 0.71", "balanced accuracy": "61.00 ± 1.41"}[told]
    said = f"Test {told} at the epoch that held-out images choose{how}, which best.pt holds: ssat {shown} %."
    assert said in " ".join(sentences(findings(laid_out)))
    table = evaluations.readings(laid_out)
    assert table.header[1] == f"{told} at the best validation epoch{how}" and texts(table)["ssat"][0] == shown


def test_of_many_models_what_held_out_images_choose_stands_in_a_table(sweep):
    names = [str(n) for n in range(6)]
    done = {("ssat", name, 0): {"done": {"selected": {"top1": 79.0, "epoch": 40}}} for name in names}
    told = sentences(findings(lay_out(collect(sweep({"ssat": 80.0}, {"data": names, "seed": [0]}, make=done)))))
    assert any(line.endswith("which best.pt holds: see the table “Other readings of the same runs”.") for line in told)


def test_the_sweeps_metric_may_be_of_averaged_weights(sweep):
    make = {("ssat", "cifar10", 0): {"done": {"test_ema": {"top1": 81.5}}}}
    folder = sweep({"ssat": 80.0}, {"data": ["cifar10"], "seed": [0]}, make=make, metric="top1_ema")
    assert accuracies(lay_out(collect(folder)))["ssat"] == ["81.50 (1)"]


def test_the_sweeps_metric_may_be_of_the_epoch_that_held_out_images_choose(sweep):
    """The other figures of the page are then of that epoch too, and the last one's are another reading."""
    epochs = {"ssat": {"top1": 82.0, "macro_f1": 70.0, "epoch": 40.0}, "sslft": {"top1": 76.5, "macro_f1": 71.5, "epoch": 10.0}}
    make = {(arm, "cifar10", 0): {"done": {"selected": found, "val": {"top1": 81.0}}} for arm, found in epochs.items()}
    folder = sweep({"ssat": 80.0, "sslft": 75.0}, {"data": ["cifar10"], "seed": [0]}, make=make, metric="selected/top1", baseline="sslft")
    laid_out = lay_out(collect(folder))
    assert accuracies(laid_out) == {"ssat": ["82.00 (1)"], "sslft": ["76.50 (1)"]}
    assert "at the epoch that held-out images choose: mean ± standard deviation" in main_table.table(laid_out).caption
    assert laid_out.against_baseline(laid_out.rows[0], "cifar10").mean == 5.5
    table = evaluations.readings(laid_out)
    assert table.header[:2] == ["arm", "top-1 after the last epoch"] and texts(table)["ssat"][0] == "80.00"
    others = evaluations.differences(laid_out)
    assert texts(others) == {"ssat": [f"{MINUS}1.50"]} and others.header == ["arm", "macro F1 %"]
    assert "which best.pt holds" not in " ".join(sentences(findings(laid_out)))
    runs = details.runs(laid_out.sweep)
    assert runs.header[4] == "selected top-1 %" and [row[4].text for row in runs.rows if row[0].text.startswith("ssat")] == ["82.00"]


def test_csv_is_unrounded_and_tidy(grid_3):
    lines = list(csv.DictReader(StringIO(spreadsheet.numbers(grid_3))))
    assert len(lines) == 12
    chain = next(line for line in lines if line["arm"] == "sslft_50_50" and line["data"] == "cifar100")
    assert float(chain["top1_mean"]) == pytest.approx(59.53) and float(chain["top1_std"]) == pytest.approx(0.1)
    assert float(chain["minus_paper"]) == pytest.approx(-0.9) and float(chain["minus_baseline"]) == pytest.approx(5.32)
    assert chain["activations_inference"] == "14250000"
    assert (chain["macs_train_forward_pretrain"], chain["macs_train_forward"]) == ("425600000", "1258219584")
    assert float(chain["kg_co2e_tracked"]) == pytest.approx(0.1)


def test_latex_escapes_and_sets_the_papers_numbers_apart(grid_3):
    text = latex.paper(grid_3, ["accuracy", "paper", "difference"])
    assert r"(2) SSL+FT & 85.58 $\pm$ 0.10 & \textit{86.48} & $-$0.90" in text
    assert r"\textbf{90.75 $\pm$ 0.10}" in text
    assert r"\multicolumn{1}{c}{} & \multicolumn{3}{c}{cifar10} & \multicolumn{3}{c}{cifar100} \\" in text
    assert r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}" in text
    assert text.count("\\\\\n") == 2 + 6  # both lines of the header, six arms


def test_settings_tell_the_stages_apart(grid_3):
    table, shared = settings(grid_3)
    rows = texts(table)
    assert table.header[1:4] == ["Scratch", "(1) SSL+FT: pretrain", "(1) SSL+FT: finetune"]
    assert rows["effective batch"][0] == "64 (1 process)"
    assert rows["network"][0] == "vit_tiny, embed_dim 192, depth 12, num_heads 3, mlp_ratio 4, patch_size 16"
    assert rows["learning rate, scaled peak"][0] == "0.00025 (0.001, batch/256)"  # 0.001 x 64 / 256
    assert rows["loop.epochs"][:3] == ["100", "50", "50"]
    assert rows["objectives.mae.weight"] == [DASH, *["1", DASH] * 4, "0.9"]
    # of stages that have the objective: the others are told by its weight
    assert "objectives.mae.mask_ratio" not in rows and shared["objectives.mae.mask_ratio"] == "0.75"
    assert rows["objectives.mae.decoder_depth"] == [DASH, *["8", DASH] * 4, "2"]
    assert shared["backbone.name"] == "vit_tiny" and "seed" not in shared and not any("shards" in k for k in shared)


def test_a_view_that_some_have_is_a_row_and_not_one_for_each_of_its_fields(sweep):
    own = {"scratch": {}, "lut": {"data.views.second": {}}, "dino": {"data.views.second.scale": [0.4, 1.0]}}
    stages = {name: [("train", {"objectives.classify": {}, **fields})] for name, fields in own.items()}
    table, shared = settings(lay_out(collect(sweep(dict.fromkeys(own, 80.0), {"seed": [0]}, stages=stages, columns=None))))
    rows = {name: line for name, line in texts(table).items() if name.startswith("data.views.second")}
    assert rows == {"data.views.second": ["off", "on", "on"], "data.views.second.scale": [DASH, "0.08, 1", "0.4, 1"]}
    assert shared["data.views.second.hflip"] == "0.5"


def test_settings_name_the_columns_that_differ(sweep):
    """A batch of 64 on one column and of 512 on the other; the rates are 0.001 x 64 / 256 and 0.001 x 512 / 256."""
    folder = sweep({"scratch": 80.0, "ssat": 90.0}, {"data": ["cifar10", "imagenet"], "seed": [0]})
    for arm in ("scratch", "ssat"):
        path = folder / f"{arm}-train-imagenet-0" / "run.yaml"
        run = json.loads(path.read_text())
        run["optim"]["batch_size"] = 512
        path.write_text(json.dumps(run))
    table, shared = settings(lay_out(collect(folder)))
    rows = texts(table)
    assert rows["learning rate, scaled peak"] == ["cifar10: 0.00025 (0.001, batch/256); imagenet: 0.002 (0.001, batch/256)"] * 2
    assert shared["optim.batch_size"] == "cifar10: 64; imagenet: 512" and shared["optim.lr"] == "0.001"


def test_settings_show_colours_as_steps(sweep):
    jitter, one_of = {"jitter": {"strength": [0.4, 0.4, 0.2, 0.1], "prob": 0.8}}, {"one_of": ["gray", "solarize", {"blur.prob": 0.5}]}
    fields = {"scratch": {}, "lut": {"data.views.main.color": [jitter, {"gray.prob": 0.2}, one_of]}}
    stages = {name: [("train", {"objectives.classify": {}, **own})] for name, own in fields.items()}
    folder = sweep(dict.fromkeys(fields, 80.0), {"seed": [0]}, stages=stages, columns=None)
    shown = "jitter 0.4 0.4 0.2 0.1 (p 0.8), gray (p 0.2), one of (gray, solarize 128, blur 0.1 2 (p 0.5))"
    assert texts(settings(lay_out(collect(folder)))[0])["data.views.main.color"] == ["none", shown]


def test_a_setting_that_is_empty_says_so(sweep):
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0]}, columns=None)
    for arm, value in (("scratch", ""), ("ssat", "rand-m9")):
        path = folder / f"{arm}-train-0" / "run.yaml"
        run = json.loads(path.read_text())
        run["data"]["views"]["main"]["auto_augment"] = value
        path.write_text(json.dumps(run))
    assert texts(settings(lay_out(collect(folder)))[0])["data.views.main.auto_augment"] == ["none", "rand-m9"]


def test_a_field_that_a_run_yaml_lacks_is_shown_at_its_default(sweep):
    folder = sweep({"scratch": 80.0, "ssat": 90.0}, {"seed": [0]}, columns=None)
    path = folder / "ssat-train-0" / "run.yaml"
    run = json.loads(path.read_text())
    del run["data"]["views"]["main"]["erasing_mode"]
    path.write_text(json.dumps(run))
    assert settings(lay_out(collect(folder)))[1]["data.views.main.erasing_mode"] == "pixel"


def test_provenance_names_what_was_used(table_3):
    entries = provenance(lay_out(collect(table_3(dirty=True))))
    assert entries["commit"] == "0123456789abcdef with uncommitted changes"
    assert entries["hardware"] == "NVIDIA RTX A5000, 1 process"
    assert entries["grid"] == "DEU, 0.4 kg CO2e/kWh"
    assert entries["CPU power"] == "modelled from its TDP and load (no meter) (codecarbon 3.3.2)"
    assert entries["share of the node"] == "50% of its CPU and RAM energy"


def test_sentences_follow_from_the_numbers(grid_3):
    lines = sentences(findings(grid_3))
    assert lines[0] == "cifar10: The best arm by top-1 is Ours: 90.75 ± 0.10 % (3 seeds), +12.18 in each seed against Scratch."
    assert lines[2] == ("cifar10: For now take Ours, the best. Worse: (4) SSL+FT, (2) SSL+FT, (1) SSL+FT, (3) SSL+FT and Scratch.")
    exact = "cifar100: Training takes from 0.67x ((1) SSL+FT) to 1.34x (Ours) the multiply-adds of Scratch"
    assert any(line.startswith(exact) for line in lines)
    assert any(line.startswith("The mean absolute difference from the paper's numbers is 0.90 points") for line in lines)
    assert lines[-1] == "The whole sweep, each run counted once, took 36.0 GPU-hours, 9.00 kWh and 3.60 kg CO2e, 18.0 EUR."


def test_a_grid_that_nobody_chose_is_said(table_3):
    sweep = collect(table_3())
    for run in sweep.runs.values():
        run.site.country = Site.country
    total = next(line for line in sentences(findings(lay_out(sweep))) if line.startswith("The whole sweep"))
    assert (
        " CO2e (assuming the grid of the default country, USA; repeating the command with site.country=DEU changes it and trains nothing), "
        in total
    )


def test_a_grid_that_is_named_later_is_that_of_all_runs_that_named_none(table_3):
    """The runs of another site keep theirs of 0.4 kg."""
    folder = table_3(site=SITE | {"country": "FRA", "intensity_kg_per_kwh": 0.1})
    told = collect(folder)
    assert all(run.spent["co2e_kg"] == pytest.approx(0.4 * run.spent["energy_kwh"]) for run in told.runs.values())
    jobs = sorted(folder.glob("*/job.json"))
    for path, site in zip(jobs, [{"name": "elsewhere"}, *[{}] * len(jobs)], strict=False):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"site": content["site"] | {"country": Site.country} | site}))
    made = collect(folder)
    other, *runs = [made.runs[path.parent] for path in jobs]
    assert other.spent["co2e_kg"] == pytest.approx(0.4 * other.spent["energy_kwh"])
    assert all(run.spent["co2e_kg"] == pytest.approx(0.1 * run.spent["energy_kwh"]) for run in runs)
    assert {record["intensity_kg_per_kwh"] for run in runs for record in run.emissions} == {0.1}
    assert " CO2e (on the grid that the last command named, FRA: 0.1 kg CO2e/kWh), " in next(
        line for line in sentences(findings(lay_out(made))) if "whole sweep" in line
    )


@pytest.mark.parametrize(
    "value, text",
    [(None, DASH), (0.0, "0"), (0.05, "0.0500"), (1.0, "1.00"), (104, "104"), (1234.5, "1,230"), (12.345, "12.3"), (999.7, "1,000")],
)
def test_three_significant_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([{"pool": "mean", "hidden_dim": 768, "activation": None}], "pool=mean hidden_dim=768"),
        ([{"jitter": {"strength": [0.4, 0.1], "prob": 0.8}, "gray": None}], "jitter 0.4 0.1 (p 0.8)"),
        ([{"one_of": [{"gray": {"prob": 1.0}}, {"blur": {"sigma": [0.1, 2.0], "prob": 1.0}}]}], "one of (gray, blur 0.1 2)"),
    ],
)
def test_a_list_of_parts_reads_as_one_would_write_it(value, text):
    assert _text(value) == text


def test_every_pair_of_arms_is_there_where_there_are_few(sweep):
    top1 = {"scratch": 70.0, "sslft": lambda at: 80.0 + at["seed"], "ssat": lambda at: 90.0 + 2 * at["seed"]}
    folder = sweep(top1, {"seed": [0, 1, 2]}, columns=None)
    grid = lay_out(collect(folder))
    table, p_values = differences.pairs(grid)
    assert p_values.rows[2][1].text == p_text(corrected(grid, None)[frozenset(grid.rows[::2])]) and p_values.rows[0][1].text == DASH
    scratch, sslft, ssat = ([entry.text for entry in line[1:]] for line in table.rows)
    assert scratch[0] == sslft[1] == ssat[2] == DASH and table.header == ["arm", "scratch", "sslft", "ssat"]
    assert ssat[0] == str(grid.against_baseline(grid.rows[2], None)) and ssat[1].startswith("+11.00 [")
    assert sslft[2] == ssat[1].replace("+11.00", "\N{MINUS SIGN}11.00").replace(
        "[+8.52, +13.48]", "[\N{MINUS SIGN}13.48, \N{MINUS SIGN}8.52]"
    )
    text = report.write(folder).read_text()
    assert "Arms against each other" in text and "p-values after Holm" in text
    two = sweep({"scratch": 70.0, "ssat": 80.0}, {"seed": [0, 1, 2]}, columns=None, name="two")
    assert differences.pairs(lay_out(collect(two))) == [], "the difference from the baseline is all"


def test_a_paper_has_what_a_table_of_several_columns_has_no_room_for(sweep):
    """Labels of their own; a chosen column leaves them out."""
    grid = lay_out(collect(sweep({"scratch": 80.0, "ssat": lambda at: 82.0 + at["seed"]}, {"data": ["a", "b"], "seed": [0, 1, 2]})))
    text = latex.paper(grid)
    assert re.findall(r"\\label\{(.*?)\}", text) == ["tab:study", "tab:study-differences", "tab:study-cost"]
    assert (
        "difference from scratch, in brackets 95 \\% intervals (paired over seeds, not corrected for multiple comparisons)." in text
        and text.count("ssat & ") == 4
        and "1.34x" in text
    )
    assert latex.paper(grid, ["accuracy"]).count("label{") == 1


def test_a_report_warns_of_runs_that_different_code_trained(sweep):
    folder = sweep({"scratch": 70.0, "ssat": 80.0}, {"seed": [0, 1]})
    (first, *_) = sorted(folder.glob("*/job.json"))
    for name, code in {"0123456789ab": "1", "ba9876543210": "2"}.items():
        for file in ("vitssl/objectives/mae.py", "vitssl/report/units.py", "jobs/submit.py"):
            (folder / "source" / name / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name / file).write_text(code)
    assert not details.warnings(lay_out(collect(folder)))
    first.write_text(first.read_text().replace("0123456789ab", "ba9876543210"))
    said = "not all of these runs were trained by the same code: it differs in vitssl/objectives/mae.py"
    assert details.warnings(lay_out(collect(folder))) == {said: "Provenance"}
    assert f"Warning: {said}." in " ".join(summary(folder, width=200).split())
    report.write(folder)
    page = (folder / "report" / "report.html").read_text()
    assert f'{said}: <a href="#provenance">' in page and 'id="provenance"' in page
    assert f"{said}: see [Provenance](#provenance)." in (folder / "report" / "report.md").read_text()
    # one run, by one code after the other
    job = json.loads(first.read_text().replace("ba9876543210", "0123456789ab"))
    earlier = [{"source": "/elsewhere/source/ba9876543210", "commit": "old", "dirty": True}]
    first.write_text(json.dumps(job | {"commit": "new", "dirty": False, "earlier_sources": earlier}))
    grid = lay_out(collect(folder))
    assert details.warnings(grid) == {said: "Provenance"}
    entries = provenance(grid)
    assert entries["commit"] == "old with uncommitted changes; new"
    moved = "; ".join(str(folder / "source" / name) for name in ("ba9876543210", "0123456789ab"))
    assert entries["source snapshot"] == moved, "not where they were recorded"
    assert entries["last submitted"].endswith(" (commit 0123456789abcdef)")
    shutil.rmtree(folder / "source" / "ba9876543210")
    gone = "not all of these runs were trained by the same commit, and a snapshot of the code is gone, so it cannot be compared"
    assert details.warnings(lay_out(collect(folder))) == {gone: "Provenance"}
    assert provenance(lay_out(collect(folder)))["source snapshot"].startswith("/elsewhere/source/ba9876543210; ")
    (first.parent / "done.json").unlink()
    assert not details.warnings(lay_out(collect(folder)))
