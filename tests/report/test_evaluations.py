"""What evaluators found, in a sweep's report: their table, classes and confusion."""

from __future__ import annotations

import numpy as np
import pytest

from vitssl import report
from vitssl.files import read_json, write_json
from vitssl.report.figures import confusion
from vitssl.report.findings.sentences import findings, sentences
from vitssl.report.pages import card
from vitssl.report.results.collect import collect
from vitssl.report.results.confusion import confusions
from vitssl.report.results.grid import lay_out
from vitssl.report.table import DASH
from vitssl.report.tables import evaluations, main_table

pytestmark = pytest.mark.usefixtures("without_plots")


def texts(table) -> list[str]:
    return [entry.text for row in table.rows for entry in row]


KNN = {"type": "knn", "shards": None, "split": "test", "weights": "teacher", "pool": None, "blocks": 1, "k": 10, "temperature": 0.07}


def predictions(folder, labels, predicted, classes=("cat", "dog"), **further) -> None:
    N = len(labels)
    arrays = {"labels": np.array(labels), "predicted": np.array(predicted), "confidence": np.ones(N, np.float32)}
    arrays |= {"top5": np.ones(N, bool), "loss": np.zeros(N, np.float32)} | further
    np.savez_compressed(folder / "predictions-test.npz", classes=np.array(classes), **arrays)


@pytest.fixture
def chain(sweep):
    """Two seeds of a pretraining with nearest neighbours and a fine-tuning with every metric."""
    stages = {"ssl": [("pretrain", {"objectives.mae": {}}), ("finetune", {"objectives.classify": {}})]}
    folder = sweep({"ssl": lambda at: 80.0 + at["seed"]}, {"seed": [0, 1]}, stages=stages, columns=None)
    for seed in (0, 1):
        before, after = folder / f"ssl-pretrain-{seed}", folder / f"ssl-finetune-{seed}"
        write_json(
            before / "evals.json", {"knn": {"config": KNN, "epoch": 5.0, "metrics": {"top1": 50.0 + 2 * seed, "top5": 90.0, "count": 9}}}
        )
        done = read_json(after / "done.json")
        done["test"] |= {"balanced_accuracy": 70.0, "macro_f1": 60.0, "auc": 95.0, "ece": 5.0}
        write_json(after / "done.json", done)
        predictions(after, [0, 0, 0, 1], [0, 0, 1, 1] if seed else [0, 0, 0, 0])
    return folder


def test_every_stage_and_evaluator_has_a_line(chain):
    table = evaluations.table(lay_out(collect(chain)))
    lines = texts(table)
    assert "knn, weights teacher, k 10" in lines and "51.00 ± 1.41" in lines and "80.50 ± 0.71" in lines
    assert table.header[-5:] == ["balanced accuracy %", "macro F1 %", "AUC %", "ECE % ↓", "NLL ↓"]
    assert [row[1].text for row in table.rows] == ["pretrain", "finetune"]


def test_a_stage_that_all_seeds_share_is_one_run_and_said_to_be(chain):
    told = "In ssl, all seeds share one pretrain run, so the intervals do not cover its effect."
    assert told not in sentences(findings(lay_out(collect(chain))))
    description = read_json(chain / "sweep.json")
    for cell in description["cells"]:
        cell["stages"][0]["folder"] = "ssl-pretrain-0"
    write_json(chain / "sweep.json", description)
    grid = lay_out(collect(chain))
    assert "50.00" in texts(evaluations.table(grid)) and told in sentences(findings(grid))


@pytest.mark.parametrize("classes, shown", [(3, False), (5, False), (6, True)])
def test_the_first_five_of_five_classes_say_nothing(chain, classes, shown):
    """The page, Markdown and a model card leave top-5 out; an evaluator of other images keeps it, whose classes are not told."""
    for path in chain.glob("*/job.json"):
        job = read_json(path)
        job["data"]["classes"] = classes
        write_json(path, job)
    assert ("top-5 %" in evaluations.table(lay_out(collect(chain))).header) is shown
    assert ("top-5" in card.text(chain / "ssl-pretrain-0", False, weights="teacher")) is shown
    report.write(chain)
    assert all(("top-5" in (chain / "report" / name).read_text()) is shown for name in ("report.html", "report.md"))
    path = chain / "ssl-pretrain-0" / "evals.json"
    write_json(path, {"knn": read_json(path)["knn"] | {"config": KNN | {"shards": "/other"}}})
    assert "top-5 %" in evaluations.table(lay_out(collect(chain))).header


