"""Whether accuracy still rose where training ended."""

from __future__ import annotations

import json

import pytest

from tests.report.test_evaluations import predictions
from vitssl import report
from vitssl.config.objectives.classify import HeadConfig
from vitssl.report.findings.convergence import sentence
from vitssl.report.findings.sentences import findings, sentences
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import lay_out
from vitssl.report.tables import details

pytestmark = pytest.mark.usefixtures("without_plots")


@pytest.fixture
def ending(sweep):
    """`ending(arm=[(step, top-1 by seed), ...])`: evaluations of the last stage."""

    def made(**curves):
        folder = sweep(dict.fromkeys(curves, 80.0), {"seed": [0, 1, 2]}, columns=None)
        for arm, curve in curves.items():
            for seed in (0, 1, 2):
                path = folder / f"{arm}-train-{seed}" / "metrics.jsonl"
                kept = [line for line in path.read_text().splitlines() if json.loads(line)["event"] != "eval"] if path.exists() else []
                evals = [{"event": "eval", "step": step, "time": 1.0, "epoch": 1.0, "test": {"top1": top1[seed]}} for step, top1 in curve]
                path.write_text("\n".join([*kept, *map(json.dumps, evals)]) + "\n")
        return lay_out(collect(folder))

    return made


FLAT = [(80, (70.0, 70.0, 70.0)), (100, (70.5, 70.9, 70.7))]
RISES = [(50, (40.0, 40.0, 40.0)), (75, (60.0, 62.0, 61.0)), (100, (64.0, 64.0, 64.0))]
CHANCE = [(75, (60.0, 62.0, 64.0)), (100, (66.0, 64.0, 62.0))]


def test_what_still_rose_is_named_with_how_much_over_which_end(ending):
    """4, 2 and 3 points since step 75 of 100."""
    said = (
        "Top-1 was still rising at the end of training: ssat (by 3.00 points over the last 25 %). Longer training may change the ranking."
    )
    grid = ending(scratch=FLAT, ssat=RISES)
    assert sentence(grid) == said and said in sentences(findings(grid))


def test_what_did_not_rise_or_was_evaluated_too_seldom_is_not(ending):
    seldom = [(40, (10.0,) * 3), (95, (50.0,) * 3), (100, (64.0,) * 3)]
    assert sentence(ending(scratch=FLAT, ssat=seldom)) == ""


def test_a_rise_that_may_be_chance_is_none(ending):
    """6, 2 and -2 points."""
    assert sentence(ending(scratch=FLAT, ssat=CHANCE)) == ""


def test_labels_that_were_not_learned_are_told_from_chance(ending):
    """Of ten classes chance has a loss of 2.30; a loss of 0.1 is learned, whatever its accuracy."""
    grid = ending(scratch=FLAT, ssat=FLAT)
    assert sentence(grid) == ""
    for row in grid.rows:
        for cell in row.cells:
            cell.last.events.append(
                {"event": "train", "step": 100, "time": 2.0, "terms": {"classify": 2.0 if row.arm.name == "ssat" else 0.1}}
            )
            cell.last.events.append({"event": "train", "step": 101, "time": 2.0, "terms": {}})  # of images without a label alone
    said = "The classification loss ended high: ssat (2.00, chance 2.30). Longer training may change the ranking."
    assert sentence(grid) == said
    for cell in grid.rows[1].cells:
        cell.last.run.objectives.classify.extra_heads = [HeadConfig(pool="mean"), HeadConfig(pool="cls")]
    assert sentence(grid) == "", "the losses of three heads are summed, and chance has 6.91"
    for cell in grid.rows[1].cells:
        cell.last.run.objectives.classify.extra_heads = []
        cell.last.run.backbone.frozen = True
    assert sentence(grid) == "", "a probe learns what its features have"


