"""What the records of run and sweep folders must hold: a field that is missing, of another type or out of all range is named."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import status
from tests.report.conftest import make_sweep
from vitssl import cli, records, report
from vitssl.config import ConfigError
from vitssl.files import read_events, read_json
from vitssl.report.results import analyses

pytestmark = pytest.mark.usefixtures("without_plots")

DIGITS = {"shards": "digits", "split": "test"}
CLASSES, TWO = np.array(["a", "b"]), np.arange(2)
REST = {"confidence": np.ones(2, np.float32), "top5": np.ones(2, bool), "loss": np.zeros(2, np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of two arms, one of them failed."""
    make = {("ssat", 0): {"state": "failed"}}
    return make_sweep(tmp_path / "study", {"scratch": 80.0, "ssat": 85.0}, {"seed": [0]}, columns=None, make=make)


def rewrite(path: Path, *keys: Any, value: Any = ...) -> None:
    """Set a field of a record to another value, or leave it out."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else [json.loads(path.read_text())]
    owner = lines[0]
    for key in keys[:-1]:
        owner = owner[key]
    if value is ...:
        del owner[keys[-1]]
    else:
        owner[keys[-1]] = value
    path.write_text("\n".join(map(json.dumps, lines)) + "\n" * (path.suffix == ".jsonl"))


DAMAGES = [
    ("job.json", ("hours",), "x", "hours: 'x' is not a number"),
    ("job.json", ("data", "classes"), "ten", "data.classes: 'ten' is not a whole number"),
    ("job.json", ("site",), [], "site: [] is not a set of fields"),
    ("job.json", ("site", "gpu_power_w"), math.nan, "site.gpu_power_w: NaN is not from -1e+300 to 1e+300"),
    ("cost.json", ("macs_inference",), ..., "macs_inference: it is missing"),
    ("cost.json", ("macs_passes",), [], "macs_passes: [] is not a mapping of names"),
    ("cost.json", ("inference_images_per_s",), 1e308, "inference_images_per_s: 1e+308 is not from 0 to 1e+18"),
    ("done.json", ("test",), {"top5": 1.0}, "test.top1: it is missing"),
    ("done.json", ("test", "top1"), 990.0, "test.top1: 990.0 is not from 0"),
    ("done.json", ("step",), True, "step: true is not a whole number"),
    ("emissions-0-n1.json", ("energy_kwh",), -1.0, "energy_kwh: -1.0 is not from 0"),
    ("emissions-0-n1.json", ("gpus",), None, "gpus: null is not a whole number"),
    ("emissions-0-n1.json", ("cpu_power_source",), "sun", "cpu_power_source: 'sun' is none of rapl, tdp"),
    ("metrics.jsonl", ("step",), "x", "step: 'x' is not a whole number"),
    ("metrics.jsonl", ("host",), ..., "host: it is missing"),
    ("metrics.jsonl", ("versions",), {"torch": "\0"}, "versions.torch: '\\x00' is not text"),
    ("run.yaml", ("loop", "epochs"), [], "loop.epochs: [] is not a whole number"),
    ("run.yaml", ("backbone",), None, "backbone: null is not a set of fields"),
]


@pytest.mark.parametrize(("file", "keys", "value", "said"), DAMAGES, ids=lambda part: str(part)[:30])
def test_the_rest_is_reported_and_the_damaged_field_named(folder, capsys, file, keys, value, said):
    rewrite(folder / "scratch-train-0" / file, *keys, value=value)
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and shown.err.startswith(f"note: {folder / 'scratch-train-0' / file}: ")
    assert said in shown.err, shown.err
    assert "1 unreadable" in shown.out and "1 failed" in shown.out
    assert "Its results are not in this report" in (folder / "report" / "report.html").read_text()


def test_a_cut_off_run_yaml_and_a_lost_cost_json_are_damages_too(folder, capsys):
    (folder / "ssat-train-0" / "run.yaml").write_text("seed: 0\ndata: {shards")
    (folder / "scratch-train-0" / "cost.json").unlink()
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "ssat-train-0/run.yaml: line 3: not YAML" in shown.err
    said = "it is missing although the run is done; restore it from a backup, or delete done.json beside it and repeat the command"
    assert f"scratch-train-0/cost.json: {said}" in shown.err
    assert "2 unreadable" in shown.out


def test_what_figures_are_made_of_is_checked_too(folder, capsys):
    first, second = folder / "scratch-train-0", folder / "ssat-train-0"
    (second / "analysis").mkdir()
    (second / "analysis" / "mask-attention.json").write_text(
        '{"images": 9, "shards": "digits", "split": "test", "weights": "model", "checkpoint": "last.pt", "masked_tokens": 2, "tokens": 5}'
    )
    np.savez_compressed(first / "predictions-test.npz", classes=CLASSES, labels=TWO, predicted=TWO, **REST)
    content = (first / "predictions-test.npz").read_bytes()
    (first / "predictions-test.npz").write_bytes(content[:-30])
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "ssat-train-0/analysis/mask-attention.json: unexpected content (blocks: it is missing)" in shown.err
    assert "scratch-train-0/predictions-test.npz: damaged, not as it was written" in shown.err and "1 unreadable" in shown.out


def test_a_damaged_analysis_costs_its_figure_and_not_its_run(folder, capsys):
    """Who adds a number to an analysis had no results of all runs that were analysed before."""
    run = folder / "ssat-train-0"
    (run / "analysis").mkdir()
    (run / "analysis" / "tokens.json").write_text(json.dumps({"images": 9, **DIGITS, "weights": "model", "checkpoint": "last.pt"}))
    (run / "analysis" / "of-a-later-version.json").write_text("{}")
    sound = report.summary(folder)
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "ssat-train-0/analysis/tokens.json: unexpected content (place: it is missing)" in shown.err and "unreadable" not in shown.out
    assert "It is in no figure until `vitssl analyze` is repeated" in (folder / "report" / "report.md").read_text()
    shutil.rmtree(run / "analysis")
    assert report.summary(folder) == sound


PREDICTIONS = {
    "no predictions": ({"classes": CLASSES, "labels": TWO}, "predicted is not a file in the archive"),
    "labels beyond": ({"classes": CLASSES, "labels": TWO + 6, "predicted": TWO}, "labels has numbers of which 2 classes have none"),
    "negative": ({"classes": CLASSES, "labels": TWO, "predicted": -TWO}, "predicted has numbers of which 2 classes have none"),
    "fractions": ({"classes": CLASSES, "labels": TWO / 2, "predicted": TWO}, "labels is not a list of whole numbers"),
    "lengths": (
        {"classes": CLASSES, "labels": TWO, "predicted": np.zeros(3, int)},
        "predicted is not a list of whole numbers",
    ),
    "objects": ({"classes": np.array(["a", None]), "labels": TWO, "predicted": TWO}, "Object arrays cannot be loaded"),
    "top five": (
        {"classes": CLASSES, "labels": TWO, "predicted": TWO, "top5": TWO},
        "top5 is not a list of truths, one for each image",
    ),
    "one name": ({"classes": np.array("a"), "labels": TWO, "predicted": TWO}, "classes is not a list of names"),
}


@pytest.mark.parametrize("case", PREDICTIONS)
def test_predictions_of_another_structure_are_damage(folder, capsys, case):
    arrays, said = PREDICTIONS[case]
    np.savez_compressed(folder / "scratch-train-0" / "predictions-test.npz", **REST | arrays)
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    assert f"scratch-train-0/predictions-test.npz: unexpected content ({said}" in shown.err and "1 unreadable" in shown.out


def test_a_matrix_of_very_many_classes_is_not_made(folder):
    classes = np.arange(300_000).astype(str)
    np.savez_compressed(folder / "scratch-train-0" / "predictions-test.npz", classes=classes, labels=TWO, predicted=TWO, **REST)
    report.write(folder)
    assert "unreadable" not in report.summary(folder)


MEASURED = {"mean": [0.5, 0.5], "std": [0.0, 0.0], "share": [0.5, 0.5]}
BLOCKS = [
    ({}, "blocks: it has no blocks by their numbers"),
    ({"b": {"cls": MEASURED}}, "blocks: it has no blocks by their numbers"),
    ({"1": {"cls": MEASURED | {"std": []}}}, "blocks.1.cls.std: 0 values of 2"),
]


@pytest.mark.parametrize("name", ["attention", "tokens-teacher"])
@pytest.mark.parametrize("blocks", [{}, {"first": {}}, {"1": {"distance": []}}])
def test_an_analysis_without_blocks_or_numbers_is_damage(tmp_path, name, blocks):
    (tmp_path / "analysis").mkdir()
    facts = {
        "images": 9,
        **DIGITS,
        "weights": "model",
        "checkpoint": "last.pt",
        "place": "block",
        "spectrum": [],
        "distance_if_equal": 0.5,
        "blocks": blocks,
    }
    (tmp_path / "analysis" / f"{name}.json").write_text(json.dumps(facts))
    ((), (said,)) = analyses.find(tmp_path)
    assert f"analysis/{name}.json: unexpected content (blocks" in said


@pytest.mark.parametrize(("blocks", "said"), BLOCKS)
def test_an_analysis_of_another_structure_is_damage(tmp_path, blocks, said):
    facts = {"images": 9, **DIGITS, "weights": "model", "checkpoint": "last.pt", "masked_tokens": 2, "tokens": 5, "blocks": blocks}
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "mask-attention.json").write_text(json.dumps(facts))
    ((), (problem,)) = analyses.find(tmp_path)
    assert f"analysis/mask-attention.json: unexpected content ({said}" in problem


SELECTIONS = {"images": 9, **DIGITS, "weights": "model", "checkpoint": "last.pt", "grid": [1, 2], "sizes": [1], "selection": "x"} | {
    "locality": [0.5], "locality_random": [0.5], "iou": [[1.0]],
}  # fmt: skip
SHOWN = {"images": np.zeros((3, 2, 4, 3), np.uint8), "selected": np.zeros((3, 1, 2), bool), "frequency": np.zeros((1, 2))}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "selections.npz: it is missing although the JSON file beside it exists"),
        (SHOWN | {"images": SHOWN["images"][:, :, :3]}, "images are not RGB images that the patches divide"),
        (SHOWN | {"selected": SHOWN["selected"][:2]}, "selected does not say of each patch"),
        (SHOWN | {"frequency": np.zeros(2)}, "frequency does not say how often"),
        (SHOWN, ""),
    ],
)
def test_pictures_of_another_structure_are_damage(tmp_path, arrays, said):
    analysis = tmp_path / "analysis"
    analysis.mkdir()
    (analysis / "selections.json").write_text(json.dumps(SELECTIONS))
    if arrays:
        np.savez_compressed(analysis / "selections.npz", **arrays)
    sound, problems = analyses.find(tmp_path)
    assert len(sound) + len(problems) == 1 and said in "".join(problems) and bool(problems) is bool(said)


ROW = {"name": "class token", "said": [], "place": [0, 1], "compared": True}
PICTURED = {
    "images": 2,
    "weights": "model",
    "checkpoint": "last.pt",
    **DIGITS,
    "grid": [1, 2],
    "index": [5, 3],
    "titles": ["a", "b"],
    "rows": [ROW],
}
MAPS = {"images": np.zeros((2, 2, 4, 3), np.uint8), "maps": np.zeros((1, 2, 2), np.float32)}


@pytest.mark.parametrize(
    ("facts", "arrays", "said"),
    [
        ({"rows": []}, {}, "(rows: "),
        ({"titles": ["a"]}, {}, "(titles: 1 values of 2)"),
        ({"grid": [2]}, {}, "(grid: 1 values of 2)"),
        ({"rows": [ROW | {"said": ["x"]}]}, {}, "(rows[0].said: 1 values of 2)"),
        ({"rows": [ROW | {"place": [1]}]}, {}, "(rows[0].place: 1 values of 2)"),
        ({}, {"images": MAPS["images"][:1]}, "(images are not the RGB images that the JSON file names)"),
        ({}, {"images": np.zeros((2, 0, 4, 3), np.uint8)}, "(images are not the RGB images that the JSON file names)"),
        ({}, {"maps": MAPS["maps"][:, :1]}, "(maps are not numbers from 0 on, one for each place of the grid)"),
        ({}, {"maps": MAPS["maps"] - 1}, "(maps are not numbers from 0 on, one for each place of the grid)"),
        ({}, {"maps": MAPS["maps"] + np.nan}, "(maps are not numbers from 0 on, one for each place of the grid)"),
        ({}, {}, ""),
    ],
)
@pytest.mark.parametrize("name", ["maps", "grad-cam-ema"])
def test_maps_of_another_structure_are_damage(tmp_path, name, facts, arrays, said):
    analysis = tmp_path / "analysis"
    analysis.mkdir()
    (analysis / f"{name}.json").write_text(json.dumps(PICTURED | facts))
    np.savez_compressed(analysis / f"{name}.npz", **MAPS | arrays)
    sound, problems = analyses.find(tmp_path)
    assert len(sound) + len(problems) == 1 and said in "".join(problems) and bool(problems) is bool(said)


@pytest.mark.parametrize("file", ["job.json", "metrics.jsonl", "run.yaml", "predictions-test.npz", "views-x.png"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_damage_and_nothing_waits_for_it(folder, capsys, file, make):
    path = folder / "scratch-train-0" / file
    path.unlink(missing_ok=True)
    make(path)
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    said = "it is missing although the run is done" if file == "run.yaml" else "cannot be read ("
    assert shown.err.startswith(f"note: {path}: {said}") and "1 unreadable" in shown.out


@pytest.mark.usefixtures("with_plots")
@pytest.mark.parametrize("kept", ["metrics.jsonl", "emissions-0-n1.json", "cost.json"])
def test_a_begun_run_without_its_fields_is_damage_that_leaves_the_rest_of_the_report(sweep, capsys, kept):
    """Of its other records one is left. The arms' images differ, so there are learning curves over images, which need a batch's size."""
    make = {("ssat", 0): {"state": "running", "data": {"train_images": 4000}}}
    folder = sweep({"scratch": 80.0, "ssat": 85.0}, {"seed": [0, 1]}, columns=None, make=make)
    begun = folder / "ssat-train-0"
    (begun / "cost.json").write_bytes((folder / "ssat-train-1" / "cost.json").read_bytes())
    for name in {"run.yaml", "metrics.jsonl", "emissions-0-n1.json", "cost.json"} - {kept}:
        (begun / name).unlink()
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"note: {begun / 'run.yaml'}: it is missing although the run has begun; ")
    assert "3 of 4 runs are done; 1 unreadable" in shown.out


def test_imported_weights_without_their_fields_are_damage_too(folder, capsys):
    rewrite(folder / "scratch-train-0" / "job.json", "imported", value={"file": "x", "layout": "mae", "sha256": "ab" * 32})
    (folder / "scratch-train-0" / "run.yaml").unlink()
    assert cli.main(["report", str(folder)]) == 0
    assert "scratch-train-0/run.yaml: it is missing although the run is done; " in capsys.readouterr().err


@pytest.mark.parametrize("file", ["job.json", "done.json", "metrics.jsonl", "slurm.json", "error.json"])
def test_the_status_of_the_others_is_shown(folder, capsys, file):
    (folder / "ssat-train-0" / file).write_text("[]\n")
    assert status.main([str(folder)]) == 0
    shown = capsys.readouterr()
    assert "done" in shown.out and "unreadable" in shown.out
    assert f"ssat-train-0/{file}: damaged, not a JSON object" in " ".join(shown.out.split("\n"))


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("cells",), ..., "cells: it is missing"),
        (("cells", 0, "stages"), {}, "cells[0].stages: {} is not a list"),
        (("cells", 0, "stages"), [], "cells[0].stages: it is empty"),
        (("cells", 0, "stages", 0, "folder"), "a\0b", "cells[0].stages[0].folder: 'a\\x00b' is not text"),
        (("arms", 0, "published"), {"cifar10": "x"}, "arms[0].published.cifar10: 'x' is not a number"),
        (("arms", 0, "name"), None, "arms[0].name: null is not text"),
        (("select",), ["q"], "select: 'q' is not an axis of all cells"),
        (("arms", 0, "row"), "\x1b]0;owned\x07X", r"arms[0].row: '\x1b]0;owned\x07X' holds a control character"),
        (("notes",), ["a\n\tb", "a\x1b[2J"], r"notes[1]: 'a\x1b[2J' holds a control character"),
        (
            ("paper",),
            {"title": "t", "table": "1", "url": "javascript:alert(1)"},
            "paper.url: 'javascript:alert(1)' is not an address",
        ),
        (("site", "price_per_gpu_hour"), math.inf, "site.price_per_gpu_hour: Infinity is not from"),
    ],
)
def test_of_a_damaged_sweep_json_nothing_is_reported(folder, capsys, keys, value, said):
    rewrite(folder / "sweep.json", *keys, value=value)
    for call in (lambda: cli.main(["report", str(folder)]), lambda: status.main([str(folder)])):
        assert call() == 2
        shown = capsys.readouterr()
        assert shown.err.startswith(f"error: {folder / 'sweep.json'}: unexpected content (") and said in shown.err
        assert shown.err.count("\n") == 1 and not shown.out


def test_an_error_of_another_program_does_nothing_to_a_terminal(folder, capsys):
    rewrite(folder / "ssat-train-0" / "error.json", "message", value="\x1b]0;owned\x07 and\r red \x9b31m")
    assert status.main([str(folder)]) == 0 and cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, (folder / "report" / "report.md").read_text()):
        assert not set("\x1b\x07\r\x9b").intersection(text)
    assert r"\x1b]0;owned" in shown.out


@pytest.mark.usefixtures("with_plots")
def test_results_that_are_not_finite_are_results(folder):
    """As of a network whose averaged weights overflowed."""
    rewrite(folder / "scratch-train-0" / "done.json", "test", "loss", value=math.nan)
    rewrite(folder / "scratch-train-0" / "done.json", "test", "top5", value=math.inf)
    report.write(folder)
    assert "2 runs" in report.summary(folder) and "unreadable" not in report.summary(folder)


@pytest.mark.usefixtures("with_plots")
def test_of_several_seeds_too(sweep):
    folder = sweep({"scratch": 80.0, "scratch_b": 81.0, "ssat": 82.0, "ssat_b": 83.0}, {"seed": [0, 1, 2]}, columns=None)
    rewrite(folder / "scratch-train-1" / "done.json", "test", "loss", value=math.nan)
    rewrite(folder / "scratch_b-train-1" / "done.json", "test", "loss", value=math.inf)
    rewrite(folder / "sweep.json", "metric", value="loss")
    report.write(folder)
    assert [row.arm.name for row in report.read(folder).ranking(None)] == ["ssat", "ssat_b"]
    assert "The best arm by NLL is scratch" not in report.summary(folder)


def test_records_of_other_versions_may_hold_more(tmp_path):
    (tmp_path / "done.json").write_text(json.dumps({"step": 1, "epochs": 0.5, "test": None, "later": [1], "time_s": 3}))
    assert read_json(tmp_path / "done.json")["later"] == [1]
    (tmp_path / "metrics.jsonl").write_text('{"event": "later", "step": 1, "time": 2.0, "x": []}\n{"event": "tr')
    assert len(read_events(tmp_path / "metrics.jsonl")) == 1, "what is being written is no damage"


def test_a_number_of_many_digits_is_damage(tmp_path):
    (tmp_path / "done.json").write_text(f'{{"step": {"1" * 5000}}}')
    with pytest.raises(ConfigError, match=r"done\.json: damaged, not JSON"):
        read_json(tmp_path / "done.json")


def test_every_record_that_training_and_launching_write_has_a_schema():
    wrong = {"evals": {"knn": 1}, "job": {"site": []}}
    for name in ("job", "cost", "done", "evals", "error", "sweep", "slurm", "local", "emissions-0-n1", ".cost/0123"):
        with pytest.raises(ConfigError, match="unexpected content"):
            records.check(wrong.get(name, {}), Path(f"{name}.json"))
