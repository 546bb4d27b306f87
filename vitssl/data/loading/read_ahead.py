"""Shards read ahead in large pieces, one after the other, before their images are asked for.

Disks and network file systems serve a few large requests in order many times faster than one request for each image. What was read stays
in the page cache of the node, which the decoding processes of all ranks share.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Generator, Iterator
from functools import lru_cache, partial

import numpy as np

from vitssl.data.index import Index
from vitssl.data.loading.order import LANES, needed
from vitssl.data.loading.prefetch import prefetch

BLOCK = 4 << 20  # bytes of one request
SLICES = 8  # slices of batches (each of one rank) that reading is ahead by
OPEN_SHARDS = 256  # per process; the usual limit is 1,024 open files


class _Shard:
    """An open shard, closed when it is garbage-collected."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)


@lru_cache(OPEN_SHARDS)
def _opened(path: str, sha256: str) -> _Shard:  # the sha256 tells shards of one path apart
    return _Shard(path)


def open_shard(index: Index, number: int) -> _Shard:
    """Return a shard, opened. The shards that a process used last stay open, for all its loaders together."""
    shard = index.shards[number]
    return _opened(str(index.folder / shard["name"]), shard["sha256"])


class Ahead:
    """A reader of the blocks of shards that images lie in, which reads each block once while images of it may still come.

    Args:
        positions: of the images that come nearly in the order of their shards, rising; others, which come between them, are not read ahead.
        window: the next image may be any of this many images, in the order of their shards.
    """

    def __init__(self, index: Index, positions: np.ndarray, window: int):
        shards = [shard for shard, is_needed in zip(index.shards, needed(index, positions), strict=True) if is_needed]
        per_image = sum(shard["bytes"] for shard in shards) / max(1, sum(shard["images"] for shard in shards))
        # each lane of the window begins and ends within a block; doubled, so that no block is forgotten early
        self._remembered = 2 * (int(window * per_image) // BLOCK + 2 * LANES)
        self.index, self._is_ahead = index, np.zeros(len(index), dtype=bool)
        self._is_ahead[positions] = True

    def read(self, positions: Callable[[], Iterator[np.ndarray]]) -> Generator[np.ndarray, None, None]:
        """Yield the arrays of ``positions``, each once its blocks have been read. A thread works ahead until the generator is closed."""
        with contextlib.closing(prefetch(self._reading(positions()), SLICES)) as ahead:
            yield from ahead

    def _reading(self, positions: Iterator[np.ndarray]) -> Generator[np.ndarray, None, None]:
        read_once = lru_cache(self._remembered)(partial(self._read, bytearray(BLOCK)))
        for chosen in positions:
            for shard, block in self._blocks(chosen):
                read_once(shard, block)
            yield chosen

    def _blocks(self, positions: np.ndarray) -> list[tuple[int, int]]:
        """Return (number of the shard, number of the block of BLOCK bytes) of all blocks in which images at ``positions`` begin or end."""
        positions = positions[self._is_ahead[positions]]
        start, shard = self.index.offset[positions], self.index.shard[positions]
        ends = (start // BLOCK, (start + self.index.size[positions] - 1) // BLOCK)
        return sorted({pair for end in ends for pair in zip(shard.tolist(), end.tolist(), strict=True)})

    def _read(self, buffer: bytearray, shard: int, block: int) -> None:
        with contextlib.suppress(OSError):  # decoding reads the same bytes, and names the image that cannot be read
            opened = open_shard(self.index, shard)  # kept: of two threads that open one shard at once, the cache keeps only one's
            os.preadv(opened.descriptor, [buffer], block * BLOCK)
