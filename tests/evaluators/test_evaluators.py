"""Evaluators in a Run: while training, of a finished run, from the command line; no weight and no identity changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

import vitssl
from jobs.display import states
from tests.ranks import run_ranks
from vitssl import cli, config, dist, train
from vitssl.config import ConfigError
from vitssl.config.evals import FEATURE_KINDS, KINDS, ClassificationConfig, KnnConfig, evals_of, pending
from vitssl.data import shards
from vitssl.data.index import load_index
from vitssl.evaluators import Result, Subject, base, knn
from vitssl.files import read_events, read_json
from vitssl.report.figures import curves
from vitssl.training import evaluate
from vitssl.words import listed

MAE = {"objectives.mae": {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}}
DINO = {
    "objectives.dino": {"hidden_dim": 16, "bottleneck_dim": 8, "out_dim": 12, "teacher_momentum": 0.5},
    "data.views": {"second": {}, "local": {"size": 4, "count": 2}},
}
SHORT = {"loop": {"epochs": 2, "eval_every": 1}, "data.images": {"per_class": 16}}
CLASSIFY = {"objectives.classify": {}}
KNN = {"evals.knn": {"type": "knn", "k": 5, "pool": "mean"}}


@pytest.fixture
def folder(make_run, digits, tmp_path):
    def make(name: str, *layers) -> Path:
        config.save(make_run(SHORT, *layers, shards=digits), tmp_path / name)
        return tmp_path / name

    return make


def evaluations(folder: Path) -> list[dict]:
    return [event for event in read_events(folder / "metrics.jsonl") if event["event"] == "eval"]


def test_a_pretraining_is_followed_by_nearest_neighbours_and_a_probe(folder):
    evals = {"evals": {**{"knn": KNN["evals.knn"]}, "probe": {"type": "linear", "every": 2}}}
    run = folder("run", MAE, evals)
    assert train.main([str(run)]) == 0
    first, last = evaluations(run)
    assert set(first) >= {"knn"} and "probe" not in first and first["knn"]["count"] == 450
    found = read_json(run / "evals.json")
    assert found["knn"]["metrics"] == last["knn"] and found["probe"]["metrics"] == last["probe"] and found["probe"]["epoch"] == 2
    assert found["probe"]["metrics"]["top1"] > 30, "pixels alone tell digits apart"


def test_other_shards_are_decoded_before_ranks_wait_for_each_other(folder, tmp_path, monkeypatch):
    """For twelve hours there, and for less anywhere later."""
    shards.build("digits", tmp_path / "more", progress=False)
    happened, loader = [], base.EvalLoader
    monkeypatch.setattr(dist, "barrier", lambda timeout_h: lambda: happened.append("barrier"))
    monkeypatch.setattr(base, "EvalLoader", lambda index, *args, **named: happened.append(index.folder) or loader(index, *args, **named))
    assert train.main([str(folder("run", MAE, KNN, {"evals.knn.shards": str(tmp_path / "more")}))]) == 0
    assert happened[:2] == [tmp_path / "more", "barrier"] and happened.count(tmp_path / "more") == 1


def test_adding_one_to_a_finished_run_evaluates_its_checkpoint_and_trains_nothing(folder, make_run, digits):
    run, other = folder("run", MAE), folder("other", MAE, KNN)
    assert config.identity(config.load(run)) == config.identity(config.load(other))
    assert train.main([str(run)]) == 0 and train.main([str(other)]) == 0
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert "evals.json" not in before
    config.save(make_run(SHORT, MAE, KNN, shards=digits), run)
    assert train.main([str(run)]) == 0
    after = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert {name for name in after if after[name] != before.get(name)} == {"evals.json", "run.yaml"}
    assert read_json(run / "evals.json") == read_json(other / "evals.json")
    assert train.main([str(run)]) == 0
    config.save(make_run(SHORT, MAE, KNN, {"evals.knn.k": 7}, shards=digits), run)
    assert train.main([str(run)]) == 0
    assert read_json(run / "evals.json")["knn"]["config"]["k"] == 7, "other fields are another question"


def test_an_evaluation_that_is_asked_to_stop_keeps_its_results_and_goes_on_with_the_rest(folder, make_run, digits, tmp_path, monkeypatch):
    run, stop_file = folder("run", MAE), tmp_path / "stop"
    assert train.main([str(run)]) == 0
    config.save(make_run(SHORT, MAE, KNN, {"evals.probe": {"type": "linear"}}, shards=digits), run)
    monkeypatch.setenv("VITSSL_STOP_FILE", str(stop_file))

    write = evaluate.write_results
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "write_results", lambda *arguments: (write(*arguments), stop_file.touch()))
        assert train.main([str(run)]) == train.STOPPED
    first = read_json(run / "evals.json")
    stop_file.unlink()
    assert train.main([str(run)]) == 0
    found = read_json(run / "evals.json")
    assert set(first) == {"knn"} and set(found) == {"knn", "probe"} and found["knn"] == first["knn"]


def test_weights_are_left_alone(folder):
    """The average's and the teacher's are looked at in between; the run ends as one without evaluators."""
    evals = {"evals": {f"knn_{which}": {"type": "knn", "k": 5, "weights": which} for which in ("model", "ema", "teacher")}}
    runs = [folder("with", DINO, {"loop.ema_decay": 0.9}, evals), folder("without", DINO, {"loop.ema_decay": 0.9})]
    for run in runs:
        assert train.main([str(run)]) == 0
    ours, theirs = (torch.load(run / "last.pt", weights_only=True) for run in runs)
    assert all(torch.equal(ours["model"][name], theirs["model"][name]) for name in ours["model"])
    assert all(torch.equal(ours["ema"][name], theirs["ema"][name]) for name in ours["ema"])
    found = read_json(runs[0] / "evals.json")
    trained = vitssl.load(runs[0])
    again = {name: result.metrics for name, result in trained.evaluate(evals_of(trained.run)).items()}
    assert again == {name: entry["metrics"] for name, entry in found.items()}
    with pytest.raises(ConfigError, match="load it without weights=ema"):
        vitssl.load(runs[0], weights="ema").evaluate(evals_of(trained.run))
    assert len({vitssl.load(runs[0], weights=which).model.backbone.cls_token.sum().item() for which in ("model", "ema", "teacher")}) == 3


TOO_FAST = {"data.val_fraction": 0.2, "optim.lr": 0.1, "loop.epochs": 4}  # the first epoch is the best


def test_the_weights_that_held_out_images_chose_are_evaluated_at_the_end(folder):
    """By the run's own evaluators, with every metric and its predictions, and by those asked for; the last ones stay as they are."""
    evals = {"evals": {"near": {"type": "knn", "k": 5, "pool": "mean", "weights": "best"}, "near_last": KNN["evals.knn"]}}
    run, plain = folder("run", CLASSIFY, TOO_FAST, evals), folder("plain", CLASSIFY, TOO_FAST)
    assert train.main([str(run)]) == train.main([str(plain)]) == 0
    done, found = read_json(run / "done.json"), read_json(run / "evals.json")
    assert done["selected"]["epoch"] < 4, "another than the last epoch"
    trained = vitssl.load(run, "best.pt")
    of_best = {
        "selected": ClassificationConfig(),
        "selected_val": ClassificationConfig(split="val"),
        "near": evals_of(trained.run)["near_last"],
    }
    again = {name: result.metrics for name, result in trained.evaluate(of_best).items()}
    assert again["selected"] | {"epoch": done["selected"]["epoch"]} == done["selected"] != done["test"]
    assert again["selected_val"] == done["selected_val"] and done["selected_val"]["top1"] >= done["val"]["top1"]
    assert again["near"] == found["near"]["metrics"] != found["near_last"]["metrics"]
    assert found["near"]["epoch"] == done["selected"]["epoch"] and found["near_last"]["epoch"] == 4
    assert "near" not in evaluations(run)[0] and {"auc", "macro_f1"} <= done["selected"].keys()
    with np.load(run / "predictions-selected.npz") as kept:
        assert 100 * (kept["labels"] == kept["predicted"]).mean() == pytest.approx(done["selected"]["top1"])
    ours, theirs = (torch.load(path / "last.pt", weights_only=True)["model"] for path in (run, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    (run / "evals.json").unlink()
    assert train.main([str(run)]) == 0 and read_json(run / "evals.json")["near"]["metrics"] == found["near"]["metrics"]


@pytest.mark.release
def test_on_two_ranks_too(folder):
    run = folder("run", CLASSIFY, TOO_FAST)
    assert set(run_ranks(run, 2)) == {0}
    selected = read_json(run / "done.json")["selected"]
    assert selected.pop("epoch") < 4
    (found,) = vitssl.load(run, "best.pt").evaluate({"selected": ClassificationConfig()}).values()
    assert found.metrics == {name: pytest.approx(value, abs=1e-4) for name, value in selected.items()}


def test_best_weights_that_are_lost_cost_their_evaluation_alone(folder, capsys, monkeypatch):
    run = folder("run", CLASSIFY, TOO_FAST)
    remember = evaluate._remember_best

    def lost(train_state, metrics):
        remember(train_state, metrics)
        if train_state.epoch == 4:
            train_state.saver.wait()
            (run / "best.pt").unlink()

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "_remember_best", lost)
        assert train.main([str(run)]) == 0
    assert f"{run / 'best.pt'} is missing, so that selected and selected_val cannot be evaluated" in "".join(capsys.readouterr())
    done = read_json(run / "done.json")
    assert "auc" in done["test"] and "selected" not in done


def test_weights_that_nothing_chooses_are_refused_before_the_first_step(folder, capsys):
    """The split may be there, and is not."""
    run = folder("run", CLASSIFY, {"data.val_split": "val?", "evals.near": {"type": "knn", "weights": "best"}})
    assert train.main([str(run)]) == 2
    assert "evals.near.weights: there are no held-out images to choose the best weights by" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (
            [CLASSIFY, {"evals.near": {"type": "knn", "weights": "best"}}],
            "evals.near.weights: the Run has no best.pt without data.val_fraction or data.val_split",
        ),
        (
            [MAE, {"data.val_fraction": 0.2}, {"evals.near": {"type": "knn", "weights": "best"}}],
            "no best.pt without objectives.classify; for a stage without it write evals.near.weights: model there",
        ),
        (
            [CLASSIFY, TOO_FAST, {"evals.near": {"type": "knn", "weights": "best", "every": 1}}],
            "evals.near.every: which weights are the best",
        ),
    ],
)
def test_what_has_no_best_weights_is_refused(folder, layers, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        folder("run", *layers)


def test_two_ranks_find_what_one_does(folder):
    evals = {**KNN, "evals.probe": {"type": "linear"}, "objectives.classify": {}}
    evals |= {"evals.warped": {"type": "robustness", "perspective": 0.5}}  # drawn by image, not by rank
    one, two = folder("one", evals), folder("two", evals)
    assert train.main([str(one)]) == 0
    for name in ("last.pt", "done.json", "evals.json"):
        (two / name).write_bytes((one / name).read_bytes())
    trained = read_json(one / "evals.json")
    assert set(run_ranks(two, 2)) == {0}  # nothing to do
    fresh = folder("fresh", evals, {"loop.max_steps": 1})
    assert set(run_ranks(fresh, 2)) == {0}
    again = vitssl.load(fresh)
    found = read_json(fresh / "evals.json")
    for name, result in again.evaluate(evals_of(again.run)).items():
        assert found[name]["metrics"]["top1"] == pytest.approx(result.metrics["top1"], abs=0.5)
        assert found[name]["metrics"]["count"] == 450
        if "loss" in found[name]["metrics"]:
            assert found[name]["metrics"]["loss"] == pytest.approx(result.metrics["loss"], rel=1e-3)
    with np.load(fresh / "predictions-test.npz") as mine:
        assert len(mine["labels"]) == 450 and list(mine["classes"]) == [str(k) for k in range(10)]
    assert trained["knn"]["metrics"]["count"] == 450
    (two / "evals.json").unlink()
    assert set(run_ranks(two, 2)) == {0}  # the first rank evaluates, on all images
    counts = {name: result["metrics"]["count"] for name, result in read_json(two / "evals.json").items()}
    assert counts == {"knn": 450, "probe": 450, "warped": 450}


def test_images_without_a_label_are_refused_before_the_first_step(folder, make_run, tmp_path, capsys):
    for k, name in enumerate(("a", "b", "unlabeled")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(4):
            pixels = np.random.default_rng([k, i]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{i}.png")
    shards.build(f"folder:{tmp_path / 'images'}?test=0.25&seed=0", tmp_path / "shards", workers=1, progress=False)
    run = folder("run", MAE)
    config.save(make_run(MAE, KNN, {"evals.knn": {"k": 1, "split": "unlabeled"}, "optim.batch_size": 4}, shards=tmp_path / "shards"), run)
    assert train.main([str(run)]) == 2
    assert "evals.knn.split: no image of unlabeled has a label to compare with" in capsys.readouterr().err


def test_a_classifier_s_last_evaluation_has_every_metric_and_its_predictions(folder):
    run = folder("run", {"objectives.classify": {}})
    assert train.main([str(run)]) == 0
    first, last = evaluations(run)
    assert set(first["test"]) == {"top1", "top5", "loss", "count"}
    assert (
        set(last["test"]) == {*first["test"], "balanced_accuracy", "macro_f1", "auc", "ece"}
        and last["test"] == read_json(run / "done.json")["test"]
    )
    with np.load(run / "predictions-test.npz") as found:
        assert 100 * (found["labels"] == found["predicted"]).mean() == pytest.approx(last["test"]["top1"])
        assert found["confidence"].dtype == found["auc"].dtype == np.float32
        assert 100 * found["auc"].mean() == pytest.approx(last["test"]["auc"])
        assert 100 * found["top5"].mean() == pytest.approx(last["test"]["top5"]) and found["loss"].mean() == pytest.approx(
            last["test"]["loss"]
        )


@pytest.mark.parametrize("kind", ["knn", "linear"])
def test_evaluators_of_features_count_classes_alike_as_the_classifier_s_metrics_do(untrained_run, digits, monkeypatch, kind):
    """By scikit-learn's definitions, of the predictions that top-1 counts, on test images of unequal classes."""
    predicted, over_classes = [], base.over_classes

    def seen(predicted_N, labels_N, num_classes):
        predicted.append((predicted_N.numpy(), labels_N.numpy()))
        return over_classes(predicted_N, labels_N, num_classes)

    monkeypatch.setattr(f"vitssl.evaluators.{kind}.over_classes", seen)
    metrics = evaluate.evaluate_folder(untrained_run(), KINDS[kind]())
    ((predicted_N, labels_N),) = predicted
    assert metrics["count"] == len(labels_N) == 450
    assert metrics["top1"] == pytest.approx(100 * (predicted_N == labels_N).mean())
    assert metrics["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(labels_N, predicted_N))
    assert metrics["macro_f1"] == pytest.approx(100 * f1_score(labels_N, predicted_N, average="macro"))


def test_classes_that_other_shards_lack_are_ruled_out_where_asked(untrained_run, tmp_path):
    """As ImageNet-A and -R are judged: the first of the 200 logits. The reference renormalises the run's own probabilities."""
    rng = np.random.default_rng(0)
    for name in ("3", "5", "8"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / "images" / name / f"{i}.png")
    shards.build(f"folder:{tmp_path / 'images'}?test=0.5&seed=0", tmp_path / "three", workers=1, progress=False)
    trained = vitssl.load(untrained_run())
    evals = {kind: ClassificationConfig(shards=str(tmp_path / "three"), split="train", classes=kind) for kind in ("run", "shards")}
    every, three = trained.evaluate(evals).values()
    assert set(every.arrays["predicted"]) - {3, 5, 8} and set(three.arrays["predicted"]) <= {3, 5, 8}
    assert every.metrics["loss"] > three.metrics["loss"] and three.metrics["count"] == len(three.arrays["labels"]) == 15
    subject, index = trained.subject(), load_index(tmp_path / "three")
    probabilities = []
    for batch in subject.batches("train", str(tmp_path / "three")):
        with torch.no_grad():
            probabilities.append(subject.network.predict(batch).softmax(1))
    chosen = torch.cat(probabilities)[:, [3, 5, 8]]
    chosen /= chosen.sum(1, keepdim=True)
    labels = torch.tensor([index.label[i] for i in index.where("train")])
    order = torch.from_numpy(three.arrays["labels"]).argsort(stable=True)
    assert torch.equal(torch.tensor([3, 5, 8])[labels].sort().values, torch.from_numpy(three.arrays["labels"])[order])
    assert three.metrics["top1"] == pytest.approx(100 * float((chosen.argmax(1) == labels).float().mean()))
    assert three.metrics["loss"] == pytest.approx(float(-chosen[range(15), labels].log().mean()), rel=1e-5)
    areas = [roc_auc_score(labels == k, chosen[:, k]) for k in range(3)]
    assert three.metrics["auc"] == pytest.approx(100 * np.mean(areas), rel=1e-4) and "auc" not in every.metrics
    assert three.metrics["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(labels, chosen.argmax(1)))
    assert 100 * three.arrays["confidence"].mean() == pytest.approx(100 * float(chosen.max(1).values.mean()), rel=1e-5)


def test_the_last_epoch_s_weights_are_said_to_be_those_where_an_earlier_one_was_chosen(folder, capsys, tmp_path):
    run = folder("run", CLASSIFY, TOO_FAST)
    assert train.main([str(run)]) == 0
    capsys.readouterr()
    said = "note: using the last epoch; held-out images chose an earlier one of this run, which --weights best uses\n"
    assert cli.main(["evaluate", str(run)]) == 0
    last = capsys.readouterr()
    assert last.err == said and json.loads(last.out)["top1"] == read_json(run / "done.json")["test"]["top1"]
    for words in (["--checkpoint", "best.pt"], ["--weights", "best"]):
        assert cli.main(["evaluate", str(run), *words]) == 0
        best = capsys.readouterr()
        assert best.err == "" and json.loads(best.out)["top1"] == read_json(run / "done.json")["selected"]["top1"]
    assert cli.main(["evaluate", str(run), "--weights", "best", "--checkpoint", "epoch-0001.pt"]) == 2
    assert "error: --weights best --checkpoint epoch-0001.pt: best means those of best.pt; leave out one" in capsys.readouterr().err
    (run / "best.pt").unlink()
    assert cli.main(["evaluate", str(run), "--weights", "best"]) == 2
    deleted = "has no best.pt, which held-out images chose: it was deleted, and only training the run anew makes another; its checkpoints: "
    assert deleted in capsys.readouterr().err


def test_the_command_line_evaluates_a_pretraining(folder, capsys, monkeypatch):
    run = folder("run", MAE, {"loop.max_steps": 1})
    assert train.main([str(run)]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--type", "knn", "--set", "k=3", "pool=mean"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == {"run", "type", "split", "top1", "top5", "balanced_accuracy", "macro_f1", "count"}
    assert (result["run"], result["type"], result["split"]) == ("run", "knn", "test")
    monkeypatch.setattr(evaluate, "TOP_K", 10)  # as many as there are classes: the right one is always among them
    assert cli.main(["evaluate", str(run), "--type", "knn", "--set", "k=3", "pool=mean"]) == 0
    assert "top5" not in json.loads(capsys.readouterr().out)
    assert cli.main(["evaluate", str(run), str(run), "--type", "knn", "--set", "k=3", "pool=mean"]) == 0
    assert [json.loads(line)["run"] for line in capsys.readouterr().out.splitlines()] == ["run", "run"]
    assert cli.main(["evaluate", str(run), "--type", "knn", "--split", "train", "--shards", config.load(run).data.shards]) == 2
    assert "--split: each training image would be its own nearest neighbour" in capsys.readouterr().err
    assert cli.main(["evaluate", str(run)]) == 2
    assert f"has no classify objective, so it predicts no classes; {listed(FEATURE_KINDS)}" in capsys.readouterr().err
    assert cli.main(["evaluate", str(run), "--set", "k=3"]) == 2
    assert "k: a field of type knn, and the type is classification" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "nearest"}, r"evals\.x\.type: 'nearest' is none of classification, robustness, knn, linear"),
        ({"type": "knn", "kk": 1}, r"evals\.x\.kk: 'kk' is not known"),
        ({"type": "knn", "l2": 1.0}, r"evals\.x\.l2: a field of type linear, and the type is knn"),
        ({"type": "knn", "k": 0}, r"evals\.x\.k: 0 is less than 1"),
        ({"type": "knn", "split": "train"}, r"evals\.x\.split: each training image would be its own nearest neighbour; take val or test"),
        ({"type": "knn", "weights": "ema"}, r"evals\.x\.weights: the Run has no averaged weights"),
        ({"type": "knn", "weights": "teacher"}, r"evals\.x\.weights: no objective of the Run has a teacher"),
        ({"type": "knn", "pool": "reg"}, r"evals\.x\.pool: backbone\.name=vit_pico has no reg token"),
        ({"type": "linear", "blocks": 3}, r"evals\.x\.blocks: 3 is more than"),
        ({}, r"evals\.x\.type: the Run has no classify objective"),
        (7, r"evals\.x: 7 is not a set of fields"),
    ],
)
def test_an_impossible_one_is_refused(make_run, fields, message):
    with pytest.raises(ConfigError, match=message):
        make_run(MAE, {"evals": {"x": fields}})


def test_a_name_that_is_taken_is_refused_and_null_switches_one_off(make_run):
    with pytest.raises(ConfigError, match=r"evals\.test: this name is reserved"):
        make_run(MAE, {"evals": {"test": {"type": "knn"}}})
    assert evals_of(make_run(MAE, KNN, {"evals.knn": None})) == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"split": "train", "shards": "OWN"}, "evals.knn.split: each training image would be its own nearest neighbour"),
        ({"split": "train+test"}, "evals.knn.split: each training image would be its own nearest neighbour"),
        ({"split": "test+train", "shards": "OWN"}, "evals.knn.split: each training image would be its own nearest neighbour"),
        ({"k": 161}, "evals.knn.k: 161 is more than the 160 labelled training images"),
        ({"split": "val"}, "evals.knn.split: there are no such images"),
        ({"split": "nowhere"}, "evals.knn: .*nowhere"),
        ({"shards": "nowhere"}, "evals.knn: .*nowhere"),
    ],
)
def test_what_the_images_do_not_allow_is_refused_before_the_first_step(folder, digits, capsys, fields, message):
    fields |= {"shards": str(digits)} if fields.get("shards") == "OWN" else {}
    run = folder("run", MAE, KNN, {f"evals.knn.{name}": value for name, value in fields.items()})
    assert train.main([str(run)]) == 2
    assert re.search(message, capsys.readouterr().err) and not (run / "last.pt").exists()


