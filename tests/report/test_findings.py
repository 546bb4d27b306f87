"""What a report begins with, epochs that arms compare at, and what may not be called the best."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

from jobs.plan import overrides
from jobs.plan import sweep as sweep_file
from jobs.plan.cells import cells
from tests.report.conftest import data_facts
from tests.shipped import SWEEPS
from vitssl import report
from vitssl.config import Run, merge
from vitssl.config.methods import METHODS
from vitssl.report.figures import plots
from vitssl.report.findings.advice import next_steps
from vitssl.report.findings.sentences import findings, further, headlines, progress, sentences
from vitssl.report.results import schedule
from vitssl.report.results.collect import Cell, RunFolder, Sweep, collect
from vitssl.report.results.energy import statement
from vitssl.report.results.grid import lay_out
from vitssl.report.results.hyperparameters import fields_between_arms, is_setting, sets_hyperparameters
from vitssl.report.results.schedule import images_learned, images_seen, labels_shown, training_macs
from vitssl.report.tables import main_table

pytestmark = pytest.mark.usefixtures("without_plots")

THREE = {"scratch": 80.0, "sslft": 81.0, "ssat": lambda at: 82.0 + at["seed"]}
ROWS = [{"name": "scratch", "row": "Scratch"}, {"name": "sslft", "row": "SSL+FT"}, {"name": "ssat", "row": "SSAT"}]


def three(sweep, **kwargs) -> Path:
    return sweep(THREE, {"seed": [0, 1]}, **{"columns": None, "arms": ROWS, **kwargs})


def change(run: Path, **fields) -> None:
    """Fields of a run's loop."""
    content = json.loads((run / "run.yaml").read_text())
    content["loop"] |= fields
    (run / "run.yaml").write_text(json.dumps(content))


def rewrite(run: Path, change: dict) -> None:
    """Fields of a run.yaml, part by part."""
    content = json.loads((run / "run.yaml").read_text())

    def put(into: dict, fields: dict) -> None:
        for name, value in fields.items():
            if isinstance(value, dict) and isinstance(into.get(name), dict):
                put(into[name], value)
            else:
                into[name] = value

    put(content, change)
    (run / "run.yaml").write_text(json.dumps(content))


# ------------------------------------------------------------------------------------------------------------ headlines


def test_a_report_begins_with_the_best_arm_and_no_more_than_five_subjects(sweep, grid_3):
    grid = lay_out(collect(three(sweep)))
    first = headlines(grid)
    assert list(first) == ["Comparison", "What to add", "Cost", "Images seen", "In all"] and further(grid) == {}
    assert first["Comparison"][0].startswith("2 seeds are too few to tell ")
    assert first["Comparison"][0].endswith("; the best mean is that of SSAT: 82.50 ± 0.71 %, +2.50 against Scratch.")
    assert first["In all"][0].startswith("The whole sweep, each run counted once, took")
    assert len(headlines(grid_3)) == 5 and list(further(grid_3)) == ["Images seen", "In all"]


def test_of_many_columns_leads_are_counted(sweep):
    """Of one seed no arm leads, and of two it may be chance."""
    doubt = " The lead over the next arm may be chance."
    axes = {"data": ["a", "b", "c"], "seed": [0, 1]}
    folder = sweep({"scratch": lambda at: 80.0 + 3 * (at["data"] == "b"), "ssat": 82.0}, axes)
    assert headlines(lay_out(collect(folder)))["Comparison"] == [f"Best mean top-1: ssat in a and c; scratch in b.{doubt}"]
    make = {("scratch", "b", 1): {"state": "not begun"}}
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, axes, name="one", make=make)
    assert headlines(lay_out(collect(folder)))["Comparison"] == [f"Best mean top-1: ssat in a and c.{doubt}"]


@pytest.mark.parametrize("sets", [2, 3])
def test_a_difference_that_is_the_same_in_every_seed_is_no_chance_however_many_columns_there_are(sweep, sets):
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, {"data": ["a", "b", "c"][:sets], "seed": [0, 1, 2]})
    said = headlines(lay_out(collect(folder)))["Comparison"]
    assert said == ["Best mean top-1: ssat in a, b and c."] if sets == 3 else all("The best arm by top-1 is ssat" in line for line in said)


def test_leads_are_counted_at_equal_epochs_and_at_equal_cost(sweep):
    """Scratch leads where it costs as much, and there alone: on every set of images its rows at equal MACs have the best means of all."""
    equal = {"all": None, "axes": {"cost": {"equal epochs": None, "equal MACs": {"quantity": "macs", "reference": "ssat"}}}}
    axes = {"data": ["a", "b", "c"], "cost": ["equal epochs", "equal MACs"], "seed": [0, 1]}
    folder = sweep({"scratch": lambda at: 80.0 + 5 * (at["cost"] == "equal MACs"), "ssat": 82.0}, axes, equal=equal)
    grid = lay_out(collect(folder))
    doubt = "The lead over the next arm may be chance."
    leads = [f"equal epochs: Best mean top-1: ssat in a, b and c. {doubt}", f"equal MACs: Best mean top-1: scratch in a, b and c. {doubt}"]
    assert headlines(grid)["Comparison"] == leads


