"""A data set of any size through index, split, order and reading ahead: `python -m tests.data.scale [IMAGES] [NODES]`.

No image is there: the shards are empty files of the right length, of which what is read is counted. It prints times, the peak of memory,
and what a node asks a file system for.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vitssl.config import Data
from vitssl.data.index import COLUMNS, Index, load_index, write_index
from vitssl.data.loading import read_ahead
from vitssl.data.loading.order import Order, Windows, windows
from vitssl.data.loading.subset import train_and_heldout

PER_SHARD, CLASSES, BYTES = 1000, 1000, 110_000  # of an image of ImageNet
GPUS, PER_SECOND = 8, 3000  # of a node, and images of each
BATCH = 4096


def timed(what: str, work: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    result = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{what:44}{time.perf_counter() - started:8.2f} s   peak {peak:.2f} GB", flush=True)
    return result


def write(folder: Path, images: int) -> None:
    """Shards of mixed classes, each image of the same size, without any bytes on the disk."""
    shards = []
    for number, start in enumerate(range(0, images + 1000, PER_SHARD)):
        count = min(PER_SHARD, images + 1000 - start)
        name = f"{number:06d}.tar"
        with open(folder / name, "wb") as stream:
            os.truncate(stream.fileno(), count * BYTES)
        split = "train" if start + count <= images else "test"
        shards.append({"name": name, "split": split, "images": count, "bytes": count * BYTES, "sha256": "0" * 64})
    total = sum(shard["images"] for shard in shards)
    place = np.concatenate([np.arange(shard["images"]) for shard in shards])
    label = np.random.default_rng(0).integers(0, CLASSES, total)
    columns = [place * BYTES, np.full(total, BYTES - 1024), label, *np.full((2, total), 375), np.zeros(total, np.int64)]
    classes = [f"{k:04d}" for k in range(CLASSES)]
    facts = {"mean": [0.5] * 3, "std": [0.2] * 3, "shards": shards}
    write_index(Index(folder, "made up", "", "0" * 64, classes, **facts, **dict(zip(COLUMNS, columns, strict=True))))


class Counted(read_ahead.Ahead):
    """Reads nothing, and counts what it would have read."""

    requests = 0

    def _read(self, *_: Any) -> None:
        self.requests += 1


def epoch_of_a_node(index: Index, order: Order, nodes: int) -> tuple[Counted, int, np.ndarray]:
    """What the first node reads in the second epoch, of that for its first batch, and the images that it takes."""
    reading, taken = Counted(index, order.positions, order.windows.size if order.windows else 0), []
    first, steps = -(-len(order.positions) // BATCH), len(order.positions) // BATCH
    batches = (order.slice(step * BATCH, (step + 1) * BATCH)[: BATCH // nodes] for step in range(first, first + steps))
    at_first = 0
    for chosen in reading._reading(batches):
        at_first = at_first or reading.requests
        taken.append(chosen)
    return reading, at_first, np.concatenate(taken)


def main(images: int, nodes: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        writing = multiprocessing.get_context("fork").Process(target=write, args=(folder, images))  # whose memory does not count
        writing.start()
        writing.join()
        print(f"{images:,} images")
        index = timed("index read, lengths of all shards checked", lambda: load_index(folder))
        data = Data(shards=place)
        split = timed("split", lambda: train_and_heldout(index, data, need_labels=True))
        around = timed("are the shards mixed?", lambda: windows(index, split.train, data.shuffle_window, BATCH))
        assert isinstance(around, Windows)
        order = Order(split.train, 0, windows=around)
        timed("order of an epoch", lambda: order.epoch(0))
        timed("order of the next", lambda: order.epoch(1))
        reading, at_first, taken = timed(f"the second epoch of one of {nodes} nodes", lambda: epoch_of_a_node(index, order, nodes))
        shards, rate, needed = len(np.unique(index.shard[taken])), GPUS * PER_SECOND, len(taken) * BYTES
        print(f"it takes {len(taken):,} images from {shards:,} of {len(index.shards):,} shards")
        print(
            f"{reading.requests:,} requests of {read_ahead.BLOCK >> 20} MiB,"
            f" {reading.requests * read_ahead.BLOCK / needed:.2f} of the images' bytes"
        )
        print(f"at {rate:,} images/s {reading.requests / len(taken) * rate:,.0f} requests/s; image by image {rate:,}")
        print(f"before the first batch {at_first:,} requests, {at_first * read_ahead.BLOCK / 1e9:.1f} GB")


if __name__ == "__main__":
    main(*(int(given) for given in (*sys.argv[1:], *("1281167", "4")[len(sys.argv) - 1 :])))
