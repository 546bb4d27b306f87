"""The order of many images: by shards, within a window, dealt out in lanes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitssl.config import Data
from vitssl.data.index import Index, planned_index
from vitssl.data.loading import order
from vitssl.data.loading.order import Order, TwoOrders, Windows, is_dense, training_order, windows

SHARDS = {"train": [7, 12, 1, 9, 30], "unlabeled": [5, 16]}  # images in each


def in_shards(labels: np.ndarray | None = None, **counts: list[int]) -> Index:
    """An index of nothing but shards with so many images."""
    label = np.zeros(sum(map(sum, counts.values())), np.int64) if labels is None else labels
    index = planned_index("nowhere", "made up", [str(k) for k in range(max(label.max(initial=0) + 1, 1))], {"train": label})
    shards = [{"name": "", "split": split, "images": n, "bytes": n} for split, numbers in counts.items() for n in numbers]
    return replace(index, shards=shards)


def one_by_one(index: Index, epoch: int, seed: int, positions: np.ndarray, size: int, batch: int, repeats: int) -> list[int]:
    """The definition, image by image: pieces permuted, splits in proportion, images moved within their lane, rows of a batch by lane."""
    rng = np.random.default_rng([seed, epoch, *b"order"])
    pieces: list[list[int]] = []
    for i, position in enumerate(positions):
        if not i or index.shard[position] != index.shard[positions[i - 1]] or len(pieces[-1]) == order.PIECE:
            pieces.append([])
        pieces[-1].append(int(position))
    by_split: dict[int, list[int]] = {}
    pieces_in_order = rng.permutation(len(pieces))
    for s in pieces_in_order:
        by_split.setdefault(int(index.split[pieces[s][0]]), []).extend(pieces[s])
    shares = {image: (i + 0.5) / len(images) for images in by_split.values() for i, image in enumerate(images)}
    images = sorted((image for s in pieces_in_order for image in pieces[s]), key=shares.__getitem__)
    images = images[: -(-len(images) // repeats)]
    lanes = min(order.LANES, batch)
    rows = [(epoch * len(positions) + repeats * i) % batch * lanes // batch for i in range(len(images))]
    moves = rng.random(len(images)) * size * len(positions) / sum(index.shards[k]["images"] for k in set(index.shard[positions])) / lanes
    stream, start = [-1] * len(images), 0
    for lane in range(lanes):
        places = [i for i, row in enumerate(rows) if row == lane]
        own = range(start, start + len(places))
        for place, i in zip(places, sorted(own, key=lambda i: i + moves[i]), strict=True):
            stream[place] = images[i]
        start += len(places)
    return [image for image in stream for _ in range(repeats)][: len(positions)]


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("batch", [1, 4, 6, 200])
@pytest.mark.parametrize("size", [1, 10, 79])
@pytest.mark.parametrize("splits", [1, 2])
def test_the_order_is_its_definition(monkeypatch, size, batch, repeats, splits):
    monkeypatch.setattr(order, "LANES", 4)
    monkeypatch.setattr(order, "PIECE", 10)
    index = in_shards(**dict(list(SHARDS.items())[:splits]))
    positions = np.delete(np.arange(len(index)), [0, 5, 19, 44])  # of the third shard nothing is left
    windowed = Order(positions, 5, repeats, Windows(index, positions, size, batch))
    for epoch in range(3):
        expected = one_by_one(index, epoch, 5, positions, size, batch, repeats)
        assert windowed.epoch(epoch).tolist() == expected
        if repeats == 1:
            assert sorted(expected) == positions.tolist()


def labels_of(num_labelled: int, num_images: int) -> np.ndarray:
    """Labels of images of which some, all over, have one."""
    label = np.full(num_images, -1)
    label[np.random.default_rng(0).permutation(num_images)[:num_labelled]] = 0
    return label


def ordered(label: np.ndarray, rows: int | None, batch: int, **fields) -> Order | TwoOrders:
    data = Data(shards="unused", **fields)
    index = in_shards(label, train=[len(label)])
    return training_order(index, np.arange(len(label)), label, data, seed=7, batch_size=batch, labelled_rows=rows)


@pytest.mark.parametrize(("batch", "labelled_rows"), [(10, 3), (8, 3), (3, 2), (4, 3), (6, 1), (5, 3)])
def test_of_each_batch_a_part_has_labels_row_by_row(batch, labelled_rows):
    """The definition: labelled images are dealt from a stream of their own to rows that are as far apart as can be."""
    label = labels_of(5, 50)
    found = ordered(label, labelled_rows, batch)
    streams = {True: Order(np.flatnonzero(label == 0), 7), False: Order(np.flatnonzero(label == -1), 7)}
    taken, expected = {True: 0, False: 0}, []
    for row in range(20 * batch):
        in_batch = row % batch
        is_labelled = (in_batch + 1) * labelled_rows // batch > in_batch * labelled_rows // batch
        expected.append(int(streams[is_labelled].slice(taken[is_labelled], taken[is_labelled] + 1)[0]))
        taken[is_labelled] += 1
    assert found.slice(0, 20 * batch).tolist() == expected and found.num_images == len(label)
    for start, stop in ((0, 1), (3, 3 + batch), (batch, 3 * batch), (7, 8), (5, 5)):
        assert found.slice(start, stop).tolist() == expected[start:stop]
    assert {int((label[expected[i : i + batch]] == 0).sum()) for i in range(0, 20 * batch, batch)} == {labelled_rows}
    seen = [image for image in expected if label[image] == -1]
    unlabelled = int((label == -1).sum())
    assert len(set(seen[:unlabelled])) == min(len(seen), unlabelled), "each image once before one comes again"


@pytest.mark.parametrize("rows", [None, 1, 2])
def test_where_as_many_images_have_labels_the_order_is_the_plain_one(rows):
    label = labels_of(10, 50)
    assert ordered(label, rows, 10).slice(0, 200).tolist() == Order(np.arange(50), 7).slice(0, 200).tolist()


@pytest.mark.parametrize("num_labelled", [0, 50])
def test_without_both_kinds_of_images_the_order_is_the_plain_one(num_labelled):
    assert ordered(labels_of(num_labelled, 50), 9, 10).slice(0, 99).tolist() == Order(np.arange(50), 7).slice(0, 99).tolist()


def test_a_labelled_part_of_large_data_leaves_the_others_in_windows(monkeypatch):
    """The few labelled images are read at random, the many others nearly in the order of their shards."""
    monkeypatch.setattr(order, "PIECE", 10)
    label = labels_of(20, 2000)
    found = ordered(label, 2, 8, shuffle_window=100)
    assert isinstance(found, TwoOrders) and found.window == 100
    assert found.windowed.tolist() == np.flatnonzero(label == -1).tolist()
    stream = found.slice(0, 8 * 330)
    others = stream[label[stream] == -1]
    assert len(others) == 6 * 330 and len(set(others.tolist())) == 1980
    assert median_distance(others) < 150 < median_distance(np.random.default_rng(0).permutation(others))


def median_distance(stream: np.ndarray) -> float:
    """Between an image and the one a batch later in its lane."""
    return float(np.median(np.abs(stream[6:] - stream[:-6])))


def stream_of(index: Index, seed: int, size: int, batch: int) -> np.ndarray:
    everything = np.arange(len(index))
    return Order(everything, seed, windows=Windows(index, everything, size, batch)).epoch(0)


def places(stream: np.ndarray) -> np.ndarray:
    """Of each image, where in the stream it comes."""
    place = np.empty_like(stream)
    place[stream] = np.arange(len(stream))
    return place


def test_a_rank_reads_shards_of_its_own():
    """Of 640 shards each of eight ranks reads an eighth in an epoch, and two that its first and last lanes share with a neighbour's."""
    index = in_shards(train=[20] * 640)
    batches = stream_of(index, 0, 500, 128).reshape(-1, 8, 16)
    read = [set(index.shard[batches[:, rank].ravel()].tolist()) for rank in range(8)]
    assert all(80 <= len(shards) <= 82 for shards in read)
    assert len(set.union(*read)) == 640


