"""The order of the training images: a stream that depends on the seed, the data and the size of a global batch, not on ranks or workers.

Small sets are permuted as a whole in each epoch. With many images, that would make every image of a streamed epoch a read at random. So
instead pieces of shards are permuted, and images move within a window of them (`data.shuffle_window`). The stream is dealt out in lanes: a
row of the global batch always takes from the same lane. So a rank, whose rows are neighbours, reads pieces of its own.

Where few of the images have a label, `data.labelled_batch_fraction` takes a part of every batch from a stream of these alone.

Shapes: N training images, S pieces of shards.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from vitssl.config import Data
from vitssl.data import UNLABELLED
from vitssl.data.index import Index

LANES = 64  # at most; with more ranks than lanes, two may read the same piece
PIECE = 1000  # images of a shard that stay together: large enough to be read in order, so small that few large shards are mixed too
SAMPLED_PIECES = 256  # pieces that are looked at to tell whether shards are mixed
TOO_ALIKE = 0.05  # two images of a piece may share a class more often than by chance, by this part of what is left to 1


class Order:
    """The endless stream of training images: one permutation of them for each epoch, which depends on (seed, epoch) alone.

    With ``repeats`` = r (repeated augmentation) an epoch takes the first ceil(N / r) images of its permutation, r adjacent
    copies of each, cut to N.

    Args:
        positions: of the images in their index, rising.
        windows: how images that are read in the order of their shards are permuted; None permutes all as a whole.

    Attributes:
        window: the next image may be any of this many images, in the order of their shards; None if it may be any at all.
        windowed: rising positions of the images of which this is so.
        num_images: the length of an epoch.
    """

    def __init__(self, positions: np.ndarray, seed: int, repeats: int = 1, windows: Windows | None = None):
        self.positions, self.seed, self.repeats, self.windows = positions, seed, repeats, windows
        self.num_images = len(positions)
        self.window = None if windows is None else windows.size
        self.windowed = positions[:0] if windows is None else positions
        self.epoch = lru_cache(maxsize=4)(self._epoch)

    def _epoch(self, epoch: int) -> np.ndarray:
        count = len(self.positions)
        base = -(-count // self.repeats)
        rng = np.random.default_rng([self.seed, epoch, *b"order"])
        if self.windows is None:
            order = rng.permutation(count)[:base]
        else:
            order = self.windows.permutation(rng, epoch * count + self.repeats * np.arange(base))
        return self.positions[np.repeat(order, self.repeats)[:count]]

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Return entries ``start`` up to, but not including, ``stop`` of the stream."""
        count = len(self.positions)
        epochs = range(start // count, -(-stop // count))
        parts = [self.epoch(e)[max(start - e * count, 0) : stop - e * count] for e in epochs]
        return np.concatenate([self.positions[:0], *parts])


class TwoOrders:
    """Two streams in one: of each ``batch_size`` rows in turn, ``first_rows`` are of ``first`` and the others of ``second``.

    The rows of ``first`` are spread over a batch as evenly as can be, so that contiguous slices of it hold equally many, up to one.
    Images of a stream that is permuted as a whole come at random between those of one with a window.
    """

    def __init__(self, first: Order, second: Order, first_rows: int, batch_size: int):
        self.first, self.second, self.first_rows, self.batch_size = first, second, first_rows, batch_size
        self.num_images = first.num_images + second.num_images
        windows = [stream.window for stream in (first, second) if stream.window is not None]
        self.window = sum(windows) if windows else None
        self.windowed = np.sort(np.concatenate([first.windowed, second.windowed]))

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Return entries ``start`` up to, but not including, ``stop`` of the stream."""
        first_before = np.arange(start, stop + 1) * self.first_rows // self.batch_size  # rows of `first` before each row
        is_first = np.diff(first_before) > 0
        rows = np.empty(stop - start, dtype=np.int64)
        rows[is_first] = self.first.slice(first_before[0], first_before[-1])
        rows[~is_first] = self.second.slice(start - first_before[0], stop - first_before[-1])
        return rows


class Windows:
    """Permutations of images in shards by which the shards are read nearly from beginning to end.

    Args:
        positions: of the images in their index, rising.
        size: how many images of the shards take turns, over all lanes.
        batch_size: of the global batches that the stream is cut into.
    """

    def __init__(self, index: Index, positions: np.ndarray, size: int, batch_size: int):
        self.size, self.batch_size, self.lanes = size, batch_size, min(LANES, batch_size)
        self._first_S = _pieces(index.shard[positions])
        self._count_S = np.diff(self._first_S, append=len(positions))
        self._split_S = index.split[positions[self._first_S]]
        self._moved_by = size * len(positions) / _in_shards(index, positions) / self.lanes

    def permutation(self, rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
        """Return a number from 0 to N - 1 of a training image for each of ``rows``, the rows of the stream to fill; none occurs twice."""
        images = self._by_piece(rng)[: len(rows)]
        lane_of_row = (rows % self.batch_size * self.lanes // self.batch_size).astype(np.uint8)
        lane = np.repeat(np.arange(self.lanes), np.bincount(lane_of_row, minlength=self.lanes))
        # an image comes later by less than its lane's part of the window, and no lane runs into the next
        shuffled = images[np.argsort(np.arange(len(images)) + (lane + rng.random(len(images))) * self._moved_by)]
        dealt = np.empty_like(shuffled)
        dealt[np.argsort(lane_of_row, kind="stable")] = shuffled
        return dealt

    def _by_piece(self, rng: np.random.Generator) -> np.ndarray:
        """Return the images (N,) with their pieces in random order; several splits are mixed in proportion everywhere."""
        pieces_S = rng.permutation(len(self._first_S))
        count_S, split_S = self._count_S[pieces_S], self._split_S[pieces_S]
        start_S = np.cumsum(count_S) - count_S
        images = np.arange(count_S.sum()) + np.repeat(self._first_S[pieces_S] - start_S, count_S)
        splits = np.unique(split_S)
        if len(splits) == 1:
            return images
        split_N, share_N = np.repeat(split_S, count_S), np.empty(len(images))
        for split in splits:
            of_split = np.flatnonzero(split_N == split)
            share_N[of_split] = (np.arange(len(of_split)) + 0.5) / len(of_split)
        return images[np.argsort(share_N, kind="stable")]


def training_order(
    index: Index, train: np.ndarray, labels: np.ndarray, data: Data, *, seed: int, batch_size: int, labelled_rows: int | None
) -> Order | TwoOrders:
    """Return the order of the images at the rising positions ``train``.

    Args:
        labels: of all images of the index, -1 if it has none.
        labelled_rows: how many images of a batch are at least to have labels, where that is a larger part than of all images; None leaves
            it to chance. From 1 to ``batch_size`` - 1.
    """

    def order(positions: np.ndarray, rows: int) -> Order:
        return Order(positions, seed, data.repeats, windows(index, positions, data.shuffle_window, rows))

    is_labelled = labels[train] != UNLABELLED
    if labelled_rows is None or not 0 < is_labelled.mean() < labelled_rows / batch_size:
        return order(train, batch_size)
    unlabelled_rows = batch_size - labelled_rows
    return TwoOrders(order(train[is_labelled], labelled_rows), order(train[~is_labelled], unlabelled_rows), labelled_rows, batch_size)


def windows(index: Index, positions: np.ndarray, size: int, batch_size: int) -> Windows | None:
    """Return how images at rising ``positions`` are permuted within windows of ``size``.

    None, which permutes them as a whole, if all fit into one window, are sorted by class, or are few of those in their shards.
    """
    if len(positions) <= size or not is_dense(index, positions) or not is_mixed(index, positions):
        return None
    return Windows(index, positions, size, batch_size)


def is_dense(index: Index, positions: np.ndarray) -> bool:
    """Whether the images at ``positions`` are at least a quarter of those in their shards, so that reading whole shards is no waste."""
    return 4 * len(positions) >= _in_shards(index, positions)


def is_mixed(index: Index, positions: np.ndarray) -> bool:
    """Whether, in each split, two images of a piece of a shard share their class hardly more often than any two images do.

    A window of shards that are sorted by class holds few of the classes, and what is learned from it would be forgotten in the next.
    Images without a label count as one more class; a split without any label counts as mixed, since nothing is known of it.
    """
    split_N = index.split[positions]
    return all(_is_mixed(index, positions[split_N == split]) for split in np.unique(split_N))


def _is_mixed(index: Index, positions: np.ndarray) -> bool:
    classes = len(index.classes) + 1
    labels = index.label[positions] + 1
    chance = _alike(np.bincount(labels, minlength=classes)[None])
    ends = np.append(_pieces(index.shard[positions]), len(positions))
    sampled = range(0, len(ends) - 1, -(-(len(ends) - 1) // SAMPLED_PIECES))
    counts = np.stack([np.bincount(labels[ends[piece] : ends[piece + 1]], minlength=classes) for piece in sampled])
    return _alike(counts) <= chance + TOO_ALIKE * (1 - chance)


def _alike(counts: np.ndarray) -> float:
    """Return the share of pairs within groups (rows) that are of one class (columns)."""
    pairs = (counts.sum(axis=1) * (counts.sum(axis=1) - 1)).sum()
    return float((counts * (counts - 1)).sum() / pairs) if pairs else 0.0


def _pieces(shard_N: np.ndarray) -> np.ndarray:
    """Return where pieces of shards begin, among images in rising order."""
    shard_starts = np.flatnonzero(np.diff(shard_N, prepend=-1))
    within = np.arange(len(shard_N)) - np.repeat(shard_starts, np.diff(shard_starts, append=len(shard_N)))
    return np.flatnonzero(within % PIECE == 0)


def _in_shards(index: Index, positions: np.ndarray) -> int:
    """Return how many images the shards of the images at ``positions`` hold."""
    images = np.array([shard["images"] for shard in index.shards])
    return int(images[needed(index, positions)].sum())


def needed(index: Index, positions: np.ndarray) -> np.ndarray:
    """Return which shards the images at ``positions`` are from: bool, one for each shard."""
    return np.bincount(index.shard[positions], minlength=len(index.shards)) > 0
