"""Arms that train for what another arm's training costs, and budgets that a submission may not exceed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.inputs import prepare
from jobs.plan import equalize, graph, overrides, predict, shards, sweep
from jobs.plan.architecture import architecture
from jobs.plan.cells import Cell, cells
from jobs.plan.launch import Launch
from jobs.source import digest, source_files
from tests.jobs.conftest import write_finished
from tests.report.conftest import record
from vitssl.config import ConfigError, Site, active

TEXT = """
name: example
baseline: scratch
defaults:
  data: {shards: shards/digits}
  optim.batch_size: 20
  loop: {epochs: 40, warmup_epochs: 4}
axes: {seed: [0, 1]}
arms:
  scratch: {stages: {train: {objectives.classify: {}}}}
  chain:
    stages:
      pretrain: {objectives.mae: {}, loop: {epochs: 30, warmup_epochs: 3}}
      finetune: {objectives.classify: {}, init_from: pretrain, loop: {epochs: 10, schedule_epochs: 20, warmup_epochs: 1}}
  joint: {stages: {train: {objectives: {classify: {}, mae: {}}}}}
"""
MACS = {("classify",): 2e9, ("mae",): 1e9, ("classify", "mae"): 3e9}  # scratch 80, chain 30 + 20, joint 120, times 1e9 x 100 images
BOTH = "{as written: {}, equal: {equalize: macs, equal_to: joint}}"


class Plan(NamedTuple):
    spec: sweep.Spec
    cells: list[Cell]
    launch: Launch


@pytest.fixture
def plan(place: Path):
    """`plan(*words)`: the spec, its cells after `equalize`, and the launch."""

    def make(*words: str, text: str = TEXT) -> Plan:
        Path("sweep.yaml").write_text(text)
        spec = sweep.read("sweep.yaml", overrides.parse(list(words)))
        planned = cells(spec)
        prepare.shards(stage for cell in planned for stage in cell.stages)
        launch = Launch(place / "runs" / spec.name, "local", Site(), place, commit=(None, True))
        write_costs(launch, planned)
        equalize.apply(spec, planned, launch)
        return Plan(spec, planned, launch)

    return make


def write_costs(launch: Launch, cells: list[Cell]) -> None:
    """The cache of counted MACs: two classes, today's source."""
    for run in (stage.run for cell in cells for stage in cell.stages):
        path = launch.sweep.parent / ".cost" / f"{architecture(run)}-2-{digest(source_files())[:12]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"macs_train_step": MACS[tuple(active(run.objectives))], "macs_inference": 1e9}))


def epochs(cells: list[Cell], **axes: object) -> dict[str, list[int]]:
    return {cell.arm: [stage.run.loop.epochs for stage in cell.stages] for cell in cells if cell.axes.items() >= axes.items()}


def test_arms_train_for_as_many_macs_as_the_reference(plan):
    _, cells, *_ = plan("equalize=macs", "equal_to=joint")
    assert epochs(cells) == {"scratch": [60], "chain": [72, 24], "joint": [40]}


def test_rounding_a_dear_pretraining_hardly_changes_the_fine_tuning(plan, monkeypatch):
    """1.22 x 8 = 9.75 each: 10 of 10e9 leave 8.5 of 2e9, and the nearest to that within an epoch of its share is 9."""
    monkeypatch.setitem(MACS, ("mae",), 10e9)
    short = TEXT.replace("loop: {epochs: 30,", "loop: {epochs: 8,").replace("loop: {epochs: 10,", "loop: {epochs: 8,")
    text = short.replace("joint: {stages: {train: {", "joint: {stages: {train: {loop.epochs: 39, ")
    _, cells, *_ = plan("equalize=macs", "equal_to=joint", text=text)
    assert epochs(cells)["chain"] == [10, 9]


def test_the_baseline_is_the_usual_reference(plan):
    """27 of joint's epochs cost 81: whole epochs."""
    _, cells, *_ = plan("equalize=macs")
    assert epochs(cells) == {"scratch": [40], "chain": [48, 16], "joint": [27]}


def test_warm_up_and_schedule_keep_their_shares(plan):
    _, cells, *_ = plan("equalize=macs", "equal_to=joint")
    scratch, chain = cells[0].stages[0].run.loop, cells[2].stages[1].run.loop
    assert scratch.warmup_epochs == 6.0
    assert (chain.warmup_epochs, chain.schedule_epochs) == (2.4, 48)


