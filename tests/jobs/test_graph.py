"""From a sweep file to Runs: what is merged over what, which Runs are one, how a folder is found again."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from jobs.graph import Graph, Job
from tests.jobs.conftest import EXAMPLE, write_index
from vitssl.config import ConfigError


def pick(graph: Graph, arm: str, stage: str, **axes: object) -> Job:
    for cell, jobs in graph.cells:
        if cell.arm == arm and axes.items() <= cell.axes.items():
            return jobs[[s.name for s in cell.stages].index(stage)]
    raise AssertionError(f"no {arm}/{stage} at {axes}")


def test_arms_times_axes_with_equal_runs_once(expand) -> None:
    graph = expand()
    assert Counter(cell.arm for cell, _ in graph.cells) == {"scratch": 4, "chain_short": 4, "chain_long": 4}
    # 4 from scratch, 4 pretrained for both chains, 4 + 4 fine-tuned
    assert Counter(job.stage for job in graph.jobs) == {"train": 4, "pretrain": 4, "finetune": 8}
    assert pick(graph, "chain_short", "pretrain", seed=1) is pick(graph, "chain_long", "pretrain", seed=1)


def test_parents_come_first_and_are_where_weights_start(expand) -> None:
    graph = expand()
    for job in graph.jobs:
        for parent in job.parents:
            assert graph.jobs.index(parent) < graph.jobs.index(job)
            assert job.run.init_from == str(parent.folder) and parent.run.seed == job.run.seed


def test_a_childs_identity_holds_its_parents(expand) -> None:
    child, changed = (pick(expand(*more), "chain_short", "finetune", seed=0, data="plain") for more in ((), ["pretrain.optim.lr=0.5"]))
    assert child.run.optim == changed.run.optim
    assert child.identity != changed.identity


def test_identity_ignores_where_things_are(expand) -> None:
    before = {job.identity for job in expand().jobs}
    assert {job.identity for job in expand("data.workers=9", "loop.log_every=3").jobs} == before
    assert not {job.identity for job in expand("optim.lr=0.3").jobs} & before


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], 5),  # the stage over the sweep's defaults
        (["loop.epochs=7"], 7),  # the command line over the stage
        (["loop.epochs=7", "pretrain.loop.epochs=8"], 8),  # one stage over all stages
        (["finetune.loop.epochs=8"], 5),  # of another stage
    ],
)
def test_order_of_merging(expand, overrides: list[str], expected: int) -> None:
    assert pick(expand(*overrides), "chain_short", "pretrain").run.loop.epochs == expected


def test_an_axis_is_over_defaults_and_under_a_stage_unless_it_names_the_stage(expand) -> None:
    text = EXAMPLE.replace("seed: [0, 1]", "sizes: {a: {loop.epochs: 3, finetune.loop.epochs: 4}}")
    graph = expand(text=text)
    assert pick(graph, "scratch", "train").run.loop.epochs == 3
    assert pick(graph, "chain_short", "pretrain").run.loop.epochs == 5
    assert pick(graph, "chain_short", "finetune").run.loop.epochs == pick(graph, "chain_long", "finetune").run.loop.epochs == 4


def test_arm_defaults_hold_for_every_stage_of_the_arm_alone(expand) -> None:
    graph = expand(text=EXAMPLE.replace("optim.weight_decay: 0.05", "optim.weight_decay: 0.3"))
    decays = {(job.arm, job.stage): job.run.optim.weight_decay for job in graph.jobs}
    assert decays[("chain_long", "finetune")] == decays[("chain_long", "pretrain")] == 0.3
    assert decays[("chain_short", "finetune")] == decays[("scratch", "train")] == 0.05


def test_a_list_axis_assigns_the_field_of_its_name(expand) -> None:
    graph = expand(text=EXAMPLE.replace("seed: [0, 1]", "optim.lr: [0.1, 0.2]"))
    assert {job.run.optim.lr for job in graph.jobs} == {0.1, 0.2}
    assert pick(graph, "scratch", "train", **{"optim.lr": 0.2}).folder.name.startswith("scratch-plain-lr0.2-")


def test_an_arm_alone_and_a_stage_of_an_arm_alone(expand) -> None:
    """What is said of an arm wins over what is said of all, whatever the order; the file's own path is understood too."""
    words = ["arms.chain_long.loop.epochs=8", "arms.chain_long.finetune.loop.epochs=9", "loop.epochs=7"]
    graph = expand(*words, "arms.scratch.stages.train.loop.epochs=6", "pretrain.loop.epochs=5")
    epochs = {(cell.arm, job.stage): job.run.loop.epochs for cell, jobs in graph.cells for job in jobs}
    assert epochs == {
        ("scratch", "train"): 6,
        ("chain_short", "pretrain"): 5,
        ("chain_short", "finetune"): 7,
        ("chain_long", "pretrain"): 8,
        ("chain_long", "finetune"): 9,
    }