def test_where_a_lead_may_be_chance_is_said(sweep):
    spread = {("a", 0): 0.0, ("a", 1): 0.2, ("a", 2): 0.1}
    at_c = lambda at: 82.0 + (2 - 4 * (at["seed"] == 1)) * (at["data"] == "c") + spread.get((at["data"], at["seed"]), 0.0)  # noqa: E731
    folder = sweep({"scratch": lambda at: 80.0 + 0.1 * at["seed"], "ssat": at_c}, {"data": ["a", "b", "c"], "seed": [0, 1, 2]})
    said = headlines(lay_out(collect(folder)))["Comparison"]
    assert said == ["Best mean top-1: ssat in a, b and c. The lead over the next arm may be chance in c."]


def test_what_is_best_and_what_to_take_stand_first_at_two_costs_on_two_sets(sweep):
    equal = {"all": None, "axes": {"cost": {"equal epochs": None, "equal MACs": {"quantity": "macs", "reference": "ssat"}}}}
    axes = {"data": ["a", "b"], "cost": ["equal epochs", "equal MACs"], "seed": [0, 1, 2]}
    scratch = lambda at: 80.0 + 5 * (at["cost"] == "equal MACs") + 0.1 * at["seed"] ** 2  # noqa: E731
    first = headlines(lay_out(collect(sweep({"scratch": scratch, "ssat": lambda at: 82.0 + 0.1 * at["seed"]}, axes, equal=equal))))
    assert list(first)[:2] == ["Comparison", "What to take"] and len(first["Comparison"]) == len(first["What to take"]) == 4


def test_where_nothing_is_found_yet_it_says_how_far_the_sweep_got(sweep):
    folder = sweep({"scratch": 80.0}, {"seed": [0]}, columns=None, make={("scratch", 0): {"state": "not begun"}})
    grid = lay_out(collect(folder))
    assert headlines(grid) == {} and progress(grid.sweep) == "0 of 1 run is done; 1 not begun."


def test_seeds_that_share_a_draw_of_labels_are_said_to(sweep):
    folder = three(sweep)
    grid = lay_out(collect(folder))
    assert not any("draw" in line for line in sentences(findings(grid)))
    subset = {"fraction": None, "per_class": 3, "balanced": True, "seed": 0, "redraw": False}
    everything = subset | {"fraction": 1.0, "per_class": None}
    for run in folder.glob("*/run.yaml"):
        rewrite(run.parent, {"data": {"labels": everything}})
    assert not any("draw" in line for line in sentences(findings(lay_out(collect(folder)))))
    for run in folder.glob("*/run.yaml"):
        rewrite(run.parent, {"data": {"labels": subset}})
    told = "All seeds train on the same draw of labels (data.labels.seed), so the intervals do not cover its effect; "
    assert any(line.startswith(told) for line in sentences(findings(lay_out(collect(folder)))))
    for run in folder.glob("*/run.yaml"):
        rewrite(run.parent, {"data": {"labels": subset | {"redraw": True}}})
    assert not any("draw" in line for line in sentences(findings(lay_out(collect(folder)))))


# --------------------------------------------------------------------------------------------------------------- epochs


def test_equal_epochs_are_computed_from_the_runs(sweep):
    """2,000 images x 100 epochs; 50 + 50 in the chain."""
    assert images_seen(lay_out(collect(three(sweep)))) == "Equal epochs: every arm sees 200,064 images in training."


def test_what_arms_without_a_finished_run_see_is_called_planned(few):
    """What a diverged or stopped run had seen is less."""
    folder = few()
    for run in folder.glob("ssat-*"):
        change(run, epochs=4, max_steps=None, warmup_epochs=0)
        rewrite(run, {"data": {"labelled_batch_fraction": 0.25}})
        (run / "done.json").unlink()
    grid = lay_out(collect(folder))
    for said in (images_seen(grid), images_learned(grid), labels_shown(grid)):
        assert "SSAT" in said and said.endswith(" (planned for SSAT, not finished).")
    for done in folder.glob("*/done.json"):
        done.unlink()
    assert images_seen(lay_out(collect(folder))).endswith(" (planned; none has finished).")


def test_what_the_command_line_makes_unequal_is_not_called_equal(sweep):
    """loop.epochs=4 for every stage: 4 epochs against 4 + 4."""
    folder = three(sweep)
    for run in folder.glob("*-*"):
        change(run, epochs=4, warmup_epochs=0)
    said = images_seen(lay_out(collect(folder)))
    assert said == "Images seen in training differ: 8,000 (epochs: 4) for Scratch and SSAT; 16,000 (epochs: 4 + 4) for SSL+FT."
    assert not any("Equal epochs" in line for line in sentences(findings(lay_out(collect(folder)))))
    table = main_table.table(lay_out(collect(folder)))
    assert [row[table.header.index("epochs")].text for row in table.rows] == ["4", "4 + 4", "4"]


