"""What arms learned from where labels are few, told from the facts that their runs recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report.conftest import data_facts
from vitssl import report
from vitssl.report import unlabelled
from vitssl.report.collect import collect
from vitssl.report.findings import further, headlines, story
from vitssl.report.grid import lay_out

ARMS = [{"name": "scratch", "row": "Scratch"}, {"name": "sslft", "row": "SSL+FT"}, {"name": "ssat", "row": "SSAT"}]
FEW = {"scratch": 60.0, "sslft": 70.0, "ssat": lambda at: 75.0 + at["seed"]}
SEES = "Scratch learns from 30 labelled images alone, SSL+FT and SSAT also from 570 without a label."


def tell(folder: Path, run: str, train: int, labelled: int, **facts) -> None:
    """What the launcher wrote of some runs' images."""
    for path in folder.glob(f"{run}/job.json"):
        job = json.loads(path.read_text())
        job["data"] = data_facts(train_images=train, labelled_images=labelled) | facts
        path.write_text(json.dumps(job))


@pytest.fixture
def few(sweep):
    """As the quickstart: 30 labels, 600 images; scratch and fine-tuning need labels."""

    def make(top1=FEW, axes=None, **kwargs) -> Path:
        folder = sweep(top1, axes or {"seed": [0, 1, 2]}, **{"columns": None, "arms": ARMS, **kwargs})
        for run, train in (("scratch-*", 30), ("sslft-finetune-*", 30), ("sslft-pretrain-*", 600), ("ssat-*", 600)):
            tell(folder, run, train, 30)
        return folder

    return make


def test_the_story_is_labels_then_what_came_out_then_what_taught_it(few):
    first, best, take, _, why = story(lay_out(collect(few())))
    assert first == SEES
    assert take.startswith("For now take SSAT, the best. Worse: ")
    assert best.startswith("The best arm by top-1 is SSAT: 76.00 ± 1.00 % (3 seeds), +16.00 points against Scratch")
    assert why == (
        "With images without a label, against Scratch: "
        "SSL+FT +10.00 points (MAE before the labels; 1,500 labelled images seen, by Scratch 3,000) "
        "and SSAT +16.00 points [+13.52, +18.48] (MAE along with the labels)."
    )


def test_a_terminal_ends_with_the_story_and_a_page_begins_with_it(few):
    folder = few()
    said = story(lay_out(collect(folder)))
    lines = report.summary(folder, width=1000).strip().splitlines()
    assert [line.strip() for line in lines[-len(said) :]] == said
    assert "".join(lines).count(SEES) == 1
    page = [*headlines(lay_out(collect(folder))), *further(lay_out(collect(folder)))]
    assert set(said) <= set(page) and page[0] == said[1]


def test_whatever_comes_out_is_said(few):
    why = story(lay_out(collect(few({"scratch": 60.0, "sslft": 55.0, "ssat": lambda at: 60.5 + 2 * at["seed"] - 2}))))[-1]
    assert why.endswith(
        "against Scratch: SSL+FT \N{MINUS SIGN}5.00 points (MAE before the labels; 1,500 labelled images seen, by Scratch 3,000) "
        "and SSAT +0.50 points [\N{MINUS SIGN}4.47, +5.47] (MAE along with the labels; may be chance)."
    )


def test_columns_that_have_the_same_images_say_it_once(few):
    folder = few(axes={"data": ["x", "y"], "seed": [0, 1]}, columns="data")
    assert unlabelled.images(lay_out(collect(folder))) == [SEES]
    tell(folder, "s*-y-*", 50, 50)
    assert unlabelled.images(lay_out(collect(folder))) == [f"On x, {SEES}"]


def test_of_one_arm_it_is_said_too(few):
    assert unlabelled.images(lay_out(collect(few({"ssat": 76.0})))) == ["SSAT learns from 30 labelled images and from 570 without a label."]


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
            run = json.loads(path.read_text())
            run["data"]["images"] = {"fraction": 0.5, "per_class": None, "balanced": True, "seed": seed}
            path.write_text(json.dumps(run))


@pytest.mark.parametrize("change", [nothing, another_set, another_draw])
def test_nothing_is_said_that_the_runs_do_not_tell(few, change):
    folder = few()
    change(folder)
    grid = lay_out(collect(folder))
    assert unlabelled.images(grid) == [] and unlabelled.why(grid, None) == ""


def test_single_seeds_have_no_outcome(few):
    grid = lay_out(collect(few(axes={"seed": [0]})))
    assert unlabelled.images(grid) == [SEES] and unlabelled.why(grid, None) == ""
