"""Batches of one view, and a look at what Drloc draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitssl.data.batch import Batch
from vitssl.objectives import drloc


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
