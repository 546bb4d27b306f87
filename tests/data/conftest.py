"""Small data sets on disk for the data tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitssl.data import shards
from vitssl.data.index import Index


def write_images(folder: Path, counts: dict[str, int], seed: int, ragged: bool) -> None:
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            height, width = rng.integers(6, 20, 2) if ragged else (12, 10)
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i:03d}.{'jpg' if i % 2 else 'png'}", quality=95)


@pytest.fixture
def make_folder(tmp_path: Path):
    """Write PATH/<split>/<class>/*.jpg and *.png of random pixels; returns PATH."""

    def make(name: str = "pets", ragged: bool = True, **splits: dict[str, int]) -> Path:
        for seed, (split, counts) in enumerate((splits or {"train": {"cat": 7, "dog": 5}, "test": {"cat": 2, "dog": 3}}).items()):
            write_images(tmp_path / name / split, counts, seed, ragged)
        return tmp_path / name

    return make


@pytest.fixture
def make_shards(make_folder, tmp_path: Path):
    """Shards of such a folder, four images in each."""

    def make(name: str = "pets", ragged: bool = True, **splits: dict[str, int]) -> Index:
        source = make_folder(name, ragged, **splits)
        return shards.build(str(source), tmp_path / f"{name}-shards", workers=1, images_per_shard=4, progress=False)

    return make
