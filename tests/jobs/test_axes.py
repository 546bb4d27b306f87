"""Axes of a field or of sets of fields, those that the command line adds and those of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import folders, submit
from jobs.display import show
from jobs.plan import overrides, smoke
from jobs.plan.graph import Graph
from jobs.plan.sweep import read
from tests.jobs.conftest import EXAMPLE, trained_by
from vitssl.config import ConfigError

FEW = ("axes.data=[plain]", "axes.seed=0")


def values(graph: Graph, arm: str, read) -> dict[str, object]:
    """{folder without its hash: what its Run has} of an arm."""
    return {job.name.rsplit("-", 1)[0]: read(job.run) for cell, jobs in graph.cells if cell.arm == arm for job in jobs}


def test_a_list_is_an_axis_of_the_field_of_its_name(expand) -> None:
    graph = expand("axes.optim.lr=[1e-3,1e-4]", "arms=[scratch]", *FEW)
    assert values(graph, "scratch", lambda run: run.optim.lr) == {"scratch-plain-s0-lr0.001": 1e-3, "scratch-plain-s0-lr0.0001": 1e-4}
    assert [cell.axes for cell, _ in graph.cells] == [{"data": "plain", "seed": 0, "optim.lr": lr} for lr in (1e-3, 1e-4)]


def test_a_mapping_is_an_axis_of_sets_of_fields(expand) -> None:
    axis = "axes.size={small: {backbone.depth: 2}, big: {backbone: {depth: 4, num_heads: 6}, optim.lr: 0.5}, later: {optional: true}}"
    graph = expand(axis, "arms=[scratch]", *FEW)
    found = values(graph, "scratch", lambda run: (run.backbone.depth, run.backbone.num_heads, run.optim.lr))
    assert found == {"scratch-plain-s0-small": (2, None, 1e-3), "scratch-plain-s0-big": (4, 6, 0.5)}
    assert len(expand(axis, "arms=[scratch]", *FEW, everything=True).jobs) == 3


def test_a_scalar_is_an_axis_of_one_value_and_several_are_multiplied(expand) -> None:
    graph = expand("axes.optim.lr=0.1", "axes.backbone.depth=[2,4]", "arms=[scratch]", "axes.data=[plain]")
    assert len(graph.jobs) == 4 and {job.run.optim.lr for job in graph.jobs} == {0.1}


def test_it_sets_fields_as_the_command_line_does_over_a_stages_own(expand) -> None:
    """An axis of the file would leave a stage's own epochs alone, and give equal runs at each of its values."""
    graph = expand("axes.loop.epochs=[3,4]", "arms=[chain_long]", *FEW)
    assert values(graph, "chain_long", lambda run: run.loop.epochs) == {
        f"chain_long-{stage}-plain-s0-epochs{n}": n for n in (3, 4) for stage in ("pretrain", "finetune")
    }
    graph = expand("axes.finetune.loop.epochs=[3,4]", "arms=[chain_long]", *FEW)
    assert values(graph, "chain_long", lambda run: run.loop.epochs) == {
        "chain_long-pretrain-plain-s0": 5, "chain_long-finetune-plain-s0-epochs3": 3, "chain_long-finetune-plain-s0-epochs4": 4,
    }  # fmt: skip
    arm_alone = expand("axes.loop.epochs=[3,4]", "arms.chain_long.finetune.optim.lr=0.5", "arms=[scratch,chain_long]", *FEW)
    assert {(job.stage, job.run.optim.lr) for job in arm_alone.jobs} == {("train", 1e-3), ("pretrain", 1e-3), ("finetune", 0.5)}


def test_a_field_of_an_objective_varies_where_that_is_on(expand) -> None:
    graph = expand("axes.objectives.mae.mask_ratio=[0.5,0.6]", "arms=[scratch,chain_short]", *FEW)
    assert values(graph, "scratch", lambda run: run.objectives.mae) == {"scratch-plain-s0": None}  # one run, in both cells
    ratios = values(graph, "chain_short", lambda run: run.objectives.mae and run.objectives.mae.mask_ratio)
    assert ratios == {
        "chain_short-pretrain-plain-s0-mask_ratio0.5": 0.5, "chain_short-pretrain-plain-s0-mask_ratio0.6": 0.6,
        "chain_short-finetune-plain-s0-mask_ratio0.5": None, "chain_short-finetune-plain-s0-mask_ratio0.6": None,
    }  # fmt: skip


