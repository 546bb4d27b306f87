"""Batches of one view, and a look at what Drloc draws."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from vitssl.config import Objectives
from vitssl.data.loading.batch import Batch
from vitssl.objectives import drloc

NAMES = [f.name for f in dataclasses.fields(Objectives)]


def declared(what: str) -> dict[str, Any]:
    """{objective: what its test file says}: ``PAIRS``, tiny forms of it for test_pairs; ``CURVE``, layers for test_train;
    ``OVER_RANKS``: fields with which two ranks are to train as one process does, or why they are not compared so."""
    paths = {name: f"tests.objectives.test_{name}" for name in NAMES}  # test_table says which file is missing
    modules = {name: importlib.import_module(path) for name, path in paths.items() if importlib.util.find_spec(path)}
    return {name: getattr(module, what) for name, module in modules.items() if hasattr(module, what)}


def batch_of(images_BCHW: Tensor) -> Batch:
    """Images of the ten classes in turn."""
    B = len(images_BCHW)
    return Batch({"main": images_BCHW}, {"main": torch.arange(B) % 10}, torch.arange(B), float(B))


@pytest.fixture
def drawn(monkeypatch) -> list[torch.Tensor]:
    """The pairs that were drawn, in order."""
    seen: list[torch.Tensor] = []
    draw = drloc.draw_pairs
    monkeypatch.setattr(drloc, "draw_pairs", lambda *args: seen.append(draw(*args)) or seen[-1])
    return seen