def test_an_axis_may_set_a_stage_of_an_arm_that_does_not_run(expand) -> None:
    text = EXAMPLE.replace("flipped: {data.views.main.hflip: 0.0}", "flipped: {data.views.main.hflip: 0.0, finetune: {loop.epochs: 7}}")
    assert {job.run.loop.epochs for job in expand("arms=[scratch]", text=text).jobs} == {10}
    assert pick(expand(text=text), "chain_short", "finetune", data="flipped").run.loop.epochs == 7


def test_the_command_lines_resources_win_over_an_arms_own(expand) -> None:
    words = ("arms=[scratch,opt_in]", "axes.data=[plain]", "axes.seed=[0]")

    def nodes(*more: str) -> list[tuple[int, float]]:
        return [(job.resources.nodes, job.resources.hours) for job in expand(*words, *more).jobs]

    assert nodes() == [(1, 1.0), (2, 1.0)]
    assert nodes("resources.nodes=4") == [(4, 1.0), (4, 1.0)]
    assert nodes("resources.nodes=4", "arms.opt_in.resources.nodes=8", "arms.scratch.resources.hours=2") == [(4, 2.0), (8, 1.0)]
    with pytest.raises(ConfigError, match=r"command line: arms: 'opt' is not known \(did you mean opt_in"):
        nodes("arms.opt.resources.nodes=8")
    with pytest.raises(ConfigError, match=r"command line: arms.opt_in.resources: .*node"):
        nodes("arms.opt_in.resources.node=8")


@pytest.mark.parametrize(("words", "refused"), [(["axes.data=[plain,big]"], True), (["axes.data=big"], False), ([], False)])
def test_values_of_an_axis_that_an_override_makes_equal_are_refused(expand, words, refused) -> None:
    """plain sets nothing, big the size alone, flipped something else: one run would be counted twice."""
    if refused:
        with pytest.raises(ConfigError, match=r"data.image_size: axes.data sets it, and plain, big would be the same; choose one with"):
            expand("data.image_size=16", *words)
    else:
        assert {job.run.data.image_size for job in expand("data.image_size=16", *words).jobs} == {16}


def test_a_field_of_an_objective_applies_where_that_is_on_and_switches_none_on(expand) -> None:
    graph = expand("objectives.mae.mask_ratio=0.5", "arms=[scratch,chain_short]")
    assert {job.run.objectives.mae and job.run.objectives.mae.mask_ratio for job in graph.jobs} == {None, 0.5}
    assert all((job.run.objectives.mae is not None) == (job.stage == "pretrain") for job in graph.jobs)
    graph = expand("objectives.mae={}", "objectives.mae.mask_ratio=0.5", "arms=[scratch]")
    assert {job.run.objectives.mae.mask_ratio for job in graph.jobs} == {0.5}


def test_a_stage_of_no_arm_that_runs_is_refused(expand) -> None:
    with pytest.raises(ConfigError, match=r"finetune.optim.lr: finetune is a stage of none of the arms that run \(scratch\)"):
        expand("arms=[scratch]", "finetune.optim.lr=1")


@pytest.mark.parametrize(
    ("overrides", "cells"),
    [
        (["arms=[scratch]"], 4),
        (["arms=scratch", "axes.seed=[5]"], 2),
        (["arms=[scratch]", "axes.data=[plain]", "axes.seed=[0,1,2]"], 3),
        (["arms=[scratch]", "axes.data=big"], 2),
    ],
)
def test_selection(expand, overrides: list[str], cells: int) -> None:
    assert len(expand(*overrides).cells) == cells