def test_arms_of_unequal_cost_are_told_how_to_be_of_equal_cost(sweep):
    """The dearest is SSAT."""
    folder = sweep({"scratch": 80.0, "ssat": lambda at: 82.0 + at["seed"]}, {"seed": [0, 1, 2]}, columns=None)
    advised = "'axes.cost={given epochs: {}, equal MACs: {equalize: macs, equal_to: ssat}}' for arms of equal cost"
    assert advised in next_steps(lay_out(collect(folder)))
    facts = json.loads((folder / "sweep.json").read_text()) | {"equal": {"all": {"quantity": "macs", "reference": "ssat"}, "axes": {}}}
    (folder / "sweep.json").write_text(json.dumps(facts))
    assert "equal cost" not in next_steps(lay_out(collect(folder))), "their costs are equal"
    rule = {"quantity": "macs", "reference": "ssat"}
    facts |= {"equal": {"all": None, "axes": {"cost": {"equal MACs": rule}}}, "axes": {**facts["axes"], "cost": ["equal epochs"]}}
    (folder / "sweep.json").write_text(json.dumps(facts))
    by_axis = "'axes.cost=[equal epochs,equal MACs]' for arms of equal cost"
    assert by_axis in next_steps(lay_out(collect(folder))), "the file has an axis for it"
    facts |= {"equal": {"all": None, "axes": {}}}
    (folder / "sweep.json").write_text(json.dumps(facts))
    for seed in (0, 1, 2):
        change(folder / f"ssat-train-{seed}", max_steps=10)
    assert "equal cost" not in next_steps(lay_out(collect(folder))), "equalize refuses runs that steps end"


def test_equality_is_of_images_and_not_of_epochs(sweep):
    """A pretraining on ten times the images, for a tenth of the epochs; and steps that end a run early."""
    folder = three(sweep)
    for seed in (0, 1):
        job = folder / f"sslft-pretrain-{seed}" / "job.json"
        job.write_text(job.read_text().replace('"train_images": 2000', '"train_images": 20000'))
        change(job.parent, epochs=5)
    assert "Equal epochs: every arm sees 200,000 images" in images_seen(lay_out(collect(folder)))
    for seed in (0, 1):
        change(folder / f"ssat-train-{seed}", max_steps=10)
    assert "640 (epochs: 0.32) for SSAT" in images_seen(lay_out(collect(folder)))


def test_columns_that_say_the_same_say_it_once(grid_3, sweep):
    assert images_seen(grid_3).count("Equal epochs") == 1
    folder = sweep(THREE, {"data": ["a", "b"], "seed": [0, 1]}, arms=ROWS)
    for run in folder.glob("*-b-*"):
        (run / "job.json").write_text((run / "job.json").read_text().replace('"train_images": 2000', '"train_images": 500'))
    said = images_seen(lay_out(collect(folder)))
    assert said == "a: Equal epochs: every arm sees 200,064 images in training. b: Equal epochs: every arm sees 50,048 images in training."


def test_epochs_have_three_digits():
    assert schedule.epochs(((0.32, 1.0), (20.0, 1.0), (143.7, 1.0), (1443.0, 1.0))) == "0.32 + 20 + 144 + 1,443"


def test_a_single_arm_is_compared_with_none(sweep):
    assert images_seen(lay_out(collect(sweep({"ssat": 80.0}, {"seed": [0]}, columns=None, baseline=None)))) == ""


OF_RUNS = re.compile(r"\d[\d,]* (\w+ )?(images|epochs|labels|neighbours|prototypes|pairs)|batch \d", re.IGNORECASE)


def test_notes_of_sweeps_leave_to_the_report_what_runs_say():
    """The command line may change it, and axes may be narrowed: epochs, images and seeds; of sweeps without a paper's table all sizes."""
    for path in SWEEPS:
        spec = sweep_file.read(path)
        for note in [*spec.notes, *(arm.note for arm in spec.arms.values() if arm.note)]:
            assert not note.lower().startswith(("equal epochs", "equal cost")), path.name
            assert not re.search(r"\bhere\b[^.]*\b(two|three|five|\d+) seeds", note, re.IGNORECASE), path.name
            assert spec.paper or not OF_RUNS.search(note), (path.name, note)


def test_training_macs_are_those_of_all_images_seen(sweep):
    """50 epochs are 500 steps of 64 images: 0.4256 and 1.2582 GMACs each in a forward, three times as many in a step."""
    folder = sweep({"sslft": 80.0}, {"seed": [0]}, columns=None, baseline=None)
    (cell,) = lay_out(collect(folder)).rows[0].cells
    assert training_macs(cell) == 3 * (425_600_000 + 1_258_219_584) * 32_000
    for path in folder.glob("*/cost.json"):
        costs = json.loads(path.read_text())
        path.write_text(json.dumps(costs | {"macs_train_step": 2 * costs["macs_train_forward"]}))
    (cell,) = lay_out(collect(folder)).rows[0].cells
    assert training_macs(cell) == 2 * (425_600_000 + 1_258_219_584) * 32_000


