"""Which image comes when: a stream that depends on the seed, the data and the size of a global batch, not on ranks or workers.

Small sets are permuted as a whole in each epoch. Where images are many, that would make every image of a streamed epoch a read at random,
so there the shards are permuted, and images move within a window of them (`data.shuffle_window`). The stream is dealt out
in lanes: a row of the global batch always takes from the same lane, and so a rank, whose rows are neighbours, reads shards of its own.

Shapes: N training images, S shards.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from vitssl.data.index import Index

LANES = 64  # at most; with more ranks than that two may read the same shard


class Order:
    """The endless stream of training images: one permutation of them for each epoch, which depends on (seed, epoch) alone.

    With ``repeats`` = r (repeated augmentation) an epoch takes the first ceil(N / r) images of its permutation, r adjacent
    copies of each, cut to N.

    Args:
        positions: of the images in their index, rising.
        windows: how images that are read in the order of their shards are permuted; None permutes them as a whole.
    """

    def __init__(self, positions: np.ndarray, seed: int, repeats: int = 1, windows: Windows | None = None):
        self.positions, self.seed, self.repeats, self.windows = positions, seed, repeats, windows
        self.epoch = lru_cache(maxsize=4)(self._epoch)

    def _epoch(self, epoch: int) -> np.ndarray:
        count = len(self.positions)
        base = -(-count // self.repeats)
        rng = np.random.default_rng([self.seed, epoch, *b"order"])
        if self.windows is None:
            order = rng.permutation(count)[:base]
        else:
            rows = epoch * count + self.repeats * np.arange(base)
            order = self.windows.dealt(self.windows.shuffled(rng)[:base], rows)
        return self.positions[np.repeat(order, self.repeats)[:count]]

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Entries ``start`` to ``stop`` of the stream."""
        count = len(self.positions)
        epochs = range(start // count, -(-stop // count))
        parts = [self.epoch(e)[max(start - e * count, 0) : stop - e * count] for e in epochs]
        return np.concatenate(parts)


class Windows:
    """Permutations of images that lie in shards, by which the shards are read nearly from beginning to end.

    Args:
        shard_N: rising number of each image's shard.
        size: of how many images those are that take turns, over all lanes.
        batch_size: of the global batches that the stream is cut into.
    """

    def __init__(self, shard_N: np.ndarray, size: int, batch_size: int):
        self.size, self.batch_size, self.lanes = size, batch_size, min(LANES, batch_size)
        self._first_S = np.flatnonzero(np.diff(shard_N, prepend=-1))
        self._count_S = np.diff(self._first_S, append=len(shard_N))

    def shuffled(self, rng: np.random.Generator) -> np.ndarray:
        """The images (N,) with their shards in another order, each moved within the part of the window that a lane has."""
        shards_S = rng.permutation(len(self._first_S))
        count_S = self._count_S[shards_S]
        shift_S = self._first_S[shards_S] - (np.cumsum(count_S) - count_S)
        place_N = np.arange(count_S.sum())
        by_shard_N = place_N + np.repeat(shift_S, count_S)
        return by_shard_N[np.argsort(place_N + rng.random(len(place_N)) * (self.size / self.lanes))]

    def dealt(self, order: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The images cut into lanes one after the other, and each lane laid out at its ``rows`` of the stream."""
        lane = (rows % self.batch_size * self.lanes // self.batch_size).astype(np.uint8)
        dealt = np.empty_like(order)
        dealt[np.argsort(lane, kind="stable")] = order
        return dealt


def windows(index: Index, positions: np.ndarray, size: int, batch_size: int) -> Windows | None:
    """How images at rising positions are permuted within windows of ``size``.

    None, by which they are permuted as a whole, where all fit into one window, are sorted by class, or are few of those in their shards.
    """
    if len(positions) <= size or not mixed(index.label[positions]) or not dense(index, positions):
        return None
    return Windows(index.shard[positions], size, batch_size)


def mixed(labels: np.ndarray) -> bool:
    """Whether neighbours in the shards share their class hardly more often than any two images do; unlabelled ones do not count.

    A window of shards that are sorted by class holds few of the classes, and what is learned from it would be forgotten in the next.
    """
    labels = labels[labels >= 0]
    if len(labels) < 2:
        return True
    chance = ((np.bincount(labels) / len(labels)) ** 2).sum()
    return (labels[1:] == labels[:-1]).mean() <= chance + 0.1 * (1 - chance)


def dense(index: Index, positions: np.ndarray) -> bool:
    """Whether these are so many of the images in their shards, a quarter, that reading the shards is no waste."""
    shards = np.bincount(index.shard[positions], minlength=len(index.shards)) > 0
    return 4 * len(positions) >= sum(shard["images"] for shard, needed in zip(index.shards, shards, strict=True) if needed)
