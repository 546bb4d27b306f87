"""The fields that a sweep's `smoke:` sets of its tiny Runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.plan import smoke, sweep
from jobs.plan.cells import Stage, cells
from tests.jobs.conftest import EXAMPLE
from vitssl.config import ConfigError


def tiny(place: Path, fields: str) -> dict[str, Stage]:
    """The shrunk stages of the example, by arm and stage, with these further fields."""
    (place / "sweep.yaml").write_text(f"{EXAMPLE}\nsmoke: {fields}\n")
    spec = smoke.narrow(sweep.read("sweep.yaml"))
    stages = {f"{cell.arm}.{stage.name}": stage for cell in cells(spec) for stage in cell.stages}
    for stage in stages.values():
        stage.run = smoke.shrink(stage.run, spec, place / "runs", stage.where, on_cpus=False)
    return stages


@pytest.mark.parametrize(
    "fields",
    [
        "{objectives: {mae: {decoder_dim: 16}}, data: {images: {per_class: 3}}}",
        "{objectives.mae.decoder_dim: 16, data.images.per_class: 3}",
    ],
)
def test_a_field_of_an_objective_applies_where_that_is_on(place: Path, fields: str) -> None:
    runs = {name: stage.run for name, stage in tiny(place, fields).items()}
    assert all(run.data.images.per_class == 3 for run in runs.values())
    assert runs["chain_short.pretrain"].objectives.mae.decoder_dim == 16
    for name in ("scratch.train", "chain_short.finetune"):
        assert runs[name].objectives.mae is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("{objectives: {maee: {decoder_dim: 16}}}", "objectives.maee: 'maee' is not known .did you mean mae"),
        ("{objectives.maee.decoder_dim: 16}", "objectives.maee: 'maee' is not known .did you mean mae"),
        ("{objectives: {simclr: {hidden_dm: 4}}}", "objectives.simclr.hidden_dm: .*did you mean hidden_dim"),  # which is on in no arm
        ("{optim: 8}", "optim: 8 is not a set of fields"),
    ],
)
def test_a_field_that_does_not_exist_is_refused_with_its_place_without_smoke_too(place: Path, fields: str, words: str) -> None:
    (place / "sweep.yaml").write_text(f"{EXAMPLE}\nsmoke: {fields}\n")
    with pytest.raises(ConfigError, match=f"sweep.yaml: smoke: .*{words}"):
        cells(sweep.read("sweep.yaml"))


def test_a_smoke_run_says_which_values_it_takes(place: Path) -> None:
    (place / "sweep.yaml").write_text(EXAMPLE)
    narrowed = smoke.narrow(sweep.read("sweep.yaml"))
    assert (
        smoke.summary_text(narrowed) == "smoke: five steps of tiny networks on digits, at the first value of every axis: data=plain, seed=0"
    )


def test_a_smoke_run_has_no_budget(place: Path) -> None:
    (place / "sweep.yaml").write_text(EXAMPLE + "budget: {gpu_hours: 0.001}\n")
    assert smoke.narrow(sweep.read("sweep.yaml")).budget.gpu_hours is None


def test_a_run_that_holds_a_split_out_holds_out_images(place: Path) -> None:
    """The digits have no such split, and what chooses an epoch, or is chosen by it, is tried too."""
    (place / "sweep.yaml").write_text(EXAMPLE.replace("shards: shards/digits", "shards: shards/digits, val_split: valid", 1))
    spec = smoke.narrow(sweep.read("sweep.yaml"))
    runs = [smoke.shrink(stage.run, spec, place / "runs", stage.where, on_cpus=False) for cell in cells(spec) for stage in cell.stages]
    assert runs and {(run.data.val_split, run.data.val_fraction) for run in runs} == {(None, 0.2)}