# ----------------------------------------------------------------------------------------------------- hyper-parameters


@pytest.fixture
def rates(sweep):
    axes = {"optim.lr": [1e-4, 1e-3], "seed": [0, 1]}
    return sweep({"scratch": lambda at: 80.0 + 1000 * at["optim.lr"], "ssat": 82.0}, axes, columns=None)


@pytest.mark.usefixtures("with_plots")
def test_no_value_of_an_unselected_hyper_parameter_is_named_the_best(rates):
    grid = lay_out(collect(rates))
    lines = sentences(findings(grid))
    assert not any("the best arm" in line for line in lines)
    (said,) = headlines(grid)["Not selected"]
    assert said.startswith("No best value of optim.lr is named, since choosing it on test images would bias the result;")
    assert said.endswith("set `select` in the sweep and data.val_fraction.")
    assert main_table.table(grid).best == set()
    caption, figure = plots.draw(grid)["accuracy_vs_macs"]
    assert caption.endswith("The Pareto front is not marked, since held-out images do not choose optim.lr.")
    assert not any(line.get_label() == "Pareto front" for line in figure.axes[0].lines)


NAMES = (
    "objectives.mae.mask_ratio", "finetune.optim.weight_decay", "loop.epochs", "pretrain.loop.epochs", "optim.batch_size",
    "backbone.drop_path", "data.views.main.mixup_alpha", "finetune.data.views.main.auto_augment", "backbone.masked_tokens.count",
)  # fmt: skip


@pytest.mark.parametrize("axis", NAMES)
def test_hyper_parameters_are_told_by_the_name_of_the_axis(sweep, axis):
    grid = lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {axis: [0.1, 0.5], "seed": [0, 1]}, columns=None)))
    assert grid.unselected_axes == [axis]


@pytest.mark.parametrize("axis", ["data.labels.fraction", "backbone.depth", "pretraining", "data.image_size", "init_from"])
def test_other_axes_are_compared(sweep, axis):
    grid = lay_out(collect(sweep({"scratch": 80.0, "ssat": lambda at: 82.0 + at[axis]}, {axis: [1, 2], "seed": [0, 1]}, columns=None)))
    assert grid.unselected_axes == [] and any("the best mean" in line for line in sentences(findings(grid)))


@pytest.mark.parametrize(
    ("change", "unselected"),
    [
        ({"objectives": {"mae": {"weight": 0.5}}}, ["setting"]),
        ({"optim": {"lr": 5.0}, "objectives": {"classify": {"weight": 0.3}}}, ["setting"]),
        ({"loop": {"epochs": 7}}, ["setting"]),
        ({"backbone": {"drop_path": 0.1}, "optim": {"lr": 5.0}}, ["setting"]),
        ({"optim": {"lr": 5.0}, "loop": {"threads": 1}, "data": {"workers": 1}}, ["setting"]),  # two that change no result
        ({"data": {"views": {"main": {"mixup_alpha": 0.8}}}}, ["setting"]),
        ({"loop": {"threads": 1}}, []),
        ({"objectives": {"mae": None}}, []),  # another method
        ({"backbone": {"frozen": True}, "optim": {"lr": 5.0}}, []),  # so is a linear probe
        ({"optim": {"lr": 5.0}, "backbone": {"name": "vit_small"}}, []),  # another network, with its rate
        ({"optim": {"lr": 5.0}, "data": {"labels": {"per_class": 3}}}, []),
        ({"optim": {"lr": 5.0}}, ["setting"]),
        ({"optim": {"lr": 5.0}, "data": {"val_seed": 3, "val_fraction": 0.1}}, ["setting"]),  # a seed beside a rate
        ({"data": {"val_seed": 3}}, []),
        ({"data": {"labels": {"per_class": 4, "seed": 1}}, "optim": {"lr": 5.0}}, []),
        ({"init_from": "timm:vit_tiny_patch16_224"}, []),
    ],
)
def test_hyper_parameters_are_told_by_what_a_labelled_axis_sets(sweep, change, unselected):
    """Seeds and paths differ too, and say nothing."""
    folder = sweep({"ssat": 80.0}, {"setting": ["a", "b"], "seed": [0, 1]}, columns=None, baseline=None)
    for run in folder.glob("ssat-train-b-*"):
        rewrite(run, change)
    assert lay_out(collect(folder)).unselected_axes == unselected


def test_an_axis_that_changes_no_arm_of_the_report_needs_no_selection(rates):
    grid = lay_out(collect(rates))
    grid.rows[:] = [row for row in grid.rows if row.values == grid.rows[0].values]
    for row in grid.rows:
        row.values.clear()
    assert grid.unselected_axes == []