def test_images_move_within_the_window_of_their_lane(monkeypatch):
    monkeypatch.setattr(order, "LANES", 1)
    index = in_shards(train=[10] * 1000)
    unmoved, shuffled = (stream_of(index, 0, size, 1) for size in (0, 640))
    assert (np.diff(unmoved.reshape(-1, 10)) == 1).all() and len(set(unmoved[::10].tolist())) == 1000, "whole shards, in another order"
    moved = places(shuffled)[unmoved] - np.arange(10_000)
    assert np.abs(moved).mean() > 100 and np.abs(moved).max() < 640


def test_a_batch_has_its_images_from_the_beginning_of_each_lane():
    """So that the first batch of an epoch needs a part of its window only."""
    index = in_shards(train=[10] * 10_000)
    first = stream_of(index, 0, 64 * 500, 256)[:256]
    lanes = [first[rows : rows + 4] for rows in range(0, 256, 4)]
    by_piece = places(Windows(index, np.arange(len(index)), 0, 256)._by_piece(np.random.default_rng([0, 0, *b"order"])))
    ahead = [by_piece[lane] - lane_number * 100_000 / 64 for lane_number, lane in enumerate(lanes)]
    assert max(place.max() for place in ahead) < 200, "the window of a lane is 500"


def test_neighbours_in_a_shard_come_apart_by_the_window():
    """As two images at random in it: half of them by more than 0.29 of the window."""
    index = in_shards(train=[1000] * 400)
    apart = np.abs(np.diff(places(stream_of(index, 1, 40_000, 64))))[np.diff(index.shard) == 0]
    assert np.median(apart) == pytest.approx((1 - 0.5**0.5) * 40_000, rel=0.05)