def test_optional_arms_and_values_come_with_all_or_by_name(expand) -> None:
    assert {cell.arm for cell, _ in expand("arms=[opt_in]", "axes.seed=[0]").cells} == {"opt_in"}
    graph = expand(everything=True)
    assert len(graph.cells) == 4 * 3 * 2
    assert pick(graph, "opt_in", "train").resources.nodes == 2
    assert pick(graph, "scratch", "train", data="big").run.data.image_size == 32


def test_a_folder_is_found_again_by_its_hash(expand) -> None:
    shared = pick(expand("arms=[chain_short]"), "chain_short", "pretrain", data="plain", seed=0)
    shared.folder.mkdir(parents=True)
    assert shared.folder.name == f"chain_short-pretrain-plain-s0-{shared.identity}"
    # asked for by the other arm alone, the pretraining that is there is taken
    assert pick(expand("arms=[chain_long]"), "chain_long", "pretrain", data="plain", seed=0).folder == shared.folder


def test_data_that_changed_is_another_run(expand, place) -> None:
    before = expand().jobs[0].identity
    write_index(place / "shards" / "digits", [("train", 101), ("test", 20)])
    assert expand().jobs[0].identity != before


# (what is changed in the example, the error)
MISTAKES = [
    ("epochs: 10", "epocs: 10", "sweep.yaml: defaults: loop.epocs: .*[Dd]id you mean.*epochs"),
    ("epochs: 10", "epochs: ten", "sweep.yaml: defaults: loop.epochs: .*ten.*"),
    ("objectives.classify: {label_smoothing: 0.1}", "objectives.clasify: {}", "arms.opt_in.stages.train: objectives.clasify.*classify"),
    (
        "stages: {train: {objectives.classify: {}}}",
        "stages: {train: {objectives.classify: true}}",
        "scratch.stages.train: objectives.classify",
    ),
    ("columns: data", "columns: dta", "sweep.yaml: columns: 'dta' is not known .did you mean data"),
    ("baseline: scratch", "baseline: scrach", "sweep.yaml: baseline: 'scrach' is not known .did you mean scratch"),
    ("resources: {nodes: 2}", "baseline: chian_long", "arms.opt_in.baseline: 'chian_long' is not known .did you mean chain_long"),
    ("plain: 10.0", "plane: 10.0", "arms.scratch.published: 'plane' is not known .did you mean plain"),
    ("notes:", "note:", "sweep.yaml: .*note.*"),
    ("baseline: scratch", "base_line: scratch", "sweep.yaml: .*base_line.*"),
    ("init_from: pretrain}", "init_from: pretrian}", r"finetune: init_from: 'pretrian' is not known .did you mean pretrain\?.; it is no"),
    ("nodes: 1, gpus_per_node: 2", "nodes: 1, gpus_per_node: 3", "optim.batch_size: 16 is global .* = 3 processes"),
    ("batch_size: 16", "batch_size: 104", "optim.batch_size: 104 is more than the 100 images to train on"),
    ("name: example", "name: ../example", "sweep.yaml: name: '../example' cannot be the folder of its runs"),
    ("seed: [0, 1]", "seed: [0, 0]", r"sweep.yaml: axes.seed: \[0, 0\] names a value twice"),
    ("hours: 1}", "hours: 0.005}", "resources.hours: 0.005 is less than 0.017"),
    ("nodes: 1, gpus_per_node: 2", "nodes: 1, gpus_per_node: -1", "resources.gpus_per_node: -1 is less than 0"),
    ("nodes: 1, gpus_per_node: 2", "nodes: 0, gpus_per_node: 2", "resources.nodes: 0 is less than 1"),
    ("patch_size: 4", "patch_size: 5", "backbone.patch_size: 5 does not divide"),
    ("shards: shards/digits", "shards: shards/none", "data.shards: .*shards/none holds no index.json; build it"),
    ("shards: shards/digits", "shards: shards/digits, sha256: 0bad", "data.sha256: the Run asks for 0bad but .* holds [0-9a-f]{64}"),
    ("image_size: 16}", "image_size: 16, images: {per_class: 51}}", r"data.images.per_class: 51 is more than these classes have: a \(50\)"),
    ("shards: shards/digits", "shards: shards/digits, train_split: trian", "data.train_split: .*'trian' is not known .did you mean train"),
    ("stages: {train: {objectives.classify: {}}}", "stages: {}", "arms.scratch.stages: an arm needs a stage"),
    ("{train: {objectives.classify: {}}}", "{data: {objectives.classify: {}}}", "stages.data: a stage cannot have the name of a field"),
    ("seed: [0, 1]", "seed: 3", "axes.seed: expected a list of values or a mapping"),
    ("name: example", "nme: example", "sweep.yaml: name: a sweep needs a name"),
    ("flipped: {data.views.main.hflip: 0.0}", "flipped: {data.vews.main.hflip: 0.0}", "sweep.yaml: axes.data.flipped: data.vews.*views"),
    ("notes: [", "notes: [[", "sweep.yaml: "),
    ("image_size: 16}", "image_size: 16, images: 7}", "sweep.yaml: defaults: data.images: 7 is not a set of fields"),
    ("stages: {train: {objectives.classify: {}}}", "stages: [train]", "sweep.yaml: arms.scratch.stages: .* is not a mapping of names"),
    ("resources: {nodes: 1", "smoke: [1]\nresources: {nodes: 1", r"sweep.yaml: smoke: \[1\] is not a mapping of names; write {name"),
    ("hours: 1}", "hours: .inf}", "resources.hours: inf is not finite"),
    ("batch_size: 16}", "batch_size: 16, lr: .nan}", "optim.lr: nan is not a finite number"),
    ("batch_size: 16}", "batch_size: 16, name: sgd, momentum: 1.5}", r"optim.momentum: 1.5 is not in \[0, 1\)"),
    ("image_size: 16}", "image_size: 16, views.main.color_jitter: [-1, 0, 0, 0]}", "color_jitter: .* none negative"),
    ("plain: 10.0", "plain: ten", "arms.scratch.published.plain: 'ten' is not a number"),
    ("columns: data", "columns: data\nmetric: top7", "sweep.yaml: metric: 'top7' is none of top1, top5"),
    ("columns: data", "columns: data\nmetric: top1_ema", "metric: top1_ema is of averaged weights, and scratch has no loop.ema_decay"),
]