def test_any_two_values_that_differ_in_hyper_parameters_make_an_axis_of_them(sweep):
    """The third value switches the method off, as lambda 1 of SSAT does."""
    folder = sweep({"ssat": 80.0}, {"lambda": [0.1, 0.5, 1.0], "seed": [0]}, columns=None, baseline=None)
    rewrite(folder / "ssat-train-0.5-0", {"objectives": {"mae": {"weight": 0.5}}})
    rewrite(folder / "ssat-train-1.0-0", {"objectives": {"mae": None}})
    assert lay_out(collect(folder)).unselected_axes == ["lambda"]


def test_of_columns_that_are_hyper_parameters_none_is_the_best(sweep):
    """Arms are compared at each value."""
    grid = lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, {"loop.epochs": [10, 20], "seed": [0, 1]}, columns="loop.epochs")))
    told = findings(grid)
    assert told["Not selected"][0].startswith("No best value of loop.epochs is named")
    assert told["Comparison"][0].startswith("epochs 10: 2 seeds are too few to tell ssat and scratch apart in top-1")


def test_epochs_that_equal_costs_ask_for_are_no_choice(sweep):
    equal = {"all": None, "axes": {"cost": {"equal epochs": None, "equal MACs": {"quantity": "macs", "reference": "ssat"}}}}
    axes = {"cost": ["equal epochs", "equal MACs"], "seed": [0, 1]}
    folder = sweep({"scratch": 83.0, "ssat": 82.0}, axes, columns=None, equal=equal)
    for run in folder.glob("scratch-train-equal MACs-*"):
        rewrite(run, {"loop": {"epochs": 130}})
    grid = lay_out(collect(folder))
    assert grid.unselected_axes == [] and grid.unranked_reason(None) == ""
    assert [len(part.ranking(None)) for part in grid.parts] == [2, 2]


SLOWER = {"optim": {"lr": 5.0}}
SCHEDULES = {"scratch": 80.0, "sslft_short": 84.0, "sslft_long": 85.0, "ssat": 82.0}


@pytest.fixture
def schedules(sweep):
    """Two chains that differ in how long they pretrain, or in other fields of it."""

    def make(change: dict, **kwargs) -> Path:
        folder = sweep(SCHEDULES | kwargs, {"seed": [0, 1, 2]}, columns=None)
        for run in folder.glob("sslft_short-pretrain-*"):
            rewrite(run, change)
        for run in folder.glob("sslft_*-finetune-*"):
            rewrite(run, {"init_from": str(run.parent / run.name.replace("finetune", "pretrain"))})
        return folder

    return make


@pytest.mark.usefixtures("with_plots")
def test_arms_that_differ_in_hyper_parameters_are_chosen_by_nothing(schedules):
    grid = lay_out(collect(schedules(SLOWER)))
    reason = "sslft_short and sslft_long differ only in hyper-parameters (optim.lr), which held-out images do not choose"
    assert headlines(grid)["Comparison"][0] == f"No best arm is named, since {reason}, and choosing on test images would bias the result."
    assert not any("the best arm" in line for line in sentences(findings(grid))) and main_table.table(grid).best == set()
    caption, figure = plots.draw(grid)["accuracy_vs_macs"]
    assert caption.endswith("no other arm is both cheaper and better by the means.")
    assert any(line.get_label() == "Pareto front" for line in figure.axes[0].lines)


def test_an_arm_that_beats_all_settings_of_another_is_named(schedules):
    assert "The best arm by top-1 is ssat" in headlines(lay_out(collect(schedules(SLOWER, ssat=86.0))))["Comparison"][0]


@pytest.mark.usefixtures("with_plots")
def test_arms_of_other_epochs_are_points_of_cost(schedules):
    """A schedule that leads is named as an arm of another method would be; beside a rate its epochs say nothing."""
    grid = lay_out(collect(schedules({"loop": {"epochs": 20, "warmup_epochs": 2}})))
    assert headlines(grid)["Comparison"][0].startswith("The best arm by top-1 is sslft_long") and main_table.table(grid).best == {(2, 1)}
    caption, figure = plots.draw(grid)["accuracy_vs_macs"]
    assert caption.endswith("by the means.") and any(line.get_label() == "Pareto front" for line in figure.axes[0].lines)
    both = lay_out(collect(schedules(SLOWER | {"loop": {"epochs": 20}})))
    assert both.unranked_reason(None).startswith("sslft_short and sslft_long differ only in hyper-parameters (optim.lr)")