def test_a_few_large_shards_are_mixed_like_many_small_ones():
    """From one epoch to the next an image moves by a third of an epoch, as in any two permutations."""
    index = in_shards(train=[5000] * 40)
    everything = np.arange(len(index))
    both = Order(everything, 0, windows=Windows(index, everything, 20_000, 256))
    assert np.abs(places(both.epoch(0)) - places(both.epoch(1))).mean() == pytest.approx(len(index) / 3, rel=0.1)


def test_each_split_comes_in_proportion():
    """A few labelled images among many without a label, each in shards of their own, are in all batches."""
    labels = np.concatenate([np.random.default_rng(0).integers(0, 10, 2000), np.full(198_000, -1)])
    index = in_shards(labels, train=[100] * 20, unlabeled=[100] * 1980)
    assert windows(index, np.arange(200_000), 20_000, 1000) is not None
    labelled = (stream_of(index, 0, 20_000, 1000) < 2000).reshape(-1, 1000).sum(axis=1)
    assert labelled.mean() == 10 and labelled.min() >= 1 and labelled.std() < 5


def test_small_sorted_and_thinned_out_sets_are_permuted_as_a_whole():
    labels = np.random.default_rng(0).integers(0, 10, 400)
    index, everything = in_shards(labels, train=[20] * 20), np.arange(400)
    assert windows(index, everything, 399, 8) is not None
    assert windows(index, everything, 400, 8) is None, "all fit into one"
    assert windows(in_shards(np.sort(labels), train=[20] * 20), everything, 100, 8) is None
    few = everything[::5]
    assert not is_dense(index, few) and windows(index, few, 10, 8) is None
    assert is_dense(index, np.arange(20)) and is_dense(index, everything[::4])


def is_mixed(labels: np.ndarray, **counts: list[int]) -> bool:
    return order.is_mixed(in_shards(labels, **counts), np.arange(len(labels)))


def test_mixed_tells_shards_that_are_sorted_by_class():
    rng = np.random.default_rng(0)
    labels = rng.choice(4, 20_000, p=[0.7, 0.1, 0.1, 0.1])
    unlabelled, shards = np.full(50_000, -1), {"train": [1000] * 20}
    assert is_mixed(labels, **shards) and is_mixed(np.zeros(20_000, np.int64), **shards) and is_mixed(unlabelled, unlabeled=[1000] * 50)
    assert not is_mixed(np.sort(labels), **shards)
    assert is_mixed(np.concatenate([labels, unlabelled]), **shards, unlabeled=[1000] * 50)
    assert not is_mixed(np.concatenate([np.sort(labels), unlabelled]), **shards, unlabeled=[1000] * 50)
    assert not is_mixed(np.concatenate([labels, unlabelled]), train=[1000] * 70), "labelled ones in front, in one split"
    few_classes = np.concatenate([rng.permutation(np.repeat(rng.choice(1000, 10), 100)) for _ in range(300)])
    assert not is_mixed(few_classes, train=[1000] * 300), "ten of a thousand classes in each shard, in random order"
    assert is_mixed(rng.integers(0, 1000, 300_000), train=[1000] * 300)