@pytest.mark.parametrize(("before", "after", "message"), MISTAKES, ids=[after[:40] for _, after, _ in MISTAKES])
def test_a_mistake_in_the_file_is_one_line_that_names_it(expand, before: str, after: str, message: str) -> None:
    assert before in EXAMPLE
    with pytest.raises(ConfigError) as error:
        expand(text=EXAMPLE.replace(before, after, 1), everything=True)
    assert "\n" not in str(error.value)
    assert re.search(message, str(error.value)), str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lrr=1", "command line: optim.lrr: .*lr"),
        ("optim.lr=fast", "command line: optim.lr: "),
        ("optim.lr", "command line: 'optim.lr' is not key=value"),
        ("arms=[scrach]", "command line: arms: 'scrach' is not known .did you mean scratch"),
        ("axes.sed=[1]", "command line: axes: 'sed' is not known .did you mean seed"),
        ("axes.data=[plan]", "command line: axes.data: 'plan' is not known .did you mean plain"),
        ("resources.node=2", "^command line: resources: node: 'node' is not known .did you mean nodes"),
        ("resources.nodes=0", "^command line: resources.nodes: 0 is less than 1$"),
        ("arms.scratch.resources.hours=-1", "^command line: arms.scratch.resources.hours: -1 is less than"),
        ("optim.lr=-1", r"^command line: optim.lr: -1.0 is less than 0 .in sweep.yaml: arms.scratch.stages.train.$"),
        ("arms.scratch.optim.clip_norm=3", r"^command line: optim.clip_norm: 3.0 is read with clip: .* .in sweep.yaml: arms.scratch."),
        ("finetune.optim.momentum=-1", r"^command line: optim.momentum: -1.0 .*arms.chain_short.stages.finetune.$"),
        ("resources.gpus_per_node=3", r"optim.batch_size: 16 .* = 3 processes .the command line set resources.gpus_per_node.$"),
        ("optim.batch_size=100000", r"^command line: optim.batch_size: 100000 is more than the 100 images"),
        ("data.test_split=tset", r"^command line: data.test_split: .* 'tset' is not known .did you mean test"),
        ("finetune.init_from=foo", r"^command line: init_from: 'foo' is not known"),
        ("finetune.backbone.depth=3", r"arms.chain_short.stages.finetune: init_from: .*.the command line set backbone.depth.$"),
        ("axes.seed=[a]", "^command line: axes.seed.a: seed: 'a' is not a whole number$"),
        ("axes.seed=-1", "^command line: seed: -1 is less than 0"),
        ("finetune.optim.lr=abc", "^command line: finetune: optim.lr: 'abc' is not a number$"),
        ("metric=top1_ema", "^command line: metric: top1_ema is of averaged weights"),
        ("axes.seed=99999999999999999999", "^command line: seed: 99999999999999999999 is more than"),
        ("optim.betas={a: 1}", r"^command line: optim.betas: {'a': 1} is not a list; write \[...\]$"),
        ("optim.betas=0.9", r"^command line: optim.betas: 0.9 is not a list"),
        (f"name={'x' * 300}", "^command line: name: 'x+' cannot be the folder of its runs"),
        ("columns=sed", "^command line: columns: 'sed' is not known .did you mean seed"),
        ("baseline=scrach", "^command line: baseline: 'scrach' is not known"),
        ("metric=top2", "^command line: metric: 'top2' is none of top1, top5"),
        ("name=a/b", "^command line: name: 'a/b' cannot be the folder"),
        ("arms=[other_paper]", "none of other_paper can run"),
        ("axes.data=[[", "command line: axes.data: "),
        ("scratch.optim.lr=1", r"command line: scratch.optim.lr: scratch is an arm; write arms.scratch.optim.lr=\.\.\. for this arm alone"),
        ("optmi.lr=1", "command line: optmi.lr: 'optmi' is not known .did you mean optim"),
        ("arms.scrach.optim.lr=1", "command line: arms: 'scrach' is not known .did you mean scratch"),
        ("arms.scratch.optim.lrr=1", "command line: arms.scratch: optim.lrr: "),
        ("arms.scratch.finetune.seed=1", "command line: arms.scratch: 'finetune' is not known"),
        ("arms.opt_in.optim.lr=1", r"command line: arms.opt_in: this arm does not run; choose it with arms=\[opt_in\]"),
        ("arms.scratch=1", "command line: arms.scratch: name a field of the arm"),
        ("data.images=7", "command line: data.images: 7 is not a set of fields; .* data.images.fraction or data.images.per_class"),
        ("arms.scratch.data.images=7", "command line: arms.scratch: data.images: 7 is not a set of fields"),
        ("finetune.data.views.main=0", "command line: finetune: data.views.main: 0 is not a set of fields; .* data.views.main.count"),
        ("seed=3", r"command line: seed: axes.seed sets it; write axes.seed=\.\.\. instead"),
        ("arms.scratch.seed=3", "command line: seed: axes.seed sets it"),
        (
            "objectives.drloc.weight=0.5",
            r"drloc.weight: objectives.drloc is on in none of these Runs; objectives.drloc=\{\} switches it on",
        ),
        ("objectives.mae=true", "command line: objectives.mae: true is not a set of fields; write {} for its defaults"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_that_names_it(expand, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        expand(override)
    assert "\n" not in str(error.value)
    assert re.search(message, str(error.value)), str(error.value)


def test_what_the_file_says_is_not_blamed_on_the_command_line(expand) -> None:
    """The batch stays the file's where the command line sets a rate."""
    with pytest.raises(
        ConfigError, match=r"^sweep.yaml: arms.scratch.stages.train: optim.batch_size: 0 is less than 1 .the command line set optim.lr.$"
    ):
        expand("optim.lr=1", text=EXAMPLE.replace("batch_size: 16", "batch_size: 0"))
