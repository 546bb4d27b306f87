"""Shared by all tests: a tiny Run, and digits shards built once."""

from __future__ import annotations

import os
import signal
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two busy cores: more threads only fight

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from vitssl import config

torch.set_num_threads(1)
# what a shell starts in the background ignores Ctrl-C, and so would the processes that tests start and interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)


LONG = ("tests/jobs/test_sweeps.py", "tests/training/test_train.py", "tests/test_gradients.py", "tests/test_gpu.py")
# SLURM's tests in parts of a cluster each, that take about as long; what is named nowhere is the last
OF_SLURM = {"test_hard_days.py": "waiting", "test_patience.py": "patience"}
OF_SLURM |= dict.fromkeys(["test_training.py", "test_submitting.py", "test_controls.py"], "training")


class Scheduling(LoadScopeScheduling):
    """What a worker takes as one: a part of SLURM's tests, with its own cluster; a file with shared fixtures; a test of a long file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        if file.startswith("tests/slurm/"):
            return f"tests/slurm, {OF_SLURM.get(Path(file).name, 'others')}"
        return nodeid if file in LONG else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest that one worker takes comes first, or it would run alone at the end; a release's tests run where they are asked for."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/slurm/"))
    if "release" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("release"):
                item.add_marker(pytest.mark.skip(reason="what only a release needs; pytest -m release runs it"))


def sweep_facts(arms: Iterable[dict[str, Any] | str] = (), cells: Iterable[dict[str, Any]] = (), **facts: Any) -> dict[str, Any]:
    """What `jobs.folders.write_sweep` writes of a sweep, with what a test is not about left empty; arms by their names, or as they are."""
    blank = {"row": "", "published": None, "published_cost": None, "quoted": False, "not_runnable": None, "note": None, "baseline": None}
    listed = [{**blank, **({"name": arm} if isinstance(arm, str) else arm)} for arm in arms]
    return {
        "name": "x", "file": "x.yaml", "paper": None, "notes": [], "overrides": [], "columns": None, "baseline": None, "metric": "top1",
        "select": [], "equal": {"all": None, "axes": {}}, "axes": {}, "arms": listed, "cells": list(cells), "work": {}, "resources": {},
        "site": {}, "command": "", "commit": None, "dirty": False, "created": "", **facts,
    }  # fmt: skip


def but_for_a_release(values: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """The values of a parametrised test; those that are not kept are a release's."""
    return [value if value in kept else _released(value) for value in values]


def _released(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.release)


TINY = {
    "data": {"image_size": 8, "eval_crop": 1.0, "normalize": "half", "views": {"main": {"scale": [0.5, 1.0], "hflip": 0.0}}},
    "backbone": {"name": "vit_pico", "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 2},
    "optim": {"batch_size": 32, "lr_rule": "none"},
    "loop": {"epochs": 2, "warmup_epochs": 0.5, "threads": 1, "device": "cpu"},
}
MAE = {"objectives.mae": {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}}
SSAT = {"objectives.classify": {"weight": 0.1}, **MAE, "objectives.mae.weight": 0.9}


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of scikit-learn's digits: 1,347 + 450 images of 8 px."""
    from vitssl.data import shards

    folder = tmp_path_factory.mktemp("shards") / "digits"
    shards.build("digits", folder, workers=1, progress=False)
    return folder


@pytest.fixture(autouse=True)
def compiled_code_is_forgotten():
    """torch.compile gives a function up after eight recompilations, whichever tests made them."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests keep decoded images: the digits are decoded once, not by each of hundreds of trainings."""
    return tmp_path_factory.mktemp("decoded") / "cache"


@pytest.fixture
def make_run(cache_dir: Path):
    """A tiny Run from layers over TINY; its shards folder need not exist."""

    def make(*layers, shards="nowhere") -> config.Run:
        run = config.merge(config.Run, TINY, {"data.shards": str(shards), "data.cache_dir": str(cache_dir)}, *layers)
        config.check(run)
        return run

    return make


@pytest.fixture
def folder(make_run, digits: Path, tmp_path: Path):
    """Makes a run folder of a name, with a Run of the digits that is to be trained."""

    def made(name: str, *layers: Any) -> Path:
        config.save(make_run(*layers, shards=digits), tmp_path / name)
        return tmp_path / name

    return made


@pytest.fixture
def untrained_run(make_run, digits: Path, tmp_path: Path):
    """Makes the folder of a run of the digits with random weights."""

    from vitssl import model
    from vitssl.checkpoints import tensor_files
    from vitssl.data.index import load_index

    def made(*layers: Any) -> Path:
        made_run = make_run({"objectives.classify": {}}, *layers, shards=digits)
        config.save(made_run, tmp_path / "run")
        index = load_index(digits)
        content = {"model": model.build(made_run, 10).state_dict(), "ema": None}
        tensor_files.save(
            tmp_path / "run" / "last.pt", content | {"data": {"classes": index.classes, "mean": index.mean, "std": index.std}}
        )
        (tmp_path / "run" / "done.json").write_text('{"step": 0, "epochs": 0.0}')
        return tmp_path / "run"

    return made