def test_where_there_is_only_what_the_main_table_says_there_is_none(sweep):
    assert evaluations.table(lay_out(collect(sweep({"scratch": 80.0}, {"seed": [0]}, columns=None)))) is None


def test_confusion_is_the_mean_over_seeds(chain):
    (confusion,) = confusions(lay_out(collect(chain)))
    assert confusion.classes == ["cat", "dog"] and confusion.counts_KK.tolist() == [[2.5, 0.5], [0.5, 0.5]]
    assert confusion.recall_K == pytest.approx([2.5 / 3, 0.5]) and confusion.precision_K == pytest.approx([2.5 / 3, 0.5])
    assert confusion.f1_K == pytest.approx([5 / 6, 1 / 2])
    lines = texts(evaluations.per_class(lay_out(collect(chain))))
    assert "83.3" in lines and "dog" in lines


def test_of_many_classes_the_worst_ten_are_shown_and_no_picture_of_very_many(chain):
    for seed in (0, 1):
        predictions(chain / f"ssl-finetune-{seed}", range(101), [0] * 101, [f"class {k}" for k in range(101)])
    grid = lay_out(collect(chain))
    assert len(evaluations.per_class(grid).rows) == 10 and confusion.plot(grid) is None


@pytest.mark.usefixtures("with_plots")
@pytest.mark.usefixtures("all_files")
def test_the_page_shows_both_and_a_metric_of_an_evaluator_ranks_the_arms(chain):
    page = report.write(chain).read_text()
    assert "<h2>Evaluations</h2>" in page and "macro F1 %" in page and (chain / "report" / "confusion.png").is_file()
    facts = read_json(chain / "sweep.json")
    write_json(chain / "sweep.json", facts | {"metric": "test/macro_f1"})
    assert "Macro F1 % on the 10,000 test images of cifar10 after the last epoch" in report.write(chain).read_text()


@pytest.fixture
def calibrated(sweep):
    """The arm of the higher accuracy has the higher NLL: 1.0 on average against 0.5."""
    done = {
        (arm, seed): {"done": {"test": {"top1": top1, "top5": 99.0, "loss": loss, "count": 9}}}
        for arm, top1, losses in (("scratch", 80.0, (0.5, 0.5, 0.5)), ("ssat", 90.0, (0.95, 1.0, 1.05)))
        for seed, loss in enumerate(losses)
    }
    return sweep({"scratch": 80.0, "ssat": 90.0}, {"seed": [0, 1, 2]}, columns=None, make=done)


def test_other_metrics_are_held_against_the_baseline(calibrated):
    """NLL is higher by 0.45, 0.5 and 0.55: mean 0.5, standard error 0.05 / sqrt(3), t(2) = 4.303: 0.124 to either side by seeds. Over
    images that are all as hard for an arm nothing is added, and without what each adds there is no interval."""
    bare = evaluations.differences(lay_out(collect(calibrated)))
    assert [[entry.text for entry in row] for row in bare.rows] == [["ssat", "+0.00", "+0.50"]]
    for run, loss in (("scratch-train", (0.5, 0.5, 0.5)), ("ssat-train", (0.95, 1.0, 1.05))):
        for seed in range(3):
            predictions(calibrated / f"{run}-{seed}", [0] * 50, [0] * 50, loss=np.full(50, loss[seed], dtype=np.float32))
    table = evaluations.differences(lay_out(collect(calibrated)))
    assert table.title == "Other metrics against scratch" and table.header == ["arm", "top-5 %", "NLL ↓"]
    assert [[entry.text for entry in row] for row in table.rows] == [["ssat", "+0.00", "+0.50 [+0.38, +0.62]"]]
    write_json(calibrated / "sweep.json", read_json(calibrated / "sweep.json") | {"metric": "test/loss"})
    assert evaluations.differences(lay_out(collect(calibrated))).header == ["arm", "top-1 %", "top-5 %"]