def test_a_field_that_a_result_does_not_have_yet_is_at_its_default(make_run):
    """So that a new field of an evaluator evaluates no finished run again."""
    run = make_run(MAE, {"evals.knn": {"type": "knn"}})
    recorded = {"knn": {"config": {"type": "knn", "k": 20}, "metrics": {}}}
    assert pending(run, recorded) == {} and pending(run, {"knn": {"config": {"type": "knn", "k": 10}}}).keys() == {"knn"}


def test_features_of_the_same_weights_are_made_once(folder, monkeypatch):
    """Nearest neighbours and a probe read the same images' features: the training split and the test split, once each an evaluation."""
    evals = {"evals": {"knn": {"type": "knn", "k": 5}, "near": {"type": "knn", "k": 1}, "probe": {"type": "linear"}}}
    splits, make = [], Subject._make_features
    monkeypatch.setattr(Subject, "_make_features", lambda self, cfg, *of: splits.append(of[0]) or make(self, cfg, *of))
    assert train.main([str(folder("run", MAE, evals))]) == 0
    assert splits == ["train", "test"] * 2, "anew after the second epoch"


def test_an_evaluator_that_gives_no_accuracy_stands_for_itself_by_its_first_metric(folder, monkeypatch, capsys):
    """In the run's line, in status.py, in the curves, and in all records."""
    monkeypatch.setattr(knn.Knn, "run", lambda *_: Result({"loss": 1.25, "ece": 3.0, "count": 9}))
    monkeypatch.setattr(KnnConfig, "metrics", ("loss", "ece"))
    run = folder("run", MAE, {"evals.own": {"type": "knn"}})
    assert train.main([str(run)]) == 0
    assert "own NLL 1.25; loss" in capsys.readouterr().err
    assert read_json(run / "evals.json")["own"]["metrics"] == {"loss": 1.25, "ece": 3.0, "count": 9}
    assert states._score(evaluations(run)[::-1], "top1") == "1.25 (own loss)"
    of_run = SimpleNamespace(events_of=lambda kind: evaluations(run) if kind == "eval" else [], evals={"own": {}})
    assert next(iter(curves._curves_of([of_run], "top1").items())) == ("own NLL", ("eval", "own", "loss"))


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"top1": 1.0, "recall": 2.0, "count": 9}, "it gives recall, which is not in `metrics` of KnnConfig"),
        ({"top1": 1.0}, "it does not give the number of images, count"),
    ],
)
def test_an_evaluator_gives_what_its_config_says(untrained_run, monkeypatch, metrics, reason):
    monkeypatch.setattr(knn.Knn, "run", lambda *_: Result(metrics))
    with pytest.raises(ValueError, match=f"evaluator knn: {reason}"):
        vitssl.load(untrained_run()).evaluate({"own": KnnConfig()})


