"""Sweeps over somebody's WebDataset, read in place."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jobs.inputs import prepare
from jobs.plan import shards
from vitssl.config import ConfigError
from vitssl.data.shards import build


def pets(path: Path, count: int, seed: int) -> None:
    """A tar of images of two classes."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for i in range(count):
            image = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(image, "PNG")
            for ending, content in (("png", image.getvalue()), ("cls", str(i % 2).encode())):
                member = tarfile.TarInfo(f"{i:03d}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def words(place: Path) -> list[str]:
    """A data set of two training tars, each with four images, and what a user types to train on it."""
    for name, count in {"train-0": 4, "train-1": 4, "test-0": 2}.items():
        pets(place / "zoo" / f"{name}.tar", count, seed=len(name) + count)
    prepare._was_built_from.cache_clear()
    return ["data.source=wds:zoo/train-{0..1}.tar?test=test-*.tar", "data.shards=shards/zoo", "optim.batch_size=2"]


def built(place: Path) -> Path:
    build(f"wds:{place}/zoo/train-{{0..1}}.tar?test=test-*.tar", place / "shards" / "zoo", workers=1, progress=False)
    shards.index_of.cache_clear()
    return place / "shards" / "zoo"


def test_before_its_shards_are_built_its_counts_are_unknown(expand, place: Path, words: list[str]) -> None:
    job = expand(*words).jobs[0]
    assert job.run.data.source == f"wds:{place}/zoo/train-{{0..1}}.tar?test=test-*.tar"
    assert shards.expected_index(job.run.data) is None
    assert shards.describe(job.run).endswith("; its contents, and so the cost, are known only then")
    with pytest.raises(ConfigError, match=r"there is no .*/zoo/train-\{0\.\.2\}\.tar to build the shards from"):
        expand("data.source=wds:zoo/train-{0..2}.tar?test=test-*.tar", *words[1:])


def test_shards_are_those_of_the_tars_until_these_change(expand, place: Path, words: list[str]) -> None:
    folder = built(place)
    job = expand(*words).jobs[0]
    assert (shards.num_images(job.run), job.run.data.sha256) == (8, shards.index_of(folder).sha256)
    os.utime(place / "zoo" / "train-1.tar", (1, 1))
    prepare._was_built_from.cache_clear()
    with pytest.raises(ConfigError, match=r"was built from other data \(zoo\) than wds:.* lists"):
        expand(*words)


def test_tars_that_are_gone_go_by_their_name(place: Path, words: list[str]) -> None:
    folder = built(place)
    for name, same in {"zoo/train-{0..9}": True, "zoo": True, "train-{0..9}": False}.items():
        prepare._was_built_from.cache_clear()
        assert prepare._was_built_from(folder, f"wds:/gone/{name}.tar?test=test-*.tar") is same


def test_a_container_sees_the_tars(place: Path, words: list[str]) -> None:
    (place / "blobs").mkdir()
    (place / "zoo" / "test-0.tar").rename(place / "blobs" / "1a2b")
    (place / "zoo" / "test-0.tar").symlink_to(place / "blobs" / "1a2b")  # as caches of downloads do
    folder = built(place)
    assert shards.folders_of(str(folder)) == [str(folder), f"{place}/blobs", f"{place}/zoo"]
    assert shards.folders_of(f"{place}/shards/digits") == [f"{place}/shards/digits"]
