"""Whether pretraining has made features that tell classes apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitssl.report.findings.collapse import sentence
from vitssl.report.findings.sentences import findings, sentences
from vitssl.report.results.collect import collect
from vitssl.report.results.grid import lay_out

pytestmark = pytest.mark.usefixtures("without_plots")

ADVICE = "Such a pretraining may have collapsed: look at its loss and learning rate before you compare it."


@pytest.fixture
def pretrained(sweep):
    """`pretrained(first=(top-1 by seed), second=..., classes=10)`: stages of ssat before its last one, with what kNN finds in each."""

    def made(classes=10, kind="knn", **stages):
        grid = lay_out(collect(sweep({"scratch": 80.0, "ssat": 80.0}, {"seed": [0, 1, 2]}, columns=None)))
        (row,) = (row for row in grid.rows if row.arm.name == "ssat")
        for i, cell in enumerate(row.cells):
            job = {**cell.last.job, "data": {**cell.last.job["data"], "classes": classes}}
            base = replace(cell.last, job=job, run=replace(cell.last.run, evals={}))
            seen = {name: {"eye": {"config": {"type": kind}, "metrics": {"top1": top1[i]}}} for name, top1 in stages.items()}
            cell.stages[:0] = [(name, replace(base, evals=evals)) for name, evals in seen.items()]
        return grid

    return made


@pytest.mark.parametrize(
    ("top1", "classes", "said"),
    [
        ((14.0, 15.0, 15.0), 10, "14.67 %, chance 10.00 %"),
        ((19.5, 19.5, 19.5), 10, ""),
        ((54.0, 54.0, 54.0), 2, "54.00 %, chance 50.00 %"),
        ((56.0, 56.0, 56.0), 2, ""),
        ((2.0, 2.0, 2.0), 1000, ""),
        ((0.0, 0.0, 0.0), 0, ""),  # of a record that says nothing of classes
    ],
)
def test_features_that_tell_next_to_nothing_are_named(pretrained, top1, classes, said):
    """Of ten classes below 19 %, of two below 55 %, of a thousand below 0.2 %."""
    grid = pretrained(pretrain=top1, classes=classes)
    begins = "Features hardly better than chance (of classes of equal size) were pretrained: "
    expected = f"{begins}ssat (pretrain: eye {said}). {ADVICE}" if said else ""
    assert sentence(grid) == expected
    assert not said or expected in sentences(findings(grid))


def test_a_stage_is_not_excused_by_another(pretrained):
    grid = pretrained(general=(11.0, 11.0, 11.0), special=(60.0, 60.0, 60.0))
    assert "ssat (general: eye 11.00 %, chance 10.00 %)." in sentence(grid)


def test_a_classifier_of_an_earlier_stage_is_no_evaluator_of_features(pretrained):
    assert sentence(pretrained(pretrain=(11.0, 11.0, 11.0), kind="classification")) == ""