@pytest.mark.parametrize("axis", ["objectives.mae.mask_ratio: [0.5, 0.6]", "m: {a: {objectives.mae.mask_ratio: 0.5}, b: {}}"])
def test_so_does_one_of_an_axis_of_the_file(expand, axis) -> None:
    graph = expand("arms=[scratch,chain_short]", *FEW, text=EXAMPLE.replace("  seed: [0, 1]\n", f"  seed: [0, 1]\n  {axis}\n"))
    assert set(values(graph, "scratch", lambda run: run.objectives.mae).values()) == {None} and len(graph.jobs) == 1 + 2 + 2
    ratios = values(graph, "chain_short", lambda run: run.objectives.mae and run.objectives.mae.mask_ratio)
    assert list(ratios.values()) == ([0.5, None, 0.6, None] if axis.startswith("objectives") else [0.5, None, 0.75, None])


OWN = EXAMPLE.replace("axes:\n", "axes:\n  optim.lr: [1.0e-3, 1.0e-4]\n")


def test_an_axis_of_the_file_that_every_stage_overrides_is_refused(expand) -> None:
    """Its values would stand in the report, and nothing would have been trained with them."""
    text = OWN.replace("stages: {train: {", "stages: {train: {optim.lr: 0.01, ")
    assert text != OWN
    with pytest.raises(
        ConfigError, match=r"^sweep\.yaml: axes\.optim\.lr: it changes nothing in scratch, where arms\.scratch\.stages\.train sets"
    ):
        expand("arms=[scratch]", *FEW, text=text)
    assert len(expand("arms=[scratch,chain_long]", *FEW, text=text).jobs) > 1, "another arm follows it"


@pytest.mark.parametrize(
    "typed", ["train.optim.lr=0.01", "arms.scratch.train.optim.lr=0.01", "arms.scratch.optim.lr=0.01", "optim.lr=0.01"]
)
def test_what_an_axis_sets_is_not_set_beside_it(expand, typed) -> None:
    with pytest.raises(ConfigError, match=r"axes\.optim\.lr sets it; write axes\.optim\.lr=\.\.\. instead"):
        expand("arms=[scratch]", typed, *FEW, text=OWN)
    assert len(expand("finetune.optim.lr=0.01", "arms=[chain_long]", *FEW, text=OWN).jobs) == 4, "its pretraining follows the axis"


def test_an_objective_that_one_axis_switches_on_is_varied_by_another(expand) -> None:
    axes = "  how: {without: {}, with: {objectives.mae: {}}}\n  objectives.mae.mask_ratio: [0.5, 0.6]\n"
    graph = expand("arms=[scratch]", *FEW, text=EXAMPLE.replace("  seed: [0, 1]\n", f"  seed: [0, 1]\n{axes}"))
    ratios = [job.run.objectives.mae and job.run.objectives.mae.mask_ratio for job in graph.jobs]
    assert ratios == [None, 0.5, 0.6]


def test_a_dry_run_says_what_each_stage_learns(expand) -> None:
    graph = expand("arms.scratch.objectives={classify: {}, mae: {}}", "arms=[scratch,chain_short]", *FEW)
    lines = show.lines(graph.jobs, read("sweep.yaml", overrides.parse(FEW)))
    assert [(line.label, line.objectives) for line in lines] == [
        ("scratch", "classify + mae"), ("chain_short pretrain", "mae"), ("chain_short finetune", "classify"),
    ]  # fmt: skip


def test_columns_and_selections_may_be_of_it(expand) -> None:
    Path("sweep.yaml").write_text(EXAMPLE)
    spec = read("sweep.yaml", overrides.parse(["axes.optim.lr=[1,2]", "columns=optim.lr", *FEW]))
    assert spec.columns == "optim.lr" and spec.arms["scratch"].published is None  # the paper printed numbers of other columns
    words = ("axes.optim.lr=[1,2]", "select=optim.lr", "data.val_fraction=0.1", "arms=[chain_short]", *FEW)
    assert len(expand(*words).cells) == 2


def test_the_sweeps_folder_and_the_smoke_run_have_it(place, monkeypatch) -> None:
    trained_by("standin", monkeypatch)
    Path("sweep.yaml").write_text(EXAMPLE)
    words = ["sweep.yaml", "--executor", "local", *FEW, "arms=[scratch]", "loop.max_steps=1", "resources.gpus_per_node=1"]
    assert submit.main([*words, "axes.optim.lr=[0.1,0.2]"]) == 0
    written = json.loads(Path("runs/example/sweep.json").read_text())
    assert written["axes"] == {"data": ["plain"], "seed": [0], "optim.lr": [0.1, 0.2]}
    assert "optim.lr" in Path("runs/example/report/report.html").read_text()
    spec = smoke.narrow(read("sweep.yaml", overrides.parse(["axes.optim.lr=[0.1,0.2]"])))
    assert list(spec.axes["optim.lr"]) == [0.1]