def test_a_run_of_fp16_is_evaluated_in_fp32_on_a_cpu_as_it_predicts(folder, monkeypatch):
    run = folder("run", MAE, {"objectives.classify": {}, "loop": {"max_steps": 1, "precision": "fp16", "eval_every": 0}}, KNN)
    autocast, asked, training = dist.autocast, [], train.train_step
    monkeypatch.setattr(train, "train_step", lambda *args: (training(*args), asked.clear())[0])
    monkeypatch.setattr(dist, "autocast", lambda where, precision: asked.append(precision) or autocast(where, precision))
    assert train.main([str(run)]) == 0
    assert set(asked) == {"fp32"} and len(asked) > 3  # evaluators, pictures, throughput


def test_after_pretraining_without_labels_it_learns_from_the_shards_that_it_names(make_run, tmp_path, capsys):
    """On the command line and in training, as a slow neighbour of the features of the files does."""
    rng, paths = np.random.default_rng(0), {}
    for split, count in (("train", 6), ("test", 4)):
        for name, level in (("dark", 90), ("light", 130)):
            for i in range(count):
                path = tmp_path / "photos" / split / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.normal(level, 40, (8, 8, 3)).clip(0, 255).astype(np.uint8)).save(path)
                paths.setdefault((split, name), []).append(path)
    shards.build(f"folder:{tmp_path}/photos?unlabeled=.", tmp_path / "bare", workers=1, progress=False)
    shards.build(f"folder:{tmp_path}/photos", tmp_path / "named", workers=1, progress=False)
    nearest = {"type": "knn", "k": 1, "pool": "mean"}
    fields = {"data.images": None, "optim.batch_size": 4, "loop.max_steps": 2, "evals.near": nearest | {"shards": str(tmp_path / "named")}}
    run = tmp_path / "run"
    config.save(make_run(SHORT, MAE, fields, shards=tmp_path / "bare"), run)
    assert train.main([str(run)]) == 0
    capsys.readouterr()
    features = {key: torch.nn.functional.normalize(vitssl.load(run).features(files).pooled("mean")) for key, files in paths.items()}
    hits = [
        max(("dark", "light"), key=lambda other, row=row: (features["train", other] @ row).max().item()) == name
        for name in ("dark", "light")
        for row in features["test", name]
    ]
    assert read_json(run / "evals.json")["near"]["metrics"]["top1"] == pytest.approx(100 * np.mean(hits))
    words = ["evaluate", str(run), "--shards", str(tmp_path / "named")]
    assert cli.main([*words, "--type", "knn", "--set", "k=1", "pool=mean"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["top1"] == pytest.approx(100 * np.mean(hits)) and shown["count"] == 8
    assert cli.main([*words, "--type", "linear"]) == 0 and json.loads(capsys.readouterr().out)["count"] == 8
    assert cli.main(["evaluate", str(run), "--type", "knn"]) == 2
    assert "error: --shards: no image that the Run trains on has a label; name shards whose" in capsys.readouterr().err
    assert cli.main([*words, "--type", "knn", "--split", "train", "--set", "k=1"]) == 2
    assert "would be its own nearest neighbour" in capsys.readouterr().err
    assert cli.main([*words, "--type", "knn", "--set", "k=13"]) == 2 and "13 is more than the 12 labelled" in capsys.readouterr().err
