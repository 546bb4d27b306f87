"""From shards to batches: which image comes when, in which slice of which global batch.

The stream of images (`order`) is one seeded permutation per epoch after the other. It is cut into global batches of equal size, which may
straddle epochs. Ranks and accumulation only cut each global batch into contiguous slices. So a run resumes at any step without stored
state.

Shapes: N training images.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from vitssl.config import ConfigError, Data
from vitssl.data.index import Index
from vitssl.data.loading.batch import RawBatch
from vitssl.data.loading.images import HostBatches, Images, open_images, pinned, resolved
from vitssl.data.loading.order import is_dense, training_order
from vitssl.data.loading.prefetch import prefetch
from vitssl.data.loading.subset import SplitPositions
from vitssl.data.pixels.decode import resized_sizes

PREFETCH = 4  # slices that are read ahead


@dataclass(frozen=True)
class _Slice:
    """The part of a global batch that one forward pass of one rank takes."""

    step: int
    rows: slice
    positions: np.ndarray
    labelled: float


class TrainLoader:
    """Training batches of one rank, for any range of steps.

    Args:
        split: its ``train`` positions are the data set, and its ``labels`` go into the batches.
        labelled_rows: as of `training_order`.
        batch_size: images of a global batch, over all ranks and accumulated slices.
        accumulate: slices of one rank per optimiser step.

    Raises:
        ConfigError: the global batch does not divide evenly.
    """

    def __init__(
        self,
        index: Index,
        split: SplitPositions,
        data: Data,
        *,
        seed: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
        device: torch.device | str = "cpu",
        labelled_rows: int | None = None,
    ):
        if batch_size % (world_size * accumulate):
            parts = f"{world_size} GPUs x {accumulate} accumulated slices"
            raise ConfigError(f"{batch_size} is not a multiple of {world_size * accumulate} ({parts})", "optim.batch_size")
        self.labels = split.labels
        self.order = training_order(index, split.train, self.labels, data, seed=seed, batch_size=batch_size, labelled_rows=labelled_rows)
        self.batch_size, self.rank, self.world_size, self.accumulate = batch_size, rank, world_size, accumulate
        self.device = resolved(device)
        self.slice_size = batch_size // (world_size * accumulate)
        self.largest_px = int(resized_sizes(index.sizes_N2[split.train], data.cache_px).prod(axis=1).max())
        self.images = open_images(index, split.train, data, self.device, self.order.window, self.slice_size, self.order.windowed)

    @property
    def num_samples(self) -> int:
        """The number of images in one epoch."""
        return self.order.num_images

    @property
    def steps_per_epoch(self) -> float:
        return self.num_samples / self.batch_size

    def batches(self, start_step: int, stop_step: int) -> Generator[list[RawBatch], None, None]:
        """Yield the rank's slices of the global batch, for each step from ``start_step`` up to, but not including, ``stop_step``.

        A thread (and, when streaming, processes) reads ahead until the generator ends, is closed or garbage-collected.

        Raises:
            ConfigError: a shard cannot be read; the message names it.
        """
        slices = _batches(self.images, lambda: self._slices(start_step, stop_step), self.labels, self.batch_size, self.device)
        with contextlib.closing(slices):
            for _ in range(start_step, stop_step):
                yield list(islice(slices, self.accumulate))

    def _slices(self, start_step: int, stop_step: int) -> Iterator[_Slice]:
        count, size = self.world_size * self.accumulate, self.slice_size
        for step in range(start_step, stop_step):
            batch = self.order.slice(step * self.batch_size, (step + 1) * self.batch_size)
            labelled = int((self.labels[batch] >= 0).sum()) / count
            for part in range(self.rank * self.accumulate, (self.rank + 1) * self.accumulate):
                rows = slice(part * size, (part + 1) * size)
                yield _Slice(step, rows, batch[rows], labelled)


class EvalLoader:
    """Batches of every image at ``positions`` once. Rank r takes ``positions[r::world_size]``; the last batch may be short."""

    def __init__(
        self,
        index: Index,
        positions: np.ndarray,
        labels: np.ndarray,
        data: Data,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
    ):
        self.positions = positions[rank::world_size]
        self.labels, self.batch_size, self.device = labels, batch_size, resolved(device)
        # images come in the order of the shards; whether reading ahead is no waste depends on what all ranks together need
        window = 0 if is_dense(index, positions) else None
        self.images = open_images(index, self.positions, data, self.device, window, batch_size)

    def __len__(self) -> int:
        return -(-len(self.positions) // self.batch_size)

    def __iter__(self) -> Iterator[RawBatch]:
        return _batches(self.images, self._slices, self.labels, None, self.device)

    def _slices(self) -> Iterator[_Slice]:
        for step in range(len(self)):
            chosen = self.positions[step * self.batch_size : (step + 1) * self.batch_size]
            yield _Slice(step, slice(0, len(chosen)), chosen, float((self.labels[chosen] >= 0).sum()))


def _batches(
    images: Images, slices: Callable[[], Iterator[_Slice]], labels: np.ndarray, batch_size: int | None, device: torch.device
) -> Generator[RawBatch, None, None]:
    """Yield the RawBatch of each slice, read ahead by a background thread that ends with this generator."""
    # The slices are generated twice: images may be decoded well ahead of the batch that they become part of.
    pixels = images.host_batches(lambda: (part.positions for part in slices()))
    with contextlib.closing(prefetch(_with_labels(slices(), pixels, labels, device), PREFETCH)) as stream:
        for part, host, sizes_B2, labels_B, index_B in stream:
            yield RawBatch(
                pixels=images.to_device(host),
                sizes_B2=sizes_B2,
                labels_B=labels_B.to(device, non_blocking=True),
                index_B=index_B.to(device, non_blocking=True),
                step=part.step,
                rows=part.rows,
                batch_size=batch_size or len(part.positions),
                labelled=part.labelled,
            )


def _with_labels(slices: Iterator[_Slice], pixels: HostBatches, labels: np.ndarray, device: torch.device) -> Generator[tuple, None, None]:
    """Yield each slice with its pixels and sizes, labels and positions."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # a new thread starts on GPU 0, whose memory pinning would then take
    with contextlib.closing(pixels):
        for part, (host, sizes_B2) in zip(slices, pixels, strict=True):
            labels_B, index_B = torch.from_numpy(labels[part.positions]), torch.from_numpy(part.positions)
            yield part, host, sizes_B2, pinned(labels_B, device), pinned(index_B, device)