@pytest.mark.parametrize(("metric", "best"), [("top1", 1), ("test/loss", 0)])
def test_the_best_is_the_lowest_where_lower_is_better(calibrated, metric, best):
    write_json(calibrated / "sweep.json", read_json(calibrated / "sweep.json") | {"metric": metric})
    grid = lay_out(collect(calibrated))
    assert [row.arm.name for row in grid.ranking(None)] == [("scratch", "ssat")[best], ("scratch", "ssat")[1 - best]]
    assert {row for row, _ in main_table.table(grid).best} == {best}


@pytest.mark.usefixtures("with_plots")
def test_every_part_of_a_report_follows_a_metric_of_which_lower_is_better(calibrated):
    write_json(calibrated / "sweep.json", read_json(calibrated / "sweep.json") | {"metric": "test/loss", "baseline": "ssat"})
    grid = lay_out(collect(calibrated))
    first = "The best arm by NLL is scratch: 0.50 ± 0.00 (3 seeds)"
    assert sentences(findings(grid))[0].startswith(f"{first}, \N{MINUS SIGN}0.50 [\N{MINUS SIGN}0.62, \N{MINUS SIGN}0.38] against ssat")
    assert "their number in brackets. ↓: lower is better." in main_table.table(grid).caption
    page = report.write(calibrated).read_text()
    assert "NLL ↓ on the 10,000 test images of cifar10 after the last epoch" in page and "NLL ↓ against" in page
    folder = calibrated / "report"
    assert r"NLL $\downarrow$ on the 10,000 test images of cifar10: mean" in (folder / "table.tex").read_text()
    assert "loss_mean" in (folder / "table.csv").read_text().splitlines()[0]


def test_a_configured_classifier_has_its_own_classes(chain):
    config = {"type": "classification", "shards": "/other", "split": "test", "weights": "model"}
    for seed in (0, 1):
        folder = chain / f"ssl-finetune-{seed}"
        write_json(folder / "evals.json", {"other": {"config": config, "epoch": 5.0, "metrics": {"top1": 25.0}}})
        (folder / "predictions-other.npz").write_bytes((folder / "predictions-test.npz").read_bytes())
    table = evaluations.per_class(lay_out(collect(chain)))
    assert [[entry.text for entry in row[:3]] for row in table.rows] == [
        ["ssl", DASH, "dog"], ["ssl", DASH, "cat"], ["ssl", "other", "dog"], ["ssl", "other", "cat"],
    ]  # fmt: skip
    _, figure = confusion.plot(lay_out(collect(chain)))
    assert [axis.get_title() for axis in figure.axes] == ["ssl", "ssl, other"]


def test_every_column_has_its_classes(sweep):
    folder = sweep({"scratch": 80.0, "ssat": 82.0}, {"data": ["pets", "birds"], "seed": [0]})
    for arm in ("scratch", "ssat"):
        predictions(folder / f"{arm}-train-pets-0", [0, 1], [0, 0], ["cat", "dog"])
        predictions(folder / f"{arm}-train-birds-0", [0, 1, 2], [0, 0, 2], ["owl", "kite", "gull"])
    shown = [[entry.text for entry in row[:3]] for row in evaluations.per_class(lay_out(collect(folder))).rows if row[0].text == "ssat"]
    assert shown == [["ssat", "pets", "dog"], ["ssat", "pets", "cat"], *(["ssat", "birds", name] for name in ("kite", "owl", "gull"))]
    _, figure = confusion.plot(lay_out(collect(folder)))
    assert [axis.get_title() for axis in figure.axes[:4]] == ["scratch, pets", "ssat, pets", "scratch, birds", "ssat, birds"]


def test_results_of_an_evaluator_that_has_changed_since_are_not_shown(chain):
    """Also where only a default is another: they are evaluated again by the same command."""
    path, before = chain / "ssl-pretrain-0" / "run.yaml", KNN | {"weights": "model"}
    write_json(path.with_name("evals.json"), {"knn": {"config": before, "epoch": 5.0, "metrics": {"top1": 50.0, "top5": 90.0}}})
    for fields, known in ((before, True), ({"type": "knn"}, False), ({"type": "linear"}, False)):
        write_json(path, read_json(path) | {"evals": {"knn": fields}})
        (run,) = (run for run in collect(chain).runs.values() if run.path.name == "ssl-pretrain-0")
        assert bool(run.metrics("knn")) is known
        assert ("evaluator knn" in card.text(chain / "ssl-pretrain-0", classifier=False)) is known
