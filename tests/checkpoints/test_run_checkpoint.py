"""Damaged, altered and foreign checkpoints of runs: one line, and nothing is trained or evaluated on them."""

from __future__ import annotations

import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import vitssl
from vitssl import config, train
from vitssl.checkpoints import pretrained, tensor_files
from vitssl.checkpoints.run_checkpoint import ADVICE, read_run
from vitssl.config import ConfigError
from vitssl.files import read_json
from vitssl.run_folder import DONE, LAST


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, digits) -> Path:
    """The folder of a run that stopped after two of four steps."""
    folder = tmp_path_factory.mktemp("run")
    run = config.merge(config.Run, {
        "data": {"shards": str(digits), "image_size": 8, "cache_dir": str(folder / "cache")},
        "backbone": {"name": "vit_pico", "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2},
        "optim.batch_size": 32, "objectives.classify": {},
        "loop": {"epochs": 1, "warmup_epochs": 0, "threads": 1, "max_steps": 4, "ema_decay": 0.9, "device": "cpu"},
    })  # fmt: skip
    config.save(run, folder)
    step, stop = train.train_step, folder / "stop"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITSSL_STOP_FILE", str(stop))
        patch.setattr(train, "train_step", lambda state, *rest: (state.progress.step and stop.touch()) or step(state, *rest))
        assert train.main([str(folder)]) == train.STOPPED
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def alter(folder: Path, path: str, value: Any) -> None:
    """Set a nested value of the folder's checkpoint; ... leaves it out."""
    content = torch.load(folder / LAST, weights_only=True)
    *outer, name = [int(key) if key.isdigit() else key for key in path.split("/")]
    part = content
    for key in outer:
        part = part[key]
    if value is ...:
        del part[name]
    else:
        part[name] = value
    tensor_files.save(folder / LAST, content)


WEIGHT = "backbone.norm.weight"
NOT_FINITE = torch.full((16,), torch.nan)
STRUCTURE = {
    "nan weight": (f"model/{WEIGHT}", NOT_FINITE, f"model.{WEIGHT} has values that are not finite"),
    "nan average": (f"ema/{WEIGHT}", NOT_FINITE, f"ema.{WEIGHT} has values that are not finite"),
    "complex": (
        f"model/{WEIGHT}",
        NOT_FINITE.to(torch.complex64),
        f"model.{WEIGHT} is not a plain tensor of real numbers (torch",
    ),
    "beyond its type": (f"model/{WEIGHT}", torch.full((16,), 1e300, dtype=torch.float64), f"{WEIGHT} has values that are not finite"),
    "sparse": (f"model/{WEIGHT}", torch.ones(16).to_sparse(), f"model.{WEIGHT} is not a plain tensor of real numbers"),
    "without values": (f"model/{WEIGHT}", torch.ones(16, device="meta"), f"model.{WEIGHT} is not a plain tensor of real numbers"),
    "eight bits": (f"model/{WEIGHT}", torch.ones(16).to(torch.float8_e4m3fn), f"model.{WEIGHT} is not a plain tensor of real numbers"),
    "quantized": (f"model/{WEIGHT}", torch.quantize_per_tensor(torch.ones(16), 1, 0, torch.qint8), f"model.{WEIGHT} is not a plain tensor"),
    "expanded": (f"model/{WEIGHT}", torch.zeros(1).expand(10**6, 10**6), f"model.{WEIGHT} is not a plain tensor of real numbers"),
    "another network's average": (f"ema/{WEIGHT}", torch.ones(17), f"{WEIGHT} has shape (17,), and (16,) is expected: it was written"),
    "an average beyond its type": (
        f"ema/{WEIGHT}",
        torch.full((16,), 1e300, dtype=torch.float64),
        f"{WEIGHT} has values that are not finite",
    ),
    "moments that are one tensor": ("optimizer/state/0", torch.ones(5), "optimizer has unexpected content"),
    "a rate that is a tensor": ("optimizer/param_groups/0/lr", torch.ones(2), "optimizer has unexpected content"),
    "a group that is a list": ("optimizer/param_groups/0", [1], "optimizer has unexpected content"),
    "a scale in words": ("scaler", {"scale": "x"}, "scaler has unexpected content"),
    "no data": ("data", ..., "data has unexpected content"),
    "classes of another type": ("data/classes", "abc", "data has unexpected content"),
    "classes that JSON has not": ("data/classes", [torch.zeros(2)], "data has unexpected content"),
    "mean of two": ("data/mean", [0.5, 0.5], "data has unexpected content"),
    "weights that are a list": ("model", [1, 2], "model has unexpected content"),
    "no weights": ("model", {}, "model has unexpected content"),
    "a negative step": ("progress/step", -1, "progress has unexpected content"),
    "a step in words": ("progress/step", "two", "progress has unexpected content"),
    "a negative time": ("progress/time_s", -5.0, "progress has unexpected content"),
    "an accuracy in words": ("progress/best_test", {"top1": "y"}, "progress has unexpected content"),
    "a result that is a number": ("progress/last", {"test": 1.0}, "progress has unexpected content"),
    "a switch in words": ("progress/to_evaluate", "x", "progress has unexpected content"),
    "unknown progress": ("progress/pace", 1.0, "progress has unexpected content"),
    "another network": (f"model/{WEIGHT}", torch.ones(17), f"{WEIGHT} has shape (17,), and (16,) is expected: it was written for another"),
}
RESUMED = {
    "a step beyond the end": ("progress/step", 10**12, "step 1,000,000,000,000 of 4"),
    "no average": ("ema", None, "ema is missing, and training cannot go on from it"),
    "nan in the optimizer": (
        "optimizer/state/0/exp_avg",
        torch.full((32, 3), torch.nan),
        "optimizer.state.0.exp_avg has values that are not",
    ),
    "a state of no weight": (
        "optimizer/state/99",
        {"exp_avg": torch.ones(2)},
        "optimizer: it has a state of something that is not a weight",
    ),
    "another optimizer": ("optimizer/param_groups", [], "optimizer: "),
    "another weight's average": ("optimizer/state/0/exp_avg", torch.zeros(5), "optimizer: exp_avg has shape (5,)"),
}


@pytest.mark.parametrize("case", STRUCTURE)
def test_what_is_not_as_written_is_not_evaluated(folder: Path, case: str) -> None:
    path, value, words = STRUCTURE[case]
    alter(folder, path, value)
    with pytest.raises(ConfigError) as error:
        vitssl.load(folder)
    assert words in str(error.value) and str(folder / LAST) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("case", {**STRUCTURE, **RESUMED})
def test_what_is_not_as_written_is_not_trained_on(folder: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    path, value, words = (STRUCTURE | RESUMED)[case]
    alter(folder, path, value)
    before = (folder / LAST).read_bytes()
    assert train.main([str(folder)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert words in line and LAST in line
    assert (folder / LAST).read_bytes() == before


def test_a_flipped_bit_is_found_or_harmless(stopped: Path, tmp_path: Path) -> None:
    whole, rng = (stopped / LAST).read_bytes(), random.Random(0)
    expected, path, found = read_run(stopped / LAST), tmp_path / "last.pt", 0
    for _ in range(150):
        altered = bytearray(whole)
        altered[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(altered)
        try:
            content = read_run(path)
        except ConfigError as error:
            assert "\n" not in str(error)
            found += 1
        else:  # of a file's padding and times
            assert str(content) == str(expected)
    assert found > 50


def test_weights_that_are_not_finite_start_no_run(folder: Path, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(folder, f"model/{WEIGHT}", NOT_FINITE)
    run = config.merge(config.Run, config.read_yaml(folder / "run.yaml"), {"init_from": str(folder)})
    config.save(run, tmp_path / "second")
    assert train.main([str(tmp_path / "second")]) == 2
    assert f"{WEIGHT} has values that are not finite" in capsys.readouterr().err
    assert not list((tmp_path / "second").glob("*.pt"))


def test_a_trained_run_has_no_optimizer_and_is_finished_again_without_its_records(folder: Path) -> None:
    assert read_run(folder / LAST)["optimizer"] is not None
    assert train.main([str(folder)]) == 0
    before, done = read_run(folder / LAST), read_json(folder / DONE)
    assert before["optimizer"] is None
    (folder / DONE).unlink()
    assert train.main([str(folder)]) == 0
    after = read_run(folder / LAST)
    assert all(torch.equal(after[part][name], value) for part in ("model", "ema") for name, value in before[part].items())
    assert read_json(folder / DONE) == done | {"time_s": after["progress"]["time_s"]}


def test_nothing_is_trained_further_without_an_optimizer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(folder, "optimizer", None)
    assert train.main([str(folder)]) == 2
    assert "last.pt: optimizer is missing, and training cannot go on from it; " in capsys.readouterr().err


@pytest.mark.parametrize("weights", [[1], torch.zeros(3), {3: torch.zeros(3)}, {}], ids=["list", "tensor", "number for a name", "empty"])
def test_what_holds_no_named_tensors_starts_no_run(folder: Path, weights: Any) -> None:
    alter(folder, "model", weights)
    with pytest.raises(ConfigError, match="holds no weights"):
        pretrained.weights(str(folder))


def test_compressed_parts_are_refused_unread(stopped: Path, tmp_path: Path) -> None:
    """They may be a thousand times as large as the file; torch stores its own."""
    with zipfile.ZipFile(stopped / LAST) as whole, zipfile.ZipFile(tmp_path / "last.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    with pytest.raises(ConfigError, match="is compressed, which torch does not write"):
        read_run(tmp_path / "last.pt")


def test_the_advice_is_said(folder: Path) -> None:
    alter(folder, "schema", "x")
    with pytest.raises(ConfigError, match=ADVICE):
        read_run(folder / LAST)