def test_nothing_is_found_from_a_log_whose_end_is_lost(sweep):
    """As half of a training, its losses and its accuracies say that more would help."""
    folder = sweep({"scratch": 80.0, "ssat": 80.0}, {"seed": [0]}, columns=None)
    sound = lay_out(collect(folder))
    assert sentence(sound) == "" and details.warnings(sound) == {}
    log = folder / "ssat-train-0" / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kept = [line | {"terms": {"classify": 2.0}} if line["event"] == "train" else line for line in lines if line["step"] <= 300]
    log.write_text("".join(json.dumps(line) + "\n" for line in kept))
    grid = lay_out(collect(folder))
    assert sentence(grid) == ""
    (warning,) = details.warnings(grid)
    assert warning.endswith(": ssat-train-0 (its log ends at step 300 of 1,000)")
    assert "ssat-train-0 (its log ends at step 300 of 1,000)" in (report.write(folder).parent / "report.md").read_text()
    assert [row[2].text for row in details.runs(grid.sweep).rows] == ["done", "done (its log ends at step 300 of 1,000)"]


def test_of_an_earlier_epoch_that_held_out_images_chose_longer_training_is_no_advice(sweep):
    """Scratch was chosen at half of its epochs, ssat at its last ones; both still rose, and have losses near that of chance."""
    chosen = {"scratch": 50, "ssat": 96}
    make = {}
    for arm, epoch in chosen.items():
        result = {"top1": 70.0, "top5": 99.0, "loss": 1.0, "count": 100, "epoch": epoch}
        make |= {(arm, seed): {"done": {"selected": result, "epochs": 100}} for seed in (0, 1, 2)}
    grid = lay_out(collect(sweep(dict.fromkeys(chosen, 80.0), {"seed": [0, 1, 2]}, columns=None, metric="selected/top1", make=make)))
    for row in grid.rows:
        for cell in row.cells:
            cell.last.events.append({"event": "train", "step": 1000, "time": 2.0, "terms": {"classify": 2.0}})
    assert sentence(grid) == "The classification loss ended high: ssat (2.00, chance 2.30). Longer training may change the ranking."
    for cell in grid.rows[1].cells:
        cell.last.done["epochs"] = 0.0  # of a run of no step
    assert "ssat (2.00, chance 2.30)" in sentence(grid)


def test_of_few_images_seeds_that_agree_do_not_tell_from_chance(sweep):
    """Three seeds have 60 % of ten images, or of a thousand, of which half are of either class."""
    for times, said in ((1, True), (100, False)):
        folder = sweep({"scratch": 60.0, "ssat": 95.0}, {"seed": [0, 1, 2]}, columns=None)
        for path in folder.glob("*-train-*"):
            predictions(path, [0, 0, 0, 0, 1, 1, 1, 1, 1, 0] * times, [0, 0, 0, 1, 1, 1, 1, 0, 0, 1] * times)
            done = json.loads((path / "done.json").read_text())
            done["test"]["top1"] = 60.0 if path.name.startswith("scratch") else 95.0
            (path / "done.json").write_text(json.dumps(done))
        told = sentence(lay_out(collect(folder)))
        assert ("Top-1 is not significantly above chance: scratch (60.00 %, chance 50.00 %)" in told) is said


@pytest.mark.parametrize(
    ("predicted", "metric", "said"),
    [
        ([0] * 7 + [1] * 3, "top1", "Top-1 is not significantly above chance: scratch (70.00 %, chance 70.00 %)"),
        ([0] * 7 + [1] * 3, "balanced_accuracy", "Balanced accuracy is not significantly above chance: scratch (49.00 %, chance 50.00 %)"),
        ([0, 1] * 5, "auc", "AUC is not significantly above chance: scratch (49.00 %, chance 50.00 %)"),
        ([0, 1] * 5, "top1", ""),
    ],
)
def test_what_is_no_better_than_chance_is_said(sweep, predicted, metric, said):
    folder = sweep({"scratch": 70.0, "ssat": 95.0}, {"seed": [0, 1, 2]}, columns=None, metric=metric)
    for path in folder.glob("*-train-*"):
        predictions(path, predicted, predicted)
        done = json.loads((path / "done.json").read_text())
        worse = {"balanced_accuracy": 49.0, "auc": 49.0} if path.name.startswith("scratch") else {"balanced_accuracy": 90.0, "auc": 90.0}
        done["test"] |= worse
        job = json.loads((path / "job.json").read_text())
        job["data"]["classes"] = 2
        (path / "done.json").write_text(json.dumps(done))
        (path / "job.json").write_text(json.dumps(job))
    told = sentence(lay_out(collect(folder)))
    assert told.startswith(said) if said else "is not told from" not in told
