"""From a sweep file to Runs: what is merged over what, which Runs are one, how a folder is found again."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from jobs.plan import existing_runs
from jobs.plan.graph import Graph, Job
from tests.jobs.conftest import EXAMPLE, write_index
from vitssl import config
from vitssl.config import ConfigError
from vitssl.files import hash_file

ROOT = Path(__file__).resolve().parents[2]


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
    """What is set for one arm wins over what is set for all, in any order; a path as in the file is understood too."""
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
    with pytest.raises(ConfigError, match=r"command line: arms.opt: 'opt' is not known \(did you mean opt_in"):
        nodes("arms.opt.resources.nodes=8")
    with pytest.raises(ConfigError, match=r"command line: arms.opt_in.resources.node: .*nodes"):
        nodes("arms.opt_in.resources.node=8")


def test_an_axis_of_a_stage_is_not_overridden_either(expand) -> None:
    text = EXAMPLE.replace("seed: [0, 1]", "finetune.optim.lr: [0.1, 0.2]")
    for word in ("optim.lr=1", "finetune.optim.lr=1"):
        with pytest.raises(ConfigError, match=rf"^command line: {word[:-2]}: axes.finetune.optim.lr sets it; write axes.finetune"):
            expand(word, text=text)
    assert {job.run.optim.lr for job in expand("pretrain.optim.lr=1", text=text).jobs if job.stage == "pretrain"} == {1}


@pytest.mark.parametrize(("words", "refused"), [(["axes.data=[plain,big]"], True), (["axes.data=big"], False), ([], False)])
def test_values_of_an_axis_that_an_override_makes_equal_are_refused(expand, words, refused) -> None:
    """plain sets nothing, big the size alone, flipped something else: one run would be counted twice."""
    if refused:
        with pytest.raises(ConfigError, match=r"data.image_size: your value would make plain, big of axes.data identical; choose one with"):
            expand("data.image_size=16", *words)
    else:
        assert {job.run.data.image_size for job in expand("data.image_size=16", *words).jobs} == {16}


def test_a_field_of_an_objective_applies_where_that_is_on_and_switches_none_on(expand) -> None:
    graph = expand("objectives.mae.mask_ratio=0.5", "arms=[scratch,chain_short]")
    assert {job.run.objectives.mae and job.run.objectives.mae.mask_ratio for job in graph.jobs} == {None, 0.5}
    assert all((job.run.objectives.mae is not None) == (job.stage == "pretrain") for job in graph.jobs)
    graph = expand("objectives.mae={}", "objectives.mae.mask_ratio=0.5", "arms=[scratch]")
    assert {job.run.objectives.mae.mask_ratio for job in graph.jobs} == {0.5}


def test_a_whole_objective_wins_over_its_fields(expand) -> None:
    """`null` is not taken back by a field, whatever the order; a field is not lost where a mapping switches its objective on."""
    for words in (("objectives.mae=null", "objectives.mae.weight=0.3"), ("objectives.mae.weight=0.3", "objectives.mae=null")):
        with pytest.raises(ConfigError, match=r"objectives\.mae\.weight: objectives\.mae is off in all of these Runs"):
            expand(*words, "pretrain.objectives.classify={}")
    graph = expand("objectives.mae.weight=0.3", "objectives={mae: {mask_ratio: 0.5}}", "arms=[scratch]")
    assert {(job.run.objectives.mae.weight, job.run.objectives.mae.mask_ratio) for job in graph.jobs} == {(0.3, 0.5)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["finetune={optim.lr: 0.5, loop: {epochs: 3}}"], ["finetune.optim.lr=0.5", "finetune.loop.epochs=3"]),
        (["arms.chain_short={loop.epochs: 3}"], ["arms.chain_short.loop.epochs=3"]),
        (["arms={chain_long: {stages: {finetune: {loop.epochs: 3}}}}"], ["arms.chain_long.finetune.loop.epochs=3"]),
        (["axes={seed: [3]}"], ["axes.seed=3"]),
        (["optim={lr: 0.2}", "optim.lr=0.3"], ["optim.lr=0.3"]),  # the last one wins
    ],
)
def test_a_mapping_is_its_entries_one_by_one(expand, one: list[str], other: list[str]) -> None:
    assert [job.run for job in expand(*one).jobs] == [job.run for job in expand(*other).jobs] != [job.run for job in expand().jobs]


def test_resources_may_be_a_mapping_too(expand) -> None:
    graph = expand("resources={hours: 2}", "arms.scratch.resources={hours: 3}", "arms=[scratch,chain_short]")
    assert {(job.arm, job.resources.hours, job.resources.nodes) for job in graph.jobs} == {("scratch", 3, 1), ("chain_short", 2, 1)}


def test_a_stage_of_no_arm_that_runs_is_refused(expand) -> None:
    with pytest.raises(ConfigError, match=r"finetune.optim.lr: finetune is not a stage of any selected arm \(scratch\)"):
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


def test_a_folder_is_named_by_the_axes_that_set_its_run_or_a_parents(expand) -> None:
    text = EXAMPLE.replace("{data.views", "{finetune.data.views").replace("data.image_size: 32", "finetune.data.image_size: 32")
    text = text.replace("seed: [0, 1]", "seed: [0, 1]\n  pretrain.loop.epochs: [5, 6]")
    graph = expand("arms=[chain_short]", text=text)
    pretraining = pick(graph, "chain_short", "pretrain", data="flipped", seed=0, **{"pretrain.loop.epochs": 6})
    assert pretraining.folder.name == f"chain_short-pretrain-s0-epochs6-{pretraining.identity}"
    assert pretraining.axes == {"seed": 0, "pretrain.loop.epochs": 6}
    child = pick(graph, "chain_short", "finetune", data="flipped", seed=0, **{"pretrain.loop.epochs": 6})
    assert child.folder.name == f"chain_short-finetune-flipped-s0-epochs6-{child.identity}"


def test_a_folder_is_found_again_by_its_hash(expand) -> None:
    shared = pick(expand("arms=[chain_short]"), "chain_short", "pretrain", data="plain", seed=0)
    config.save(shared.run, shared.folder)
    assert shared.folder.name == f"chain_short-pretrain-plain-s0-{shared.identity}"
    # asked for by the other arm alone, the pretraining that is there is taken
    assert pick(expand("arms=[chain_long]"), "chain_long", "pretrain", data="plain", seed=0).folder == shared.folder


def test_folders_of_an_earlier_schema_are_found_by_what_they_hold(expand) -> None:
    """A chain whose folders have other hashes in their names, moved to another place since it was made."""
    parent, child = (pick(expand("arms=[chain_short]"), "chain_short", s, data="plain", seed=0) for s in ("pretrain", "finetune"))
    former = {job.stage: job.folder.with_name(f"former-{job.stage}-0123456789ab") for job in (parent, child)}
    child.run.init_from = f"/elsewhere/{former[parent.stage].name}"
    for job in (parent, child):
        config.save(job.run, former[job.stage])
    graph = expand("arms=[chain_short]")
    for job in (parent, child):
        assert pick(graph, "chain_short", job.stage, data="plain", seed=0).folder == former[job.stage]
    other = expand("arms=[chain_short]", "pretrain.optim.lr=0.5")  # the parent's rate changes the child too
    assert not {job.folder for job in other.jobs} & set(former.values())


def test_a_folder_that_cannot_be_read_is_told_and_not_taken(expand, capsys) -> None:
    job = expand().jobs[0]
    config.save(job.run, job.folder)
    (job.folder / "run.yaml").write_text("loop: {epocs: 3}")
    graph = expand()
    assert f"note: {job.folder.name} is not counted as a run of this sweep: {job.folder}/run.yaml: loop.epocs" in capsys.readouterr().err
    assert graph.jobs[0].folder == job.folder, "its name is what a new run's is"


def test_data_that_changed_is_another_run(expand, place) -> None:
    before = expand().jobs[0].identity
    write_index(place / "shards" / "digits", [("train", 101), ("test", 20)])
    assert expand().jobs[0].identity != before


def test_a_run_to_start_from_is_named_by_the_beginning_of_its_name(expand, place: Path) -> None:
    (job,) = expand("arms=[scratch]", "axes.data=[plain]", "axes.seed=[0]").jobs
    for name in ("first-s0-aaaa", "first-s1-bbbb"):
        config.save(job.run, place / "earlier" / name)
        (place / "earlier" / name / "done.json").write_text('{"step": 0, "epochs": 0.0}')
    words = ("arms=[scratch]", "axes.data=[plain]", "axes.seed=[0]")
    (child,) = expand(*words, "init_from=earlier/first-s1").jobs
    assert child.run.init_from == str(place / "earlier" / "first-s1-bbbb")
    (child,) = expand(*words, "init_from=earlier/first-s").jobs
    assert Path(child.run.init_from).name == "first-s", "whole words only"
    with pytest.raises(ConfigError, match=r"init_from: earlier/first stands for 2 runs: first-s0-aaaa and first-s1-bbbb; name one"):
        expand(*words, "init_from=earlier/first")


def test_values_too_long_for_the_name_of_a_folder_are_refused_before_anything_is_made(expand, place: Path) -> None:
    long = "jitter" * 40
    with pytest.raises(ConfigError, match=r"sweep\.yaml: axes: a run's folder would have a name of \d+ letters, .*; give values short"):
        expand("arms=[scratch]", f"axes.mix={{{long}: {{optim.lr: 0.1}}, b: {{optim.lr: 0.2}}}}")


def test_a_file_of_weights_is_read_once_for_all_runs_and_again_when_it_has_changed(expand, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(existing_runs, "hash_file", lambda path: read.append(path) or hash_file(path))
    words, weights = ("arms=[scratch]", "init_from=weights.pt"), Path("weights.pt").resolve()
    weights.write_bytes(b"one")
    first = {job.identity for job in expand(*words).jobs}
    assert len(first) == 4 and read == [weights]
    weights.write_bytes(b"other")
    os.utime(weights, (0, 0))
    assert first.isdisjoint(job.identity for job in expand(*words).jobs) and read == [weights] * 2


def test_pretraining_that_reads_no_labels_is_one_however_many_are_hidden(expand) -> None:
    words = ["arms=[scratch,chain_short]", "axes.seed=[0]", "axes.data=[plain]", "axes.data.labels.per_class=[5,10]", "optim.batch_size=4"]
    graph = expand(*words)
    assert Counter((job.arm, job.stage) for job in graph.jobs) == {
        ("scratch", "train"): 2,
        ("chain_short", "pretrain"): 1,
        ("chain_short", "finetune"): 2,
    }
    assert "per_class" not in next(job.name for job in graph.jobs if job.stage == "pretrain")
    finetuned = [job for job in graph.jobs if job.stage == "finetune"]
    assert {job.run.data.labels.per_class for job in finetuned} == {5, 10} and len({job.run.init_from for job in finetuned}) == 1
    with pytest.raises(ConfigError, match=r"evals\.knn: it learns from labels, while this pretraining ignores them and is shared by arms"):
        expand(*words, "evals={knn: {type: knn, k: 1}}")
    expand(*words, "finetune.evals={knn: {type: knn, k: 1}}")


def test_a_trained_pretraining_is_not_evaluated_with_another_commands_labels(expand) -> None:
    words = ["arms=[chain_short]", "axes.seed=[0]", "axes.data=[plain]", "optim.batch_size=4", "pretrain.evals={knn: {type: knn, k: 1}}"]
    pretraining = pick(expand(*words, "data.labels.per_class=5"), "chain_short", "pretrain", data="plain", seed=0)
    config.save(pretraining.run, pretraining.folder)
    expand(*words, "data.labels.per_class=5")
    with pytest.raises(ConfigError, match=r"evals\.knn: it learns from labels, while this pretraining ignores them"):
        expand(*words, "data.labels.per_class=10")


@pytest.mark.parametrize(
    "field", ["loop.compile=[true,false]", "loop.threads=[1,2]", "data.workers=[2,4]", "backbone.fused_attention=[true,false]"]
)
def test_results_that_nothing_would_tell_apart_are_refused(expand, field: str) -> None:
    """One run would be trained for both, and stand in the report as two."""
    with pytest.raises(ConfigError, match=r"does not affect results, .* give each its own sweep") as error:
        expand(f"axes.{field}")
    assert error.value.field == field.split("=")[0]


def test_equal_runs_are_evaluated_as_each_of_them_asks(expand) -> None:
    """Arms that share a run may differ by evaluators alone, which do not affect results."""
    words = ["axes.seed=0", "axes.data=plain", "arms=[chain_short,chain_long]"]
    of_each = ["arms.chain_short.pretrain.evals.knn={type: knn, k: 5}", "arms.chain_long.pretrain.evals.probe={type: linear}"]
    assert [sorted(job.run.evals) for job in expand(*words, *of_each).jobs if job.stage == "pretrain"] == [["knn", "probe"]]
    one_of = ["arms.chain_short.pretrain.evals.knn=null", "arms.chain_long.pretrain.evals.knn={type: knn, k: 5, every: 2}"]
    for asked in (one_of, [of_each[0], one_of[1]]):  # null is none; how often it is run changes no result
        (pretrain,) = (job for job in expand(*words, *asked).jobs if job.stage == "pretrain")
        assert pretrain.run.evals["knn"]["k"] == 5
    of_each[1] = "arms.chain_long.pretrain.evals.knn={type: knn, k: 7}"
    with pytest.raises(ConfigError, match=r"run chain_short-pretrain-.* is shared, which has another 'knn'; give one of them") as error:
        expand(*words, *of_each)
    assert error.value.field == "evals.knn"


def test_a_field_that_only_some_arms_read_is_for_these_alone(expand) -> None:
    """On the command line and as an axis, whose values then make no two runs of the other arms; where no arm reads it, it is refused."""
    text, words = (
        (ROOT / "sweeps" / "own_images.yaml").read_text(),
        ["data.shards=shards/digits", "axes.seed=[0]"],
    )
    typed = expand(*words, "data.labelled_batch_fraction=0.5", text=text)
    assert {job.run.data.labelled_batch_fraction for job in typed.jobs} == {0.5}
    graph = expand(*words, "axes.data.labelled_batch_fraction=[null,0.5]", text=text)
    names = sorted(job.folder.name.rpartition("-")[0].replace("-equal_epochs-vit_pico_64px", "") for job in graph.jobs)
    assert names == [
        "scratch-s0", "ssat-s0-labelled_batch_fraction0.5", "ssat-s0-labelled_batch_fractionnull", "sslft-finetune-s0", "sslft-pretrain-s0"
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="has an effect only with an objective that reads labels beside one that needs none"):
        expand(*words, "arms=[scratch,sslft]", "data.labelled_batch_fraction=0.5", text=text)


def test_a_field_typed_for_an_arm_that_does_not_read_it_is_refused_although_another_does(expand) -> None:
    text, words = (ROOT / "sweeps" / "own_images.yaml").read_text(), ["data.shards=shards/digits", "axes.seed=[0]"]
    of_ssat, of_scratch = (f"arms.{arm}.data.labelled_batch_fraction=0.5" for arm in ("ssat", "scratch"))
    assert expand(*words, of_ssat, text=text)
    with pytest.raises(ConfigError, match="has an effect only with"):
        expand(*words, of_ssat, of_scratch, text=text)


def test_null_is_chosen_from_the_axis_of_a_file(expand) -> None:
    text = EXAMPLE.replace("  seed: [0, 1]", "  seed: [0, 1]\n  loop.ema_decay: [null, 0.9]")
    assert {job.run.loop.ema_decay for job in expand(text=text).jobs if job.run.objectives.classify} == {None, 0.9}
    assert {job.run.loop.ema_decay for job in expand("axes.loop.ema_decay=[null]", text=text).jobs} == {None}
