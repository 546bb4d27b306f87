"""Costs against the baseline: exact ones first, measured ones where they may be believed, and what follows for a choice."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from pathlib import Path

import pytest

from vitssl.report.figures import pareto, plots
from vitssl.report.findings.advice import recommendation
from vitssl.report.findings.sentences import findings, headlines, sentences
from vitssl.report.pages import html, latex, spreadsheet
from vitssl.report.pages.sections import Report
from vitssl.report.results import costs, energy
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import lay_out
from vitssl.report.tables import main_table, spending

pytestmark = pytest.mark.usefixtures("without_plots")

AXES = {"seed": [0, 1, 2]}


@pytest.fixture
def grid(sweep, emissions_record):
    """`grid(hours of ssat, further fields of their records)`: scratch took an hour at every seed."""

    def made(hours=(2.0, 2.0, 2.0), top1=None, **fields):
        make = {("scratch", seed): {"records": [emissions_record(hours=1.0) | fields]} for seed in range(3)}
        make |= {("ssat", seed): {"records": [emissions_record(hours=h) | fields]} for seed, h in enumerate(hours)}
        return lay_out(collect(sweep(top1 or {"scratch": 80.0, "ssat": 90.0}, AXES, columns=None, make=make)))

    return made


def test_multiply_adds_come_first_and_measurements_with_their_spread(grid):
    """1.68 GMACs against 1.26, as many images; hours 1.9, 2.0 and 2.1 against 1."""
    said = costs.comparison(grid((1.9, 2.0, 2.1)), None)
    exact, energy, time = "1.34x (ssat) the multiply-adds of scratch", "2.00x ± 0.10 (ssat) the energy", "2.00x ± 0.10 (ssat) the time"
    assert said == f"Training takes {exact}; {energy}; {time}."
    assert costs.comparison(grid((1.9, 2.0, 2.1), gpus=0, cpu_power_source="rapl"), None) == said
    assert costs.comparison(grid((1.9, 2.0, 2.1), gpus=0), None) == f"Training takes {exact}; {time}.", "modelled, it is the time again"


def test_one_seed_has_no_spread():
    assert str(costs.Ratio(1.5)) == "1.50x" and str(costs.Ratio(1.5, 0.25)) == "1.50x ± 0.25"


def test_of_many_arms_the_lowest_and_the_highest_cost_are_named(sweep):
    top1 = {name: 80.0 for name in ("scratch", "ssat_a", "ssat_b", "sslft_a", "sslft_b", "ssat_c")}
    said = costs.comparison(lay_out(collect(sweep(top1, {"seed": [0]}, columns=None))), None)
    measured = "from 1.00x (ssat_a) to 1.00x (ssat_c) the energy; from 1.00x (ssat_a) to 1.00x (ssat_c) the time."
    assert said == f"Training takes from 0.67x (sslft_a) to 1.34x (ssat_c) the multiply-adds of scratch; {measured}"


def test_equal_runs_of_unequal_length_are_not_compared(grid):
    laid_out = grid((2.0, 2.0, 2.7))
    reason = "since one run of ssat took 1.4 times as long as an equal one."
    assert (
        costs.comparison(laid_out, None)
        == f"Training takes 1.34x (ssat) the multiply-adds of scratch. Energy and hours are not compared, {reason}"
    )
    assert costs.doubt(grid((2.0, 2.0, 2.5)), None) == ""


@pytest.mark.usefixtures("with_plots")
def test_a_table_says_that_its_hours_do_not_compare_the_arms_and_a_papers_leaves_them_out(grid):
    believed, doubted = grid((2.0, 2.0, 2.5)), grid((2.0, 2.0, 2.7))
    warning = "Measured hours and energy are not comparable between arms"
    assert main_table.table(doubted).caption.endswith(f"forward and backward. {warning}.")
    assert warning not in main_table.table(doubted, ["accuracy", "training_macs"]).caption
    assert f"{warning}: one run of ssat took 1.4 times as long as an equal one." in spending.cost(doubted).caption, "the reason stands once"
    assert f"{warning}." in plots.draw(doubted)["energy_by_component"][0]
    assert "do not compare" not in spending.cost(believed).caption + plots.draw(believed)["energy_by_component"][0]
    assert latex.for_paper(believed)[0].header[-2:] == ["Wh", "g CO2e"] and "compare" not in main_table.table(believed).caption
    paper, caption = latex.for_paper(doubted)
    assert paper.header == ["arm", "top-1 %", "against scratch", "TMACs of training"] and caption.endswith("; costs of training one model.")
    paper, caption = latex.for_paper(doubted, ["accuracy", "kwh"])
    assert paper.header[-1] == "Wh" and caption.endswith("; measured hours and energy are not comparable between arms.")


def test_a_cpu_that_worked_on_other_things_is_not_compared(grid):
    cpu = {"gpus": 0, "cores": 4, "other_cpu_time_s": 1800.0}
    assert costs.doubt(grid((1.0, 1.0, 1.0), cpu_time_s=3000.0, **cpu), None) == ""
    busy = grid((1.0, 1.0, 1.0), cpu_time_s=1800.0, **cpu)
    assert costs.doubt(busy, None) == "the CPU worked on a model of scratch for only 50% of its training time"


def test_threads_that_other_work_leaves_no_core_to_are_not_compared(grid):
    """Two spinning threads on one core work all the time: the default is two of them, on a machine of two cores."""
    crowded = grid((1.0, 1.0, 1.0), gpus=0, cores=2, cpu_time_s=3600.0, other_cpu_time_s=3600.0)
    assert costs.doubt(crowded, None) == "other programs took 50% of the cores meant for training scratch"


def test_threads_without_a_core_and_cores_without_a_thread_are_nobodys_work(grid):
    """The Runs have two threads."""
    alone = {"gpus": 0, "cpu_time_s": 3600.0}
    assert costs.doubt(grid((1.0, 1.0, 1.0), cores=1, other_cpu_time_s=0.0, **alone), None) == ""
    assert costs.doubt(grid((1.0, 1.0, 1.0), cores=4, other_cpu_time_s=7200.0, **alone), None) == ""
    said = costs.doubt(grid((1.0, 1.0, 1.0), cores=4, other_cpu_time_s=10800.0, **alone), None)
    assert said == "other programs took 50% of the cores meant for training scratch"


def test_other_work_leaves_no_less_than_no_core(grid):
    """Two clocks that are read one after the other may find more work than there are cores."""
    crowded = grid((1.0, 1.0, 1.0), gpus=0, cores=2, cpu_time_s=3600.0, other_cpu_time_s=7400.0)
    assert costs.doubt(crowded, None) == "other programs took 100% of the cores meant for training scratch"


def test_the_page_on_costs_names_all_that_speaks_against_a_comparison():
    text = " ".join((Path(costs.__file__).parents[2] / "docs" / "costs.md").read_text().split())
    assert f"differ by more than a factor of {costs.MAX_HOURS_RATIO};" in text
    assert f"a CPU worked on the training for less than {100 * costs.MIN_CPU_SHARE:.0f} % of its time;" in text
    assert f"other work left it less than {100 * costs.MIN_CORES_LEFT:.0f} % of the cores" in text
    assert f"shares of their nodes that differ by more than a factor of {costs.UNEQUAL}." in text


def test_runs_on_cpus_that_were_charged_unequal_shares_of_a_node_are_not_compared(sweep, emissions_record):
    """One arm ran beside another, one alone; on GPUs such shares are of the smaller part of the energy."""

    def made(**fields):
        shares = {"scratch": 0.5, "ssat": 1.0}
        make = {(arm, 0): {"records": [emissions_record(node_share=share, **fields)]} for arm, share in shares.items()}
        return lay_out(collect(sweep({"scratch": 80.0, "ssat": 90.0}, {"seed": [0]}, columns=None, make=make)))

    alone, on_gpus = made(gpus=0), made()
    assert costs.doubt(alone, None) == "runs on CPUs had from 50% to 100% of their node, and were charged that part of its energy"
    assert "not comparable between arms: runs on CPUs had from" in spending.cost(alone).caption
    assert costs.doubt(on_gpus, None) == ""
    for grid in (alone, on_gpus):
        assert "; CPU and memory energy are each job's share of its node's (50 % and 100 %)." in energy.tracked(grid.sweep)


def test_a_gpu_may_wait_for_nothing_of_a_cpu(grid):
    assert costs.doubt(grid((1.0, 1.0, 1.0), cpu_time_s=10.0, cores=2, other_cpu_time_s=0.0), None) == ""


def test_equal_networks_share_the_speed_of_the_fastest_measurement(sweep):
    """One of 600 that is evenly disturbed has the least spread."""
    speeds = {("scratch", 0): (1000.0, 0.5), ("ssat", 0): (1500.0, 0.02), ("scratch", 1): (600.0, 2e-5), ("ssat", 1): (1400.0, 0.2)}
    make = {place: {"cost": {"inference_images_per_s": v, "inference_spread": s}} for place, (v, s) in speeds.items()}
    make["ssat", 1]["cost"]["macs_inference"] = 7
    laid_out = lay_out(collect(sweep({"scratch": 80.0, "ssat": 90.0}, {"seed": [0, 1]}, columns=None, make=make)))
    cells = {(cell.arm, cell.axes["seed"]): cell for row in laid_out.rows for cell in row.cells}
    assert {costs.images_per_s(laid_out, cells[place]) for place in list(speeds)[:3]} == {(1500.0, 0.02)}
    assert costs.images_per_s(laid_out, cells["ssat", 1]) == (1400.0, 0.2)  # another network
    lines = csv.DictReader(io.StringIO(spreadsheet.numbers(laid_out)))
    assert {line["arm"]: float(line["inference_images_per_s"]) for line in lines} == {"scratch": 1500.0, "ssat": 1500.0}


def noisy(mean: float, spread: float):
    return lambda at: mean + spread * (at["seed"] - 1)


def test_the_cheapest_arm_that_may_be_as_good_is_what_to_take(grid):
    close = grid(top1={"scratch": noisy(89.8, -1.0), "ssat": noisy(90.0, 1.0)})
    assert recommendation(close, None).startswith("For now take scratch if cost matters (its training takes 0.75x the multiply-adds")
    clear = grid(top1={"scratch": noisy(80.0, 1.0), "ssat": noisy(90.0, 1.0)})
    assert recommendation(clear, None) == ("For now take ssat, the best. Worse: scratch.")
    assert any(line.startswith(recommendation(clear, None)) for line in sentences(headlines(clear)))
    cheap = grid(top1={"scratch": noisy(95.0, 1.0), "ssat": noisy(90.0, 1.0)})
    assert recommendation(cheap, None) == ("For now take scratch, the best. Worse: ssat.")


def test_of_arms_that_cost_the_same_none_is_for_those_who_save(grid):
    made = grid(top1={"scratch": noisy(89.8, -1.0), "ssat": noisy(90.0, 1.0)})
    for row, factor in zip(made.rows, (1.0, 0.75), strict=True):
        for cell in row.cells:
            cell.last.cost["macs_train_step"] *= factor
    assert recommendation(made, None) == "For now take ssat, the best mean."
    (axis, *_) = pareto.against(made, "accuracy_vs_macs")[1].axes
    low, high = axis.get_xlim()
    spent = [container[0].get_xdata()[0] for container in axis.containers]
    assert all(low + 0.2 * (high - low) < x < high - 0.2 * (high - low) for x in spent), "in the middle, and not at the edge"


def test_a_cheaper_arm_that_the_test_images_would_choose_is_not_recommended(sweep):
    """Of two settings of scratch, neither of which leads."""
    scores = {"scratch": noisy(89.8, -1.0), "scratch_slow": noisy(89.7, -1.0), "ssat": noisy(90.0, 1.0)}
    folder = sweep(scores, AXES, columns=None)
    for run in folder.glob("scratch_slow-*"):
        content = json.loads((run / "run.yaml").read_text())
        content["optim"]["lr"] = 5.0
        (run / "run.yaml").write_text(json.dumps(content))
    laid_out = lay_out(collect(folder))
    assert [row.arm.name for row in laid_out.ranking(None)][:1] == ["ssat"] and recommendation(laid_out, None) == ""


def test_two_seeds_recommend_nothing(sweep):
    laid_out = lay_out(collect(sweep({"scratch": noisy(80.0, 1.0), "ssat": noisy(90.0, 1.0)}, {"seed": [0, 1]}, columns=None)))
    assert recommendation(laid_out, None) == ""


def test_equal_epochs_and_equal_cost_have_a_table_each(sweep):
    equal = {"all": None, "axes": {"cost": {"equal MACs": {"quantity": "macs", "reference": "ssat"}}}}
    score = {
        "scratch": lambda at: {"equal epochs": 80.0, "equal MACs": 85.0}[at["cost"]] + at["seed"],
        "ssat": lambda at: 83.0 + at["seed"],
    }
    axes = {"cost": ["equal epochs", "equal MACs"], "seed": [0, 1]}
    laid_out = lay_out(collect(sweep(score, axes, columns=None, equal=equal)))
    parts = laid_out.parts
    tables = [main_table.table(part) for part in parts]
    assert [table.title for table in tables] == ["Comparison of arms at equal epochs", "Comparison of arms at equal MACs"]
    assert [[row[0].text for row in table.rows] for table in tables] == [["scratch", "ssat"]] * 2
    assert [table.rows[1][2].text.split()[0] for table in tables] == ["+3.00", "\N{MINUS SIGN}2.00"]  # against scratch of the same table
    said = sentences(findings(laid_out))
    assert any(line.startswith("equal epochs: 2 seeds are too few to tell ssat and scratch apart") for line in said)
    assert any(line.startswith("equal MACs: 2 seeds are too few to tell scratch and ssat apart") for line in said)
    page = html.html(Report(laid_out, {}, {}))
    assert page.count("<h2>Comparison of arms at equal") == 2
    assert "ssat, equal MACs" in page and "cost equal" not in page.split("<main>")[1].split("Runs</h2>")[0]
    assert page.split("<h2>Cost</h2>")[1].split("</section>")[0].count("<table>") == 2  # names of rows are long
    tex = latex.paper(laid_out)
    assert re.findall(r"caption\{Top-1 \\% on the 10,000 test images of cifar10 at (.*?):", tex) == ["equal epochs", "equal MACs"]
    bodies = [part.split("midrule")[1] for part in tex.split(r"\end{tabular}")[:2]]
    assert [[line.split(" & ")[0] for line in body.splitlines() if "&" in line] for body in bodies] == [["scratch", "ssat"]] * 2


@pytest.mark.parametrize("baseline", [None, "scratch"])
def test_costs_that_cannot_be_compared_are_not_in_the_tables_for_a_paper(sweep, emissions_record, baseline):
    make = {("scratch", "cifar10", 0): {"records": [emissions_record(hours=5.0)]}}
    axes = {"data": ["cifar10", "cifar100"], "seed": [0, 1]}
    tex = latex.paper(lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, axes, make=make, baseline=baseline))))
    costs = tex.split("Cost of training one model")[1]
    assert "MACs of" in costs and "hours" not in costs and "kWh" not in costs


def test_a_sweep_of_equal_cost_says_so(sweep):
    equal = {"all": {"quantity": "kwh", "reference": "ssat"}, "axes": {}}
    laid_out = lay_out(collect(sweep({"scratch": 80.0, "ssat": 90.0}, AXES, columns=None, equal=equal)))
    assert "Every arm trains for the same energy as ssat." in main_table.table(laid_out).caption


def test_a_short_stage_that_was_disturbed_costs_its_model_little(grid):
    """Of a chain all of the time counts: one of two cores for a tenth of it, where there are two threads, is a twentieth."""
    quiet = grid((1.0, 1.0, 1.0), gpus=0, cores=2, cpu_time_s=3600.0, other_cpu_time_s=0.0).rows[0].columns[None][0].last
    record = quiet.emissions[0] | {"duration_s": 400.0}
    disturbed = dataclasses.replace(quiet, emissions=[record | {"other_cpu_time_s": 400.0}])
    assert costs.cores_left([disturbed]) == pytest.approx(0.5) and costs.cores_left([quiet, disturbed]) == pytest.approx(0.95)