@pytest.mark.parametrize(
    ("change", "choice"),
    [
        ({"objectives": {"mae": {"mask_ratio": 0.5}}}, True),
        ({"objectives": {"mae": {"mask_ratio": 0.6, "hide": "mask", "decoder": "pixel_shuffle", "loss": "l1"}}}, False),  # SimMIM
        ({"objectives": {"mae": {"fuse": True}}}, False),
        ({"objectives": {"locality": {"teacher": "elsewhere"}}}, False),
        ({"data": {"val_seed": 1}}, False),
        (SLOWER | {"data": {"val_seed": 1}}, True),
        ({"optim": {"name": "sgd"}}, True),  # a word, of no method
    ],
)
def test_arms_are_a_choice_where_they_are_of_one_method(schedules, change, choice):
    assert bool(lay_out(collect(schedules(change))).unranked_reason(None)) is choice


def test_what_held_out_images_choose_for_each_arm_is_no_choice_between_them(sweep):
    """Of arms that differ in epochs alone they choose different rates."""
    axes = {"optim.lr": [0.1, 0.2], "seed": [0, 1]}
    top1 = {"scratch": 80.0, "scratch_long": 82.0}
    make = {
        (arm, lr, seed): {"done": {"val": {"top1": 60.0 + lr * sign}}}
        for arm, sign in (("scratch", 1), ("scratch_long", -1)) for lr in (0.1, 0.2) for seed in (0, 1)
    }  # fmt: skip
    folder = sweep(top1, axes, columns=None, make=make, select=["optim.lr"])
    for run in folder.glob("*-train-*"):
        rewrite(run, {"optim": {"lr": float(run.name.split("-")[2])}})
    grid = lay_out(collect(folder))
    assert [row.columns[None][0].axes["optim.lr"] for row in grid.rows] == [0.2, 0.1]
    assert [row.arm.name for row in grid.ranking(None)][:1] == ["scratch_long"]


def test_no_two_methods_are_a_choice_of_hyper_parameters():
    """Of the table of what to type for the methods of papers; DeiT's networks are the default, and a probe's weights are a stage's."""
    arms = {}
    for method in METHODS:
        stages = method.fields.get("stages") or {"train": method.fields}
        runs = [(name, read(name, merge(Run, {"data.shards": "x"}, fields))) for name, fields in stages.items()]
        arms[method.title] = Cell(method.title, {}, runs)
    pairs = {(a, b): fields_between_arms(arms[a], arms[b]) for a, b in combinations(arms, 2)}
    assert len(pairs) > 100 and [names for names, fields in pairs.items() if is_setting(fields)] == []


OF_SWEEPS = {  # of all axes of all sweeps those of hyper-parameters; the others are data, labels, networks, protocols, equal costs
    "drloc_in100_epochs": ["epochs"],
    "gmml_longer": ["pretrain.loop.epochs"],
    "lut_transfer": ["finetune.optim.lr", "finetune.optim.weight_decay"],  # held-out images choose these
    "mt_granularity": ["masked_tokens"],
    "ssat_epochs": ["loop.epochs"],
    "ssat_lambda": ["lambda"],
}
OTHERS = {"backbone", "cost", "data", "fraction", "labels", "pretrain", "protocol", "size", "task", "weights"}
OF_ARMS = {  # and all that any two of a sweep's arms differ in, where that is hyper-parameters alone
    "cifar10_scarce_tasks": ["data.views.main.color"],
    "drloc_ablation": ["objectives.drloc.pairs", "objectives.drloc.weight"],
    "drloc_scratch": ["optim.batch_size"],
    "drloc_variants": ["objectives.drloc.hidden_dim"],
    "gmml_ablation": ["objectives.gmml.blocks", "objectives.gmml.corrupt.alien.area", "objectives.gmml.corrupt.noise.area"],
    "lut_ablation": [
        "data.views.main.crop", "data.views.main.scale", "data.views.second.crop", "data.views.second.scale",
        "objectives.lut.target_mask_ratio",
    ],
    "lut_weight": ["objectives.lut.context_weight", "objectives.lut.reconstruction_weight"],
    "mt_granularity": ["backbone.masked_tokens.count", "objectives.masked_tokens.contrast_weight"],
    "mt_imagenet": ["backbone.masked_tokens.count"],
    "mt_stl10": ["objectives.masked_tokens.contrast_weight", "objectives.masked_tokens.sparse_weight"],
    "mt_transfer": ["backbone.masked_tokens.count"],
    "ssat_decoder": ["objectives.mae.decoder_depth", "objectives.mae.decoder_dim", "objectives.mae.mask_ratio"],
}  # fmt: skip


@pytest.mark.release
def test_the_axes_and_arms_of_hyper_parameters_of_all_sweeps():
    found, others, between = {}, set(), {}
    for path in SWEEPS:
        spec = sweep_file.read(path, overrides.parse(["axes.seed=0"]), everything=True)
        planned = [Cell(c.arm, c.axes, [(s.name, read(s.name, s.run)) for s in c.stages]) for c in cells(spec)]
        axes = [axis for axis, values in spec.axes.items() if axis != "seed" and len(values) > 1]
        hyper = [axis for axis in axes if sets_hyperparameters(Sweep(path, {}, [], planned, {}, path), axis)]
        others |= set(axes) - set(hyper)
        found |= {path.stem: hyper} if hyper else {}
        between |= {path.stem: fields} if (fields := settings_between_arms(planned)) else {}
    assert found == OF_SWEEPS and others == OTHERS
    assert between == OF_ARMS