def test_an_axis_has_both_and_the_reference_is_trained_once(plan):
    spec, cells, launch = plan("arms=[scratch,joint]", text=TEXT.replace("seed: [0, 1]", f"seed: [0], cost: {BOTH}"))
    assert epochs(cells, cost="as written") == {"scratch": [40], "joint": [40]}
    assert epochs(cells, cost="equal") == {"scratch": [60], "joint": [40]}
    linked = graph.link(spec, cells, launch.sweep, shards.fingerprint)
    assert [(job.arm, job.run.loop.epochs) for job in linked.jobs] == [("scratch", 40), ("scratch", 60), ("joint", 40)]
    assert spec.equal_facts == {"all": None, "axes": {"cost": {"equal": {"quantity": "macs", "reference": "joint"}}}}


def test_hours_and_energy_are_what_finished_runs_took(plan, place):
    def finished(run, images_per_s: float, kwh: float) -> None:
        folder = place / "runs" / "pace" / architecture(run)
        write_finished(folder, {"architecture": architecture(run), "executor": "local", "site": {"gpu": None}}, [images_per_s])
        (folder / "emissions-0-here.json").write_text(json.dumps(record(energy_kwh=kwh)))

    _, cells, *_ = plan("arms=[scratch,joint]")
    with pytest.raises(
        ConfigError, match=r"^sweep.yaml: arms.\w+.stages.train: equalize: no finished run of another sweep in .* or use macs$"
    ):
        plan("arms=[scratch,joint]", "equalize=gpu_hours", "equal_to=joint")
    finished(cells[0].stages[0].run, 200.0, 2.0)
    finished(cells[2].stages[0].run, 100.0, 3.0)
    assert epochs(plan("arms=[scratch,joint]", "equalize=gpu_hours", "equal_to=joint")[1])["scratch"] == [80]
    assert epochs(plan("arms=[scratch,joint]", "equalize=kwh", "equal_to=joint")[1])["scratch"] == [60]
    shutil.copytree(place / "runs" / "pace", place / "runs" / "example")  # the sweep's own runs, at another pace, change no plan
    for done in (place / "runs" / "example").glob("*/metrics.jsonl"):
        done.write_text(done.read_text().replace("200.0", "900.0"))
    assert epochs(plan("arms=[scratch,joint]", "equalize=gpu_hours", "equal_to=joint")[1])["scratch"] == [80]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["equalize=mac"], r"^command line: equalize: 'mac' is none of macs, gpu_hours, kwh .did you mean macs"),
        (["equalize=macs", "equal_to=joined"], r"^command line: equal_to: 'joined' is not known .did you mean joint"),
        (
            ["equalize=macs", "equal_to=joint", "arms=[scratch]"],
            "^command line: equalize: joint, whose cost the other arms are to match",
        ),
        (["equalize=macs", "loop.max_steps=9"], "^command line: loop.max_steps: it ends a run before the epochs that equalize sets"),
        (
            ["equalize=macs", "arms=[scratch,joint]", "loop.epochs=1", "loop.warmup_epochs=0"],
            "^sweep.yaml: arms.joint.stages.train: loop.epochs: rounding to whole epochs leaves the macs 50% away from scratch's; "
            r"rounding matters less with more loop.epochs, or if equal_to names a costlier arm$",
        ),
        (["data.shards=nowhere", "data.source=torchvision:CIFAR", "equalize=macs"], "equalize needs its number of images; build it first"),
    ],
)
def test_a_mistake_is_one_line(plan, words, message):
    with pytest.raises(ConfigError, match=message):
        plan(*words)


# ---------------------------------------------------------------------------------------------------------------- budget


def prediction(job: graph.Job, gpu_hours: float, kwh: float | None) -> predict.Prediction:
    return predict.Prediction(job.name, 1.0, 1.0, gpu_hours, gpu_hours, kwh, kwh, 2 * gpu_hours, "")


def hold(plan, *words: str, kwh: float | None = 1.0, leave_out: int = 0, times: float = 1.0) -> None:
    """Four runs of scratch and joint at 2 and 5 GPU-hours each, ``times`` a factor: 0 on CPUs."""
    spec, cells, launch = plan("arms=[scratch,joint]", *words)
    linked = graph.link(spec, cells, launch.sweep, shards.fingerprint)
    predictions = [prediction(job, times * {"scratch": 2.0, "joint": 5.0}[job.arm], kwh) for job in linked.jobs[leave_out:]]
    predict.check_budget(spec, linked, predictions, dataclasses.replace(launch.site, price_per_gpu_hour=2.0))


