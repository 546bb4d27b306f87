"""Shards read ahead, in order, where they are streamed."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from tests.data import scale
from tests.data.test_loader import children, stream, streaming, threads
from vitssl.config import ConfigError, Data, Subset
from vitssl.data.index import Index, load_index
from vitssl.data.loading import read_ahead
from vitssl.data.loading.images import Streamed
from vitssl.data.loading.loader import EvalLoader, TrainLoader
from vitssl.data.loading.order import Order, windows
from vitssl.data.loading.subset import train_and_heldout

IMAGES = 120  # in shards of 4


@pytest.fixture
def index(make_shards) -> Index:
    """30 shards of mixed classes."""
    index = make_shards(train={"cat": 70, "dog": 50}, test={"cat": 2, "dog": 3})
    index.label[:IMAGES] = np.random.default_rng(0).permutation(index.label[:IMAGES])
    return index


@pytest.fixture
def data(tmp_path) -> Data:
    return Data(shards="unused", cache_dir=str(tmp_path / "cache"), cache_gb=0.0, shuffle_window=16)


def loader(index: Index, data: Data, **options) -> TrainLoader:
    return TrainLoader(index, train_and_heldout(index, data, need_labels=False), data, seed=3, **({"batch_size": 8} | options))


@pytest.fixture
def requests(monkeypatch) -> list[tuple[int, int]]:
    """What is read ahead, in blocks of 1 kB: number of the open file, block."""
    found = []
    preadv = os.preadv

    def record(descriptor: int, buffers: list, offset: int) -> int:
        found.append((os.fstat(descriptor).st_ino, offset // 1024))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(read_ahead, "BLOCK", 1024)
    monkeypatch.setattr(os, "preadv", record)
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_each_epoch_and_the_order_is_one(index, data, world_size, workers):
    reference = stream(loader(index, replace(data, cache_gb=1.0)).batches(0, 30))  # cached
    assert [sorted(reference[i : i + IMAGES]) for i in (0, IMAGES)] == [list(range(IMAGES))] * 2
    data = replace(data, workers=workers)
    loaders = [loader(index, data, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(part.order.windows and part.images.ahead for part in loaders)
    ranks = [part.batches(0, 30) for part in loaders]
    assert stream(slices for step in zip(*ranks, strict=True) for slices in step) == reference


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_stopped_in_the_middle_of_an_epoch_it_goes_on_to_the_bit(index, data, world_size, workers):
    data = replace(data, workers=workers)
    whole = [step[0] for step in loader(index, data).batches(0, 20)]
    for start in (1, 7, 16):  # an epoch has 15 steps
        for rank in range(world_size):
            part = loader(index, data, rank=rank, world_size=world_size)
            for step, expected in zip((slices[0] for slices in part.batches(start, 20)), whole[start:], strict=True):
                rows = slice(rank * 8 // world_size, (rank + 1) * 8 // world_size)
                sizes = expected.sizes_B2[rows]
                height, width = sizes.amax(0).tolist()
                assert step.step == expected.step and torch.equal(step.index_B, expected.index_B[rows])
                assert torch.equal(step.pixels, expected.pixels[rows, :, :height, :width])


def test_an_epoch_reads_each_block_once_and_shards_in_order(index, data, requests):
    ours = loader(index, replace(data, shuffle_window=8, workers=0))
    seen = stream(ours.batches(0, 15))
    needed = {
        (os.stat(index.folder / index.shards[index.shard[i]]["name"]).st_ino, int(end) // 1024)
        for i in seen
        for end in (index.offset[i], index.offset[i] + index.size[i] - 1)
    }
    assert len(requests) == len(set(requests)), "none twice"
    assert set(requests) == needed
    by_shard = {}
    for shard, block in requests:
        by_shard.setdefault(shard, []).append(block)
    assert len(by_shard) == 30
    stream(ours.batches(0, 15))
    assert sorted(requests) == sorted(2 * list(needed)), "whoever reads again may find nothing of it in memory"


def test_reading_ahead_stays_within_its_depth(index, data, monkeypatch):
    monkeypatch.setattr(read_ahead, "SLICES", 2)
    asked = []

    def positions():
        for i in range(0, IMAGES, 4):
            asked.append(i)
            yield np.arange(i, i + 4)

    reading = read_ahead.Ahead(index, np.arange(IMAGES), 16).read(positions)
    next(reading)
    time.sleep(0.2)
    assert len(asked) == 4, "one taken, two waiting, one in the thread's hand"
    reading.close()
    assert not threads()


@pytest.mark.parametrize("workers", [0, 2])
def test_leaving_early_ends_threads_and_processes(index, data, workers):
    before = children()
    batches = loader(index, replace(data, workers=workers)).batches(0, 10**6)
    next(batches)
    assert len(threads()) == 2, "one makes batches, one reads ahead"
    batches.close()
    assert not threads() and children() == before


def test_evaluation_reads_ahead_too(index, data, requests):
    part = EvalLoader(index, index.where("test"), index.label, replace(data, workers=0), batch_size=2)
    assert [i for batch in part for i in batch.index_B.tolist()] == index.where("test").tolist()
    shards = list(dict.fromkeys(shard for shard, _ in requests))
    assert len(shards) == 2 and requests == sorted(set(requests), key=lambda request: (shards.index(request[0]), request[1]))


def test_images_at_random_are_not_read_ahead(index, data):
    assert isinstance((part := loader(index, streaming(replace(data, shuffle_window=10**6), 0)).images), Streamed)
    assert part.ahead is None


def test_labelled_images_that_come_at_random_are_not_read_ahead(index, data, requests):
    """A tenth of the images has labels, and a quarter of each batch."""
    part = loader(index, replace(data, workers=0, labels=Subset(fraction=0.1, balanced=False)), labelled_rows=2)
    unlabelled = [i for i in stream(part.batches(0, 15)) if part.labels[i] < 0]
    assert len(unlabelled) == 15 * 6
    inodes = {k: os.stat(index.folder / shard["name"]).st_ino for k, shard in enumerate(index.shards)}
    ends = [(i, end) for i in unlabelled for end in (index.offset[i], index.offset[i] + index.size[i] - 1)]
    assert set(requests) == {(inodes[int(index.shard[i])], int(end) // 1024) for i, end in ends}
    reading = part.images.ahead
    labelled = np.flatnonzero(part.labels[:IMAGES] >= 0)
    assert reading._blocks(labelled) == [] and reading._blocks(np.arange(IMAGES))


def test_a_shard_that_the_cache_does_not_keep_is_open_while_it_is_read(index, data, requests, monkeypatch):
    """Two threads may open it at once, and the cache keeps one of the two."""
    monkeypatch.setattr(read_ahead, "_opened", lambda path, _: read_ahead._Shard(path))
    ours = loader(index, replace(data, workers=0))
    seen = stream(ours.batches(0, 15))
    inodes = [os.stat(index.folder / shard["name"]).st_ino for shard in index.shards]
    assert {(inodes[index.shard[i]], int(index.offset[i]) // 1024) for i in seen} <= set(requests)


def test_a_shard_that_is_gone_is_named(index, data):
    (index.folder / "train-000007.tar").unlink()
    with pytest.raises(ConfigError, match=r"train-000007\.tar"):
        list(loader(index, replace(data, workers=1)).batches(0, 15))


@pytest.mark.parametrize("of", [1, 3])
def test_shards_are_read_once_an_epoch_at_any_scale(tmp_path, of):
    """100,000 images, or every third of them: the window is one of the shards that they are in."""
    scale.write(tmp_path, 100_000)
    index = load_index(tmp_path)
    positions = index.where("train")[::of]
    around = windows(index, positions, 20_000, scale.BATCH)
    reading, at_first, taken = scale.epoch_of_a_node(index, Order(positions, 0, windows=around), nodes=1)
    blocks = 100_000 * scale.BYTES / read_ahead.BLOCK
    assert blocks * 0.9 < reading.requests < blocks * 1.1 and len(taken) > len(positions) - scale.BATCH
    assert at_first < blocks / 3


def test_open_shards_are_few_for_all_loaders_of_a_process(tmp_path, monkeypatch):
    monkeypatch.setattr(read_ahead, "_opened", lru_cache(50)(read_ahead._opened.__wrapped__))
    scale.write(tmp_path, 100_000)
    index, before = load_index(tmp_path), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        reading = read_ahead.Ahead(index, index.where("train"), 0)
        list(reading._reading(iter(index.where("train").reshape(-1, 1000)[:, :1])))
        assert before < len(os.listdir("/proc/self/fd")) <= before + 50