def settings_between_arms(planned: list[Cell]) -> list[str]:
    """At the first point of the axes that two arms share."""
    points: dict[tuple, list[Cell]] = {}
    for cell in planned:
        points.setdefault(tuple(cell.axes.items()), []).append(cell)
    pairs = {(a.arm, b.arm): (a, b) for cells_there in reversed(points.values()) for a, b in combinations(cells_there, 2)}
    return sorted(set().union(*(fields for a, b in pairs.values() if is_setting(fields := fields_between_arms(a, b)))))


def read(name: str, run: Run) -> RunFolder:
    return RunFolder(Path(name), "done", run=run)


def test_what_held_out_images_select_is_named(sweep):
    axes = {"optim.lr": [0.1, 0.2], "seed": [0, 1]}
    make = {(arm, lr, seed): {"done": {"val": {"top1": 60.0 + lr}}} for arm in ("scratch", "ssat") for lr in (0.1, 0.2) for seed in (0, 1)}
    grid = lay_out(collect(sweep({"scratch": 80.0, "ssat": 82.0}, axes, columns=None, make=make, select=["optim.lr"])))
    assert grid.unselected_axes == [] and "the best mean is that of ssat" in headlines(grid)["Comparison"][0]


# ------------------------------------------------------------------------------------------------------------ statement


def test_the_sentence_for_a_paper_has_amount_hardware_method_and_grid(sweep):
    """Two seeds of an hour on a GPU: 0.5 kWh, 200 g at 0.4 kg/kWh, half a node's CPU and memory."""
    said = statement(collect(sweep({"scratch": 80.0}, {"seed": [0, 1]}, columns=None)))
    assert said.startswith(
        "Training and evaluating the models of this work is estimated to have used 500 Wh of electricity and caused 200 g of CO2e: "
        "2 training runs of 2.00 GPU-hours in all on NVIDIA RTX A5000."
    )
    assert "tracked with codecarbon 3.3.2: GPU power was measured with NVML, CPU power was modelled from its TDP" in said
    assert "each job's share of its node's" in said and said.endswith("grid was taken as 0.4 kg CO2e/kWh (DEU).")


def test_the_sentence_counts_what_failed_and_every_grid(sweep, emissions_record):
    make = {("scratch", 0): {"state": "failed"}, ("scratch", 1): {"records": [emissions_record(intensity_kg_per_kwh=0.05, country="FRA")]}}
    said = statement(collect(sweep({"scratch": 80.0}, {"seed": [0, 1, 2]}, columns=None, make=make)))
    assert "3 training runs, 1 of them not finished, of 3.00 GPU-hours" in said
    assert "0.4 kg CO2e/kWh (DEU) and 0.05 kg CO2e/kWh (FRA)" in said


def test_without_a_record_there_is_no_sentence(sweep):
    assert statement(collect(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None, make={("scratch", 0): {"state": "not begun"}}))) == ""


def test_runs_that_the_command_leaves_out_are_counted(sweep):
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, {"seed": [0, 1]}, columns=None)
    assert not any("Not in this report" in line for line in sentences(findings(lay_out(collect(folder)))))
    facts = json.loads((folder / "sweep.json").read_text())
    facts["cells"] = [cell for cell in facts["cells"] if cell["axes"]["seed"] == 0]  # as a narrower command writes it
    (folder / "sweep.json").write_text(json.dumps(facts))
    said = next(line for line in sentences(findings(lay_out(collect(folder)))) if "Not in this report" in line)
    used = "2 other runs in the sweep's folder, which used 500 Wh"
    assert said.startswith(f"Not in this report: {used}, of other arms, values or fields; ")
    sweep_read = collect(folder)
    assert f" Not counted: {used}. " in statement(sweep_read)
    total = findings(lay_out(sweep_read))["In all"][0]
    assert total.startswith("The runs of this report, each counted once, took")


# --------------------------------------------------------------------------------------------------------------- labels

SEES = "Learned from: 30 labelled images for Scratch; 30 labelled images and 570 without a label for SSL+FT and SSAT."


def tell(folder: Path, run: str, train: int, labelled: int, **facts) -> None:
    """What the launcher wrote of some runs' images."""
    for path in folder.glob(f"{run}/job.json"):
        job = json.loads(path.read_text())
        job["data"] = data_facts(train_images=train, labelled_images=labelled) | facts
        path.write_text(json.dumps(job))


@pytest.fixture
def few(sweep):
    """As the quickstart: 30 labels, 600 images; scratch and fine-tuning need labels."""

    def make(axes=None, **kwargs) -> Path:
        folder = sweep(THREE, axes or {"seed": [0, 1, 2]}, **{"columns": None, "arms": ROWS, **kwargs})
        for run, train in (("scratch-*", 30), ("sslft-finetune-*", 30), ("sslft-pretrain-*", 600), ("ssat-*", 600)):
            tell(folder, run, train, 30)
        return folder

    return make


