"""A model card says what the run folder and its sweep's folder hold, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from vitssl.report.pages import card


def test_a_card_has_data_recipe_accuracy_with_its_spread_and_costs(sweep) -> None:
    top1 = {"scratch": 80.0, "sslft": lambda at: 90.0 + at["seed"]}
    folder = sweep(top1, {"seed": [0, 1, 2]}, columns=None)
    text = card.text(folder / "sslft-finetune-1", classifier=True)
    assert text.startswith("---\nlibrary_name: timm\npipeline_tag: image-classification\n")
    assert "A classifier: vit_tiny for images of 224 px, 5.53 M parameters and 1.26 GMACs an image." in text
    assert "- finetune: cifar10, 10 classes, 2,000 training images (2,000 labelled), 10,000 test images" in text
    assert "- pretrain: mae; 50 epochs of batch 64, adamw, learning rate 0.00025 after a warm-up of 5 epochs" in text
    assert "- finetune: classify; 50 epochs" in text and "seed 1" in text
    assert "- this model, after the last epoch: top-1 91.00 % of 10,000 test images" in text
    assert "- over 3 seeds of the same recipe, after the last epoch: top-1 % 91.00 ± 1.00 (mean ± std)" in text
    assert "1.00 device-hours, 1.00 GPU-hours, 250 Wh, 100 g CO2e" in text  # two stages of half an hour
    assert "GPU power was measured with NVML" in text and "timm.create_model('local-dir:FOLDER', pretrained=True)" in text
    for record in (folder / "sslft-pretrain-1").glob("emissions-*.json"):
        record.unlink()
    text = card.text(folder / "sslft-finetune-1", classifier=True)
    assert "what training of this model took is not known: the record of pretrain is lost" in text and "device-hours," not in text


def test_a_pretraining_has_neither_the_stages_after_it_nor_their_accuracy(sweep) -> None:
    folder = sweep({"sslft": 90.0}, {"seed": [0, 1]}, columns=None, baseline=None)
    knn = {"config": {"type": "knn"}, "epoch": 50, "metrics": {"top1": 61.5}}
    (folder / "sslft-pretrain-0" / "evals.json").write_text(json.dumps({"knn": knn}))
    text = card.text(folder / "sslft-pretrain-0", classifier=False)
    assert "pipeline_tag: image-feature-extraction" in text and "A backbone without a classifier" in text
    assert "finetune" not in text and "seeds of the same recipe" not in text
    assert "- this model, evaluator knn: top-1 % 61.50" in text
    assert "30.0 device-minutes" in text


def test_a_card_has_the_results_of_the_weights_that_it_goes_with(run_folder) -> None:
    """As the checkpoint and its weights were evaluated; of what was not, none of another's."""
    results = {name: {"top1": top1, "count": 50} for name, top1 in {"test": 70.0, "selected": 60.0, "test_ema": 65.0}.items()}
    folder = run_folder(done=results)
    knn = {"config": {"type": "knn"}, "epoch": 50, "metrics": {"top1": 51.5}}
    probe = {"config": {"type": "linear", "weights": "ema"}, "epoch": 50, "metrics": {"top1": 52.5}}
    near = {"config": {"type": "knn", "weights": "best"}, "epoch": 20, "metrics": {"top1": 53.5}}
    (folder / "evals.json").write_text(json.dumps({"knn": knn, "probe": probe, "near": near}))
    told = {
        ("last.pt", "model"): ["after the last epoch: top-1 70.00 % of 50 test images", "evaluator knn: top-1 % 51.50"],
        ("last.pt", "ema"): ["averaged weights after the last epoch: top-1 65.00 % of 50 test images", "evaluator probe: top-1 % 52.50"],
        ("best.pt", "model"): [
            "best.pt, the epoch that was chosen on held-out images: top-1 60.00 % of 50 test images",
            "evaluator near: top-1 % 53.50",
        ],
        ("epoch-0010.pt", "model"): [],
        ("best.pt", "ema"): [],
    }
    for (checkpoint, weights), lines in told.items():
        text = card.text(folder, True, checkpoint, weights)
        shown = [line.removeprefix("- this model, ") for line in text.splitlines() if line.startswith("- this model, ")]
        assert shown == lines
        assert (f"- this model ({checkpoint}, weights {weights}): not evaluated" in text) == (not lines)


def test_a_card_is_written_of_a_setting_that_was_not_chosen_and_of_an_arm_that_an_axis_leaves_alone(sweep) -> None:
    val = {
        (("ssat", rate, seed)): {"done": {"val": {"top1": 100 * rate}, "test": {"top1": 100 * rate + seed}}}
        for rate in (0.1, 0.2)
        for seed in (0, 1)
    }
    folder = sweep({"ssat": 1.0}, {"optim.lr": [0.1, 0.2], "seed": [0, 1]}, columns=None, baseline=None, make=val, select=["optim.lr"])
    assert "2 seeds of the same recipe, after the last epoch: top-1 % 10.50 ± 0.71" in card.text(
        folder / "ssat-train-0.1-0", classifier=True
    )
    assert "2 seeds of the same recipe, after the last epoch: top-1 % 20.50 ± 0.71" in card.text(
        folder / "ssat-train-0.2-1", classifier=True
    )
    facts = json.loads((folder / "sweep.json").read_text())
    for cell in facts["cells"]:
        cell["stages"][0]["folder"] = f"ssat-train-0.1-{cell['axes']['seed']}"
    (folder / "sweep.json").write_text(json.dumps(facts | {"select": []}))
    assert "2 seeds of the same recipe, after the last epoch: top-1 % 10.50 ± 0.71" in card.text(
        folder / "ssat-train-0.1-1", classifier=True
    )


def test_a_run_outside_of_a_sweep_speaks_for_itself(run_folder) -> None:
    text = card.text(run_folder(top1=77.0), classifier=True)
    assert "top-1 77.00 %" in text and "seeds of the same recipe" not in text


def test_an_import_says_what_it_is(run_folder) -> None:
    folder: Path = run_folder()
    job = json.loads((folder / "job.json").read_text())
    imported = {"file": "/x/mae_base.pth", "sha256": "ab" * 32, "layout": "mae", "settings": []}
    (folder / "job.json").write_text(json.dumps({"imported": imported, "stage": "import", "site": job["site"]}))
    text = card.text(folder, classifier=True)
    assert "- import: the weights of mae_base.pth (layout mae, sha256 abababababab)" in text and "/x/" not in text
    assert "- import: none; the weights are as they were imported" in text
    assert "the cost of the weights that it started from is not known here" in text


@pytest.mark.parametrize("damage", [lambda stage: (stage / "emissions-0-n1.json").write_text("{"), shutil.rmtree], ids=["damaged", "gone"])
def test_a_card_says_that_nothing_is_known_of_an_earlier_stage_that_cannot_be_read(sweep, damage) -> None:
    folder = sweep({"sslft": 90.0}, {"seed": [0]}, columns=None, baseline=None)
    damage(folder / "sslft-pretrain-0")
    text = card.text(folder / "sslft-finetune-0", classifier=True)
    assert "- pretrain: not recorded\n- finetune: classify; 50 epochs" in text
    assert "what training of this model took is not known: the record of pretrain is lost" in text