def test_what_costs_more_than_its_budget_is_refused_with_its_largest_parts(plan):
    hold(plan, "budget.gpu_hours=14", "budget.kwh=4")
    with pytest.raises(ConfigError, match=r"budget.gpu_hours: 14 GPU-hours are .* than 13; the largest part: joint 10$"):
        hold(plan, "budget.gpu_hours=13")
    with pytest.raises(ConfigError, match=r"^command line: budget.money: 28 USD are predicted, more than 27.5;"):
        hold(plan, "budget={money: 27.5}")
    with pytest.raises(ConfigError, match=r"^sweep.yaml: budget.kg_co2e: 4 kg CO2e are predicted"):
        hold(lambda *words: plan(*words, text=TEXT + "budget: {kg_co2e: 3}"))


def test_a_budget_of_what_cannot_be_predicted_is_refused(plan):
    with pytest.raises(ConfigError, match=r"^command line: budget.kwh: CPU energy is unknown until a first run"):
        hold(plan, "budget.kwh=100", kwh=None)
    with pytest.raises(ConfigError, match=r"budget.gpu_hours: scratch-s0-\w+ cannot be predicted before its shards are built"):
        hold(plan, "budget.gpu_hours=100", leave_out=1)
    for name in ("gpu_hours", "money"):
        with pytest.raises(ConfigError, match=rf"^command line: budget.{name}: these runs use no GPU, .* set budget.kwh"):
            hold(plan, f"budget.{name}=100", times=0.0)
    for amount in (".nan", "-1", ".inf"):
        with pytest.raises(ConfigError, match=r"^command line: budget.kwh: \S+ is not an amount$"):
            hold(plan, f"budget.kwh={amount}")
    with pytest.raises(ConfigError, match=r"^command line: budget: name a field, for example budget.gpu_hours=100$"):
        plan("budget=3")
    with pytest.raises(ConfigError, match=r"^command line: budget.hours: 'hours' is not known .did you mean gpu_hours"):
        plan("budget.hours=3")


def test_a_length_stretches_every_stage_once_and_then_costs_are_made_equal(plan) -> None:
    whole, half = plan()[1], plan("length=0.5")[1]
    assert {arm: [max(1, round(n / 2)) for n in stages] for arm, stages in epochs(whole).items()} == epochs(half)
    for cell, other in zip(whole, half, strict=True):
        for stage, shorter in zip(cell.stages, other.stages, strict=True):
            share = shorter.run.loop.epochs / stage.run.loop.epochs
            assert shorter.run.loop.warmup_epochs == pytest.approx(share * stage.run.loop.warmup_epochs)
    equal = plan("length=0.5", "equalize=macs", "equal_to=joint")[1]
    assert epochs(equal)["joint"] == epochs(half)["joint"] and epochs(equal)["scratch"][0] > epochs(half)["scratch"][0]


def test_arms_of_as_many_epochs_stay_so_at_any_length(plan) -> None:
    """A chain of 50 + 50 beside 100, in whole epochs, of which each stage has one at least."""
    words = ("loop.schedule_epochs=null", "pretrain.loop.epochs=50", "finetune.loop.epochs=50", "train.loop.epochs=100")
    for length, chain, whole in (("0.05", [2, 3], 5), ("0.03", [2, 1], 3), ("0.01", [1, 1], 1), ("1.5", [75, 75], 150)):
        found = epochs(plan(f"length={length}", *words)[1])
        assert found["chain"] == chain and found["scratch"] == [whole], length


def test_steps_that_end_a_run_first_are_refused_where_a_length_is_asked_for(plan) -> None:
    with pytest.raises(ConfigError, match=r"loop.max_steps: it ends a run before the epochs that length=0.5 sets; leave it out"):
        plan("length=0.5", "loop.max_steps=5")


def test_only_what_is_made_equal_has_to_be_counted(plan) -> None:
    steps = f"axes.cost={BOTH.replace('as written: {}', 'as written: {loop.max_steps: 5}')}"
    plan(steps)
    with pytest.raises(ConfigError, match=r"it ends a run before the epochs that equalize sets"):
        plan(f"axes.cost={BOTH.replace('{equalize', '{loop.max_steps: 5, equalize')}")


@pytest.mark.parametrize("length", ["0", "-1", "1001", ".nan"])
def test_a_length_that_is_none_is_refused(plan, length: str) -> None:
    with pytest.raises(ConfigError, match=r"^command line: length: .* is not above 0 and at most 1000; 0.5 trains half as long"):
        plan(f"length={length}")