def test_a_page_and_a_terminal_say_what_arms_learn_from(few):
    folder = few()
    assert SEES in sentences(headlines(lay_out(collect(folder)))) and SEES in report.summary(folder, width=1000)


def test_columns_that_have_the_same_images_say_it_once(few):
    folder = few(axes={"data": ["x", "y"], "seed": [0, 1]}, columns="data")
    assert images_learned(lay_out(collect(folder))) == SEES
    tell(folder, "s*-y-*", 50, 50)
    assert images_learned(lay_out(collect(folder))) == f"x: {SEES}"


def test_a_set_without_labels_that_a_stage_trains_on_is_among_what_an_arm_learns_from(few):
    folder = few()
    tell(folder, "sslft-pretrain-*", 3000, 0, sha256="f" * 64, classes=0)
    tell(folder, "ssat-*", 30, 30)
    said = "Learned from: 30 labelled images for Scratch and SSAT; 30 labelled images and 3,000 without a label for SSL+FT."
    assert images_learned(lay_out(collect(folder))) == said


def test_a_loss_that_is_not_finite_has_no_rank_also_at_a_seed_that_another_arm_lacks(sweep):
    def loss(value: float) -> dict:
        return {"done": {"test": {"top1": 40.0, "top5": 99.0, "loss": value}}}

    make = {("scratch", 0): loss(2.0), ("scratch", 1): loss(2.1), ("scratch", 2): {"state": "not begun"}}
    make |= {("ssat", 0): loss(1.0), ("ssat", 1): loss(1.1), ("ssat", 2): loss(float("inf"))}
    folder = sweep({"scratch": 40.0, "ssat": 45.0}, {"seed": [0, 1, 2]}, columns=None, metric="loss", make=make)
    said = headlines(lay_out(collect(folder)))["Comparison"]
    assert said == ["No best arm is named, since the NLL of ssat is not finite at some seed."]


def test_a_difference_of_more_seeds_than_the_means_names_their_number(sweep):
    """Of one arm a seed is missing: means are over those that all have, a difference over those of its two arms."""
    scores = {"scratch": lambda at: 70.0 + at["seed"], "sslft": 60.0, "ssat": lambda at: 80.0 + 2 * at["seed"]}
    make = {("sslft", 3): {"state": "not begun"}}
    folder = sweep(scores, {"seed": [0, 1, 2, 3]}, columns=None, arms=ROWS, make=make)
    said = next(line for line in sentences(findings(lay_out(collect(folder)))) if "82.00 ± 2.00" in line)
    assert "(3 seeds" in said and "+11.50" in said and "against Scratch (4 seeds)" in said


def test_how_often_labelled_images_are_shown_is_told_where_arms_differ(few):
    """Of 600 images 30 have labels: joint training sees these 10 times in 10 epochs, and more often if its batches hold more of them."""
    folder = few()
    for run in folder.glob("*/run.yaml"):
        fields = json.loads(run.read_text())
        classify = {"scratch": ["classify"], "ssat": ["classify", "mae"]}.get(run.parent.name.split("-")[0], ["classify"])
        objectives = {name: {} for name in (["mae"] if "pretrain" in run.parent.name else classify)}
        loop = fields["loop"] | {"epochs": 10, "max_steps": None, "warmup_epochs": 0}
        rewrite(run.parent, {"objectives": objectives, "loop": loop, "optim": {"batch_size": 30}})
    told = labels_shown(lay_out(collect(folder)))
    assert told == ""
    for run in folder.glob("ssat-*"):
        rewrite(run, {"data": {"labelled_batch_fraction": 0.25}})
    told = labels_shown(lay_out(collect(folder)))
    # 200 steps, with 8 labelled images each
    assert told == "To learn to classify, each labelled image is shown 10 times to Scratch and SSL+FT, 53 times to SSAT."


def nothing(folder: Path) -> None:
    """All images have labels."""
    tell(folder, "s*", 600, 600)


def another_set(folder: Path) -> None:
    tell(folder, "sslft-pretrain-*", 5000, 0, sha256="f" * 64)
    tell(folder, "ssat-*", 30, 30)


def another_draw(folder: Path) -> None:
    """Whose images may be others than those of the fine-tuning."""
    tell(folder, "ssat-*", 30, 30)
    for stage, seed in (("pretrain", 1), ("finetune", 2)):
        for path in folder.glob(f"sslft-{stage}-*/run.yaml"):
            rewrite(path.parent, {"data": {"images": {"fraction": 0.5, "per_class": None, "balanced": True, "seed": seed}}})


@pytest.mark.parametrize("change", [nothing, another_set, another_draw])
def test_nothing_is_said_that_the_runs_do_not_tell(few, change):
    folder = few()
    change(folder)
    assert images_learned(lay_out(collect(folder))) == ""