@pytest.mark.parametrize(
    ("word", "changed"),
    [
        ("axes.optim.lr=[1e-3,1e-4]", ["optim.lr"]),
        ("axes={optim.lr: [1e-3,1e-4]}", ["optim.lr"]),
        ("axes.cost={as written: {}, equal: {equalize: macs}}", ["cost"]),
        ("axes={cost: {as written: {}, equal: {equalize: macs}}}", ["cost"]),
        ("equalize=macs", ["equalize"]),
        ("arms.scratch.optim.lr=0.1", ["arms.scratch.optim.lr"]),
        ("axes.seed=[0,1,2]", []),
        ("axes.data=flipped", []),  # a choice of what the file has
    ],
)
def test_the_sweeps_folder_says_what_the_command_line_changed(place, word, changed) -> None:
    Path("sweep.yaml").write_text(EXAMPLE)
    assert folders._overrides(read("sweep.yaml", overrides.parse([word, "arms=[scratch]"]))) == changed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("axes.optim.lrr=[1]", r"axes.optim.lrr: 'lrr' is not known \(did you mean lr\?\)$"),
        ("axes.lr=[1]", r"axes.lr: 'lr' is not known \(did you mean optim.lr\?\)$"),
        ("axes.learning_rate=[1]", r"axes.learning_rate: 'learning_rate' is not known \(did you mean optim.lr\?\)$"),
        ("axes.sed=[1]", r"axes.sed: 'sed' is not known \(did you mean seed\?\)$"),
        ("axes.fintune.optim.lr=[1]", r"axes.fintune.optim.lr: 'fintune' is not known \(did you mean finetune\?\)$"),
        ("axes.optim.lr=[a]", "axes.optim.lr.a: optim.lr: 'a' is not a number$"),
        ("axes.optim.lr=[]", "axes.optim.lr: expected a list of values or a mapping of names to fields, not"),
        ("axes.optim.lr=[1,1]", r"axes.optim.lr: \[1, 1\] names a value twice$"),
        ("axes.size={a: 3}", r"axes.size.a: 3 is not a mapping of names; write {name: value}$"),
        ("axes.size={a: {backbone.dept: 2}}", r"axes.size.a: backbone.dept: 'dept' is not known \(did you mean depth\?\)$"),
        ("axes.seed={a: {seed: 4}}", "axes.seed: the file has an axis of this name; choose from 0, 1, or rename yours$"),
        ("axes.optim.lr=[1,2] optim.lr=3", r"optim.lr: axes.optim.lr sets it; write axes.optim.lr=\.\.\. instead$"),
        ("axes.objectives.drloc.weight=[1,2]", "axes.objectives.drloc.weight: objectives.drloc is off in all of these Runs"),
        ("axes.optim.lr=[-1]", "optim.lr: -1.0 is less than 0"),
    ],
)
def test_a_mistake_is_one_line(expand, words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^command line: {message}") as error:
        expand(*(words.split(" ") if "] " in words else [words]))
    assert "\n" not in str(error.value)


def test_an_evaluator_of_a_classifier_is_left_to_the_stages_that_classify(expand) -> None:
    """Set for all stages, in the file or on the command line; set for a pretraining alone, or where nothing classifies, it is refused."""
    evaluators = "evals={knn: {k: 3}, warped: {type: robustness, perspective: 0.5}}"
    in_file = EXAMPLE.replace("defaults:\n", "defaults:\n  evals: {knn: {k: 3}, warped: {type: robustness, perspective: 0.5}}\n", 1)
    assert in_file != EXAMPLE
    for words, text in (([evaluators], EXAMPLE), ([], in_file)):
        found = {job.stage: set(job.run.evals) for job in expand("arms=[chain_short]", *words, text=text).jobs}
        assert found == {"pretrain": {"knn"}, "finetune": {"knn", "warped"}}
    words = ["arms=[chain_short,alone]", evaluators, "arms.alone.pretrain.evals.warped.seed=1"]  # of another arm's stage
    with pytest.raises(ConfigError, match=r"alone\.stages\.pretrain"):
        expand(*words, text=f"{EXAMPLE}arms.alone.stages.pretrain.objectives.mae: {{}}\n")
    refused = "the Run has no classify objective, so it predicts no classes"
    own = "arms.chain_short.evals.warped={type: robustness, perspective: 0.5}"
    for words in (
        ["pretrain.evals.warped={type: robustness, perspective: 0.5}", evaluators],
        ["pretrain.evals.test2={}"],
        [evaluators, "finetune.evals.warped=null"],  # no stage is left for it
        ["arms=[scratch,chain_short]", evaluators, own, "arms.chain_short.finetune.evals.warped=null"],  # nor in the arm that it is for
    ):
        with pytest.raises(ConfigError, match=refused):
            expand(*([] if words[0].startswith("arms=") else ["arms=[chain_short]"]), *words)
    with pytest.raises(ConfigError, match=refused):
        expand("arms=[alone]", evaluators, text=f"{EXAMPLE}arms.alone.stages.train.objectives.mae: {{}}\n")
