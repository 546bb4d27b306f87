"""Shards read ahead in large pieces, one after the other, before the images in them are asked for.

Disks and file systems on a network serve a few large requests in order many times faster than one for each image. What was read stays
in the page cache of the node, which is the memory that all decoding processes of all ranks share.
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
SLICES = 8  # of batches, each of one rank, by which reading is ahead
OPEN_SHARDS = 256  # per process; a usual limit is 1,024 open files


class _Shard:
    """An open shard, closed when it is garbage-collected."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)


@lru_cache(OPEN_SHARDS)
def _opened(path: str, sha256: str) -> _Shard:  # with another content it is another shard
    return _Shard(path)


def open_shard(index: Index, number: int) -> _Shard:
    """A shard, opened; of a process the last ones that were used stay open, for all loaders together."""
    shard = index.shards[number]
    return _opened(str(index.folder / shard["name"]), shard["sha256"])


class Ahead:
    """Reads the blocks of shards that images lie in, each once while images of it may come.

    Args:
        positions: of all images that may come, rising.
        window: of how many images of their shards those are that may come next.
    """

    def __init__(self, index: Index, positions: np.ndarray, window: int):
        shards = [shard for shard, wanted in zip(index.shards, needed(index, positions), strict=True) if wanted]
        per_image = sum(shard["bytes"] for shard in shards) / max(1, sum(shard["images"] for shard in shards))
        # each lane of the window begins and ends within a block; twice as many, so that none is forgotten early
        self._remembered = 2 * (int(window * per_image) // BLOCK + 2 * LANES)
        self.index = index

    def read(self, positions: Callable[[], Iterator[np.ndarray]]) -> Generator[np.ndarray, None, None]:
        """The same positions, each array given out when what it needs was read. A thread works ahead until the generator is closed."""
        with contextlib.closing(prefetch(self._reading(positions()), SLICES)) as ahead:
            yield from ahead

    def _reading(self, positions: Iterator[np.ndarray]) -> Generator[np.ndarray, None, None]:
        read_once = lru_cache(self._remembered)(partial(self._read, bytearray(BLOCK)))
        for chosen in positions:
            for shard, block in self._blocks(chosen):
                read_once(shard, block)
            yield chosen

    def _blocks(self, positions: np.ndarray) -> list[tuple[int, int]]:
        """(number of the shard, number of the block of BLOCK bytes) of all blocks in which images at ``positions`` begin or end."""
        start, shard = self.index.offset[positions], self.index.shard[positions]
        ends = (start // BLOCK, (start + self.index.size[positions] - 1) // BLOCK)
        return sorted({pair for end in ends for pair in zip(shard.tolist(), end.tolist(), strict=True)})

    def _read(self, buffer: bytearray, shard: int, block: int) -> None:
        with contextlib.suppress(OSError):  # decoding asks for the same bytes, and says which image it is that cannot be read
            os.preadv(open_shard(self.index, shard).descriptor, [buffer], block * BLOCK)
