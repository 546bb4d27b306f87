"""What is said before a training that may not be meant."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from jobs.plan import notes, overrides, sweep
from jobs.plan.cells import cells
from tests.jobs.conftest import EXAMPLE, write_index
from vitssl.config import ConfigError, Site

FEW = ["axes.data=[plain]", "axes.seed=[0]"]


@pytest.fixture
def said(place: Path, monkeypatch: pytest.MonkeyPatch):
    """`said(*words, text=..., grey=...)`: the notes of the example, whose images are coloured or grey."""

    def make(*words: str, text: str = EXAMPLE, grey: bool = False, gpu: str | None = None, real: bool = False) -> list[str]:
        Path("sweep.yaml").write_text(text)
        spec = sweep.read(Path("sweep.yaml"), overrides.parse([*words, *FEW]))
        made = cells(spec)
        if real:  # the indexes on disk, of grey images
            return notes.notes(spec, made, Site(gpu=gpu))
        index = notes.expected_index(made[0].stages[0].run.data)
        coloured = dataclasses.replace(index, mean=[0.5] * 3 if grey else [0.5, 0.4, 0.3])
        monkeypatch.setattr(notes, "expected_index", lambda data: coloured)
        try:
            return notes.notes(spec, made, Site(gpu=gpu))
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
    told = said(*words)
    assert [note.partition(" compares")[0] for note in told] == ["simclr of scratch", "simclr of chain_short.pretrain"]
    assert said(*words, *(word for note in told for word in shlex.split(note.partition(": add ")[2]))) == []


def test_few_labels_in_a_batch_are_told_where_another_objective_takes_the_other_images(said) -> None:
    joint = ["arms=[scratch]", "objectives={classify: {}, mae: {decoder_dim: 32}}", "data.labels.per_class=3"]
    (note,) = said(*joint, grey=True)
    told, _, advice = note.partition("; ")
    assert told == "of the 16 images in a batch of scratch, 0.96 have a label on average"  # 6 of 100 images do
    words = advice.partition(" draws ")[0]
    assert said(*joint, words, grey=True) == said(*joint[:-1], "data.labels.per_class=5", grey=True) == []
    assert said(*joint, "axes.data.labelled_batch_fraction=[null,0.5]", grey=True) == [], "it is known already"
    (useless,) = said(*joint[:-1], "data.labels.per_class=5", "data.labelled_batch_fraction=0.05", grey=True)
    assert useless == "data.labelled_batch_fraction=0.05 changes nothing for scratch: 0.1 of its images have a label"
    assert said("arms=[scratch]", "data.labels.per_class=3", grey=True) == [], "who reads labelled images alone has enough"


def test_folds_that_no_seed_tests_are_told(said) -> None:
    assert "the seeds test 1 of data.folds=3; 'axes.seed=[0,1,2]' tests all" in said("data.folds=3")


def test_a_pretraining_on_files_that_its_chain_is_tested_on_is_told(said, place: Path) -> None:
    """Of 100 and 20 images, the last are the test set: those of a pool whose files are the last 15 and others."""
    decoder = ["arms=[chain_short]", "pretrain.objectives.mae.decoder_dim=64"]
    assert said(*decoder) == []
    (place / "shards" / "pool").mkdir()
    for first, count in ((105, 15), (120, 0)):
        write_index(place / "shards" / "pool", [("train", 60)], "pool", first)
        told = [f"chain_short.pretrain trains on {count} images that chain_short is tested on: shards/pool holds the same files"] * (
            count > 0
        )
        assert [note.partition(";")[0] for note in said(*decoder, "pretrain.data.shards=shards/pool", real=True)] == told
    (told,) = said(*decoder, "pretrain.data.train_split=test", "pretrain.data.test_split=train", real=True)
    assert told.startswith("chain_short.pretrain trains on 20 images that chain_short is tested on: shards/digits holds the same files;")


def test_stages_that_an_axis_does_not_reach_are_told(said) -> None:
    text = EXAMPLE.replace("  seed: [0, 1]", "  seed: [0, 1]\n  optim.lr: [1.0e-3, 1.0e-4]").replace(
        "{objectives.mae: {}, loop.epochs: 5}", "{objectives.mae: {}, loop.epochs: 5, optim.lr: 5.0e-4}"
    )
    assert said("arms=[chain_short]", "pretrain.objectives.mae.decoder_dim=64", text=text) == [
        "axes.optim.lr does not reach arms.chain_short.stages.pretrain, which sets optim.lr=0.0005 instead"
    ]
    assert said("arms=[chain_short]", "pretrain.objectives.mae.decoder_dim=64") == []


def test_a_decoder_that_is_far_larger_than_its_network_is_told(said) -> None:
    told = "mae's decoder is 512 wide and 8 deep, the network 96 and 4: it will cost most of the training"
    assert [note.partition(";")[0] for note in said("arms=[chain_short]")] == [told]
    assert said("arms=[chain_short]", "pretrain.objectives.mae={decoder: pixel_shuffle, hide: mask}") == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("finetune.optim.lr=1e-4", "arms.chain_short.optim.lr=5e-4", "arms=[chain_short]"),
            "finetune.optim.lr: arms.chain_short.optim.lr sets it wherever this would; leave it out, or name an arm's stage",
        ),
    ],
)
def test_a_setting_that_reaches_no_stage_is_refused(said, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        said(*words)
    assert str(error.value).startswith(f"command line: {message}")
    said("finetune.optim.lr=1e-4", "arms.chain_short.optim.lr=5e-4", "arms=[chain_short,chain_long]")  # of chain_long's it is
    said("optim.lr=1e-4", "train.optim.lr=1e-3", "arms=[scratch]")


@pytest.mark.parametrize("gpu", ["V100", "Tesla V100-SXM2-32GB", "T4", "GeForce RTX 2080 Ti", "Quadro RTX 6000"])
def test_bf16_on_a_board_without_is_told(said, gpu) -> None:
    bf16 = ["arms=[scratch]", "loop.precision=bf16"]
    assert said(*bf16, gpu=gpu) == [f"a {gpu} has no native bf16, which makes it slow; use loop.precision=fp16"]
    assert said(*bf16) == said("arms=[scratch]", "loop.precision=fp16", gpu=gpu) == []


@pytest.mark.parametrize("gpu", ["A100-80GB", "H100", "L4", "RTX 4090", "RTX 3090", "RTX 6000 Ada", "A6000", "L40S"])
def test_boards_with_bf16_are_told_nothing(said, gpu) -> None:
    assert said("arms=[scratch]", "loop.precision=bf16", gpu=gpu) == []
