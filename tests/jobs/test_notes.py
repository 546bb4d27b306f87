"""What is said before a training that may not be meant."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from jobs import notes, overrides, sweep
from jobs.graph import cells
from tests.jobs.conftest import EXAMPLE
from vitssl.config import ConfigError

FEW = ["axes.data=[plain]", "axes.seed=[0]"]


@pytest.fixture
def said(place: Path, monkeypatch: pytest.MonkeyPatch):
    """`said(*words, text=..., grey=...)`: the notes of the example, whose images are coloured or grey."""

    def make(*words: str, text: str = EXAMPLE, grey: bool = False) -> list[str]:
        Path("sweep.yaml").write_text(text)
        spec = sweep.read(Path("sweep.yaml"), overrides.parse([*words, *FEW]))
        made = cells(spec)
        index = notes.expected_index(made[0].stages[0].run.data)
        coloured = dataclasses.replace(index, mean=[0.5] * 3 if grey else [0.5, 0.4, 0.3])
        monkeypatch.setattr(notes, "expected_index", lambda data: coloured)
        try:
            return notes.notes(spec, made)
        finally:
            monkeypatch.undo()
            monkeypatch.chdir(place)

    return make


SIMCLR = ["arms=[scratch]", "objectives={classify: null, simclr: {}}", "data.views.second={}"]


def test_contrasted_views_of_unchanged_colours_are_told(said) -> None:
    (note,) = said(*SIMCLR)
    told, _, to_add = note.partition(": add ")
    assert told == "simclr of scratch compares views of unchanged colours, which its paper changes"
    keys = [word.partition("=")[0] for word in shlex.split(to_add)]
    assert keys == [f"arms.scratch.data.views.{view}.color" for view in ("main", "second")]
    assert said(*SIMCLR, *shlex.split(to_add)) == said(*SIMCLR, grey=True) == []
    kinds = {"scratch": "classify", "chain_short.pretrain": "mae"}
    both = [f"arms.{place}.objectives={{{kind}: null, simclr: {{}}}}" for place, kind in kinds.items()]
    words = ["arms=[scratch,chain_short]", *both, "data.views.second={}"]
    (note,) = said(*words)
    assert note.startswith("simclr of scratch and chain_short.pretrain") and said(*words, *shlex.split(note.partition(": add ")[2])) == []


def test_an_axis_of_draws_is_told_of_redraw(said) -> None:
    (note,) = said("arms=[scratch]", "data.labels.per_class=3", "axes.data.labels.seed=[0,1]")
    assert said("arms=[scratch]", "data.labels={per_class: 3, redraw: true}", "axes.data.labels.seed=[0,1]") == []
    assert note.startswith("axes.data.labels.seed compares draws as it does settings; data.labels.redraw=true draws others with each seed")
    assert said("arms=[scratch]", "data.labels={per_class: 3, redraw: true}") == []


def test_an_axis_of_data_that_some_arms_do_not_have_is_told(said) -> None:
    words = ["axes.finetune.data.labels.per_class=[1,2]", "arms=[scratch,chain_short]"]
    (note,) = [note for note in said(*words) if "reach" in note]
    have = "scratch, without finetune, has the same data at each value; axes.data.labels.per_class would be of all stages that read it"
    assert note == f"axes.finetune.data.labels.per_class does not reach all arms: {have}"
    assert not any("reach" in note for note in said("axes.data.labels.per_class=[1,2]", "arms=[scratch,chain_short]"))
    assert not any("reach" in note for note in said("axes.finetune.optim.lr=[1e-3,1e-4]", "arms=[scratch,chain_short]"))


def test_folds_that_no_seed_tests_are_told(said) -> None:
    assert "of data.folds=3 the seeds test 1; 'axes.seed=[0,1,2]' tests all" in said("data.folds=3")


def test_an_objective_that_trains_nothing_is_told(said) -> None:
    small = "objectives.mae={decoder_dim: 16, decoder_depth: 1, weight: 0}"
    (note,) = (told for told in said("arms=[scratch]", small) if "weight" in told)
    assert note.startswith("mae of scratch has a weight of 0") and note.endswith("objectives.mae=null switches it off")
    with pytest.raises(ConfigError, match="is 0, and so is that of every other objective: nothing would be trained"):
        said("arms=[scratch]", "objectives.classify.weight=0")


def test_stages_that_an_axis_does_not_reach_are_told(said) -> None:
    text = EXAMPLE.replace("  seed: [0, 1]", "  seed: [0, 1]\n  optim.lr: [1.0e-3, 1.0e-4]").replace(
        "{objectives.mae: {}, loop.epochs: 5}", "{objectives.mae: {}, loop.epochs: 5, optim.lr: 5.0e-4}"
    )
    assert said("arms=[chain_short]", "pretrain.objectives.mae.decoder_dim=64", text=text) == [
        "axes.optim.lr does not reach chain_short.pretrain, which sets optim.lr=0.0005 instead"
    ]
    assert said("arms=[chain_short]", "pretrain.objectives.mae.decoder_dim=64") == []


def test_a_decoder_that_is_far_larger_than_its_network_is_told(said) -> None:
    told = "mae's decoder is 512 wide and 8 deep, the network 96 and 4: it will cost most of the training"
    assert [note.partition(";")[0] for note in said("arms=[chain_short]")] == [told]
    assert said("arms=[chain_short]", "pretrain.objectives.mae={decoder: pixel_shuffle, hide: mask}") == []


def test_a_baseline_that_starts_from_trained_weights_is_told(said, place: Path) -> None:
    (note,) = said("arms=[scratch]", f"init_from={place}")
    assert note == f"scratch, the baseline, starts from {place} too; what that cost is in no figure of this sweep"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("finetune.optim.lr=1e-4", "arms.chain_short.optim.lr=5e-4", "arms=[chain_short]"),
            "finetune.optim.lr: arms.chain_short.optim.lr sets it wherever this would; leave it out, or write arms.chain_short.finetune",
        ),
    ],
)
def test_a_setting_that_reaches_no_stage_is_refused(said, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        said(*words)
    assert str(error.value).startswith(f"command line: {message}")
    said("finetune.optim.lr=1e-4", "arms.chain_short.optim.lr=5e-4", "arms=[chain_short,chain_long]")  # of chain_long's it is
    said("optim.lr=1e-4", "train.optim.lr=1e-3", "arms=[scratch]")


def test_a_pretraining_beside_the_labels_is_told(said) -> None:
    (note,) = said("arms=[scratch]", "objectives.mae={decoder_dim: 16, decoder_depth: 1}")
    assert note.startswith("mae of scratch is trained beside classify, in the same steps; to pretrain by mae alone takes a stage before")
    for meant in ("objectives={classify: {}, mae: {decoder_dim: 16, decoder_depth: 1}}", "objectives={classify: {}, drloc: {}}"):
        assert said("arms=[scratch]", meant) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["optim.lr=0"], ["optim.lr=0 trains nothing"]),
        (["optim.lr=100"], ["optim.lr=100 is far more than adamw trains a network with; 1e-3 and less are usual"]),
        (["optim.lr=100", "optim.name=lars"], []),
        (["optim.lr=5e-3"], []),
        (["optim.min_lr=1"], ["optim.min_lr=1 is more than the learning rate after the warm-up, LR: the rate rises to it"]),
        (["optim.warmup_lr=5"], ["optim.warmup_lr=5 is more than the learning rate after the warm-up, LR: the rate begins there"]),
        (["optim.lr=0.01", "optim.min_lr=1e-5", "optim.warmup_lr=1e-5"], []),
    ],
)
def test_rates_at_which_nothing_is_learned(said, words, told):
    assert [re.sub("warm-up, [^:]+", "warm-up, LR", note) for note in said(*words, "arms=[scratch]") if note.startswith("optim.")] == told


def test_coarse_images_and_evaluations_that_never_come_are_told(said):
    size, epochs = "data.image_size=16", ["loop.epochs=3", "loop.warmup_epochs=0", "arms=[scratch]"]
    assert said(size, "data.cache_px=16", "loop.eval_every=3", *epochs) == said(size, "loop.eval_every=0", *epochs) == []
    assert said(size, "data.cache_px=15", *epochs) == ["data.cache_px=15 shrinks images that are then enlarged to data.image_size=16 again"]
    assert said("loop.eval_every=4", *epochs) == ["loop.eval_every=4 is more than the 3 epochs: there is one evaluation, at the end"]


@pytest.mark.parametrize(
    ("labelled", "words", "told"), [(30, [], True), (30, ["loop.epochs=9"], False), (600, [], False)], ids=["few", "epochs", "all"]
)
def test_an_objective_that_makes_epochs_longer_is_said_to(said, monkeypatch, labelled, words, told):
    """600 images of which 30 have a label: 20 times the steps for as many epochs."""
    counts = {"train_images": 600, "labelled_images": labelled, "val_images": 0, "test_images": 9}
    monkeypatch.setattr(notes, "image_counts", lambda run: counts)
    found = [note for note in said("arms=[scratch]", "objectives={classify: {}, drloc: {}}", *words) if "needs no label" in note]
    sees = "drloc of scratch needs no label: an epoch is of all 600 images, of which 30 have a label; loop.epochs="
    assert bool(found) is told and all(note.startswith(sees) for note in found)


def test_what_this_machine_has_not_is_told(place: Path) -> None:
    def told(*words: str) -> list[str]:
        spec = sweep.read(Path("sweep.yaml"), overrides.parse([*words, *FEW]))
        return list(notes.here(spec, cells(spec)))

    Path("sweep.yaml").write_text(EXAMPLE)
    assert told() == told("loop.threads=1", "resources.nodes=1") == []
    nodes, threads = told("resources.nodes=2", "loop.threads=999")
    assert nodes == "resources.nodes=2 is of a cluster; this machine trains on one"
    assert threads.startswith("loop.threads=999 are more than the ") and "of this machine, on which they wait for each other" in threads


def test_a_metric_of_as_many_classes_as_there_are_is_told(said) -> None:
    (note,) = said("arms=[scratch]", "metric=top5")
    assert note == "metric=top5 is 100 % of whatever is trained: of 2 classes the right one is always among the first 5"
    assert said("arms=[scratch]", "metric=top1") == []


def test_a_rate_of_the_file_is_looked_at_too(said) -> None:
    text = EXAMPLE.replace("  seed: [0, 1]", "  seed: [0, 1]\n  optim.lr: [1.0e-3, 10.0]")
    assert text != EXAMPLE
    assert "optim.lr=10 is far more than adamw trains a network with; 1e-3 and less are usual" in said("arms=[scratch]", text=text)
