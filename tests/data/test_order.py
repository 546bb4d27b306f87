"""The order of many images: by shards, within a window, dealt out in lanes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitssl.data import order
from vitssl.data.index import Index, unwritten
from vitssl.data.order import Order, Windows, dense, mixed, windows

SHARDS = [7, 12, 1, 9, 30, 5, 16]  # images in each


def in_shards(counts: list[int], labels: np.ndarray | None = None) -> Index:
    """An index of nothing but shards with so many images."""
    label = np.zeros(sum(counts), np.int64) if labels is None else labels
    index = unwritten("nowhere", "made up", [str(k) for k in range(max(label.max(initial=0) + 1, 1))], {"train": label})
    return replace(index, shards=[{"name": f"{i}", "split": "train", "images": n} for i, n in enumerate(counts)])


def one_by_one(epoch: int, seed: int, positions: np.ndarray, shard_of: list[int], size: int, batch: int, repeats: int) -> list[int]:
    """The definition, image by image: shards permuted, images moved by up to their lane's window, rows of a batch filled by lane."""
    rng = np.random.default_rng([seed, epoch, *b"order"])
    lanes = min(order.LANES, batch)
    shards = list(dict.fromkeys(shard_of))
    images = [i for s in rng.permutation(len(shards)) for i in range(len(positions)) if shard_of[i] == shards[s]]
    keys = [place + u * size / lanes for place, u in enumerate(rng.random(len(images)))]
    images = [image for _, image in sorted(zip(keys, images, strict=True))]
    images = images[: -(-len(images) // repeats)]
    rows = [(epoch * len(positions) + repeats * i) % batch for i in range(len(images))]
    stream: list[int | None] = [None] * len(images)
    for lane in range(lanes):
        for place in (i for i, row in enumerate(rows) if row * lanes // batch == lane):
            stream[place] = images.pop(0)
    return [int(positions[image]) for image in stream for _ in range(repeats)][: len(positions)]


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("batch", [1, 4, 6, 200])
@pytest.mark.parametrize("size", [1, 10, 79])
def test_the_order_is_its_definition(monkeypatch, size, batch, repeats):
    monkeypatch.setattr(order, "LANES", 4)
    index = in_shards(SHARDS)
    positions = np.delete(np.arange(len(index)), [0, 5, 19, 44])  # of the third shard nothing is left
    shard_of = index.shard[positions]
    windowed = Order(positions, 5, repeats, Windows(shard_of, size, batch))
    for epoch in range(3):
        expected = one_by_one(epoch, 5, positions, shard_of.tolist(), size, batch, repeats)
        assert windowed.epoch(epoch).tolist() == expected
        if repeats == 1:
            assert sorted(expected) == positions.tolist()


def test_a_rank_reads_shards_of_its_own():
    """Of 640 shards each of eight ranks reads an eighth in an epoch, and two that its first and last lanes share with a neighbour's."""
    index = in_shards([20] * 640)
    stream = Order(np.arange(len(index)), 0, windows=Windows(index.shard, 500, 128))
    batches = stream.slice(0, len(index)).reshape(-1, 8, 16)
    read = [set(index.shard[batches[:, rank].ravel()].tolist()) for rank in range(8)]
    assert all(80 <= len(shards) <= 82 for shards in read)
    assert len(set.union(*read)) == 640


def test_images_move_within_the_window_of_their_lane():
    index = in_shards([10] * 1000)
    around = Windows(index.shard, 640, 64)
    shuffled = around.shuffled(np.random.default_rng(0))
    unmoved = Windows(index.shard, 0, 64).shuffled(np.random.default_rng(0))
    place = np.empty_like(shuffled)
    place[shuffled] = np.arange(len(shuffled))
    moved = np.abs(place[unmoved] - np.arange(len(unmoved)))
    assert moved.mean() > 0 and moved.max() <= 10
    assert (np.diff(unmoved.reshape(-1, 10)) == 1).all() and len(set(unmoved[::10].tolist())) == 1000, "whole shards, in another order"


def test_neighbours_in_a_shard_come_apart_by_the_window():
    """As two images at random in it: half of them by more than 0.29 of the window."""
    index = in_shards([1000] * 400)
    stream = Order(np.arange(len(index)), 1, windows=Windows(index.shard, 40_000, 64)).epoch(0)
    place = np.empty_like(stream)
    place[stream] = np.arange(len(stream))
    apart = np.abs(np.diff(place))[np.diff(index.shard) == 0]
    assert np.median(apart) == pytest.approx((1 - 0.5**0.5) * 40_000, rel=0.05)


def test_small_sorted_and_thinned_out_sets_are_permuted_as_a_whole():
    labels = np.random.default_rng(0).integers(0, 10, 400)
    index, everything = in_shards([20] * 20, labels), np.arange(400)
    assert windows(index, everything, 399, 8) is not None
    assert windows(index, everything, 400, 8) is None, "all fit into one"
    assert windows(in_shards([20] * 20, np.sort(labels)), everything, 100, 8) is None
    few = everything[::5]
    assert not dense(index, few) and windows(index, few, 10, 8) is None
    assert dense(index, np.arange(20)) and dense(index, everything[::4])


def test_mixed_tells_shards_that_are_sorted_by_class():
    rng = np.random.default_rng(0)
    labels = rng.choice(4, 20_000, p=[0.7, 0.1, 0.1, 0.1])
    unlabelled = np.full(50_000, -1)
    assert mixed(labels) and mixed(np.concatenate([unlabelled, labels])) and mixed(unlabelled) and mixed(np.zeros(100, np.int64))
    assert not mixed(np.sort(labels)) and not mixed(np.concatenate([np.sort(labels), unlabelled]))
    assert not mixed(np.repeat(rng.permutation(1000), 2)), "two of each class side by side"
    by_shard = np.repeat(rng.permutation(100), 200)
    assert not mixed(by_shard), "shards of one class each, in random order"
