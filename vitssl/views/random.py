"""Random numbers for the views: functions of (seed, view, purpose, step), so that resuming needs no generator state.

They are drawn on the CPU for the whole global batch and then cut to a slice's rows: what an image undergoes does not depend on the
number of ranks, on accumulation, or on which other augmentations are on. Two things do depend on the slice: the noise that erasing
fills in, drawn on the device, and the partners of mixup and cutmix, which are within the slice.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import torch

from vitssl.data.loading.batch import RawBatch


class StepRandom:
    """Random numbers of one view, for its ``count`` copies of the rows that slices of global batches hold.

    Shapes: B rows, of all slices one after the other.
    """

    def __init__(self, seed: int, view: str, count: int, *slices: RawBatch):
        self._key, self._count, self.slices = (seed, zlib.crc32(view.encode())), count, slices

    def _seeds(self, purpose: str, raw: RawBatch, *more: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([*self._key, raw.step, zlib.crc32(purpose.encode()), *more])

    def _generator(self, purpose: str, raw: RawBatch) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(self._seeds(purpose, raw)))

    def generator(self, purpose: str) -> np.random.Generator:
        """Of a single slice, and the same for every slice of a global batch."""
        (raw,) = self.slices
        return self._generator(purpose, raw)

    def device_generators(self, purpose: str, device: torch.device) -> list[torch.Generator]:
        """For each slice's noise that would be slow to draw on the CPU; it depends on the slice's first row."""
        words = [self._seeds(purpose, raw, raw.rows.start).generate_state(1, np.uint64)[0] for raw in self.slices]
        return [torch.Generator(device).manual_seed(int(word >> np.uint64(1))) for word in words]

    def slice_B(self) -> np.ndarray:
        """Which slice each row is of, (V * B,), crop-major."""
        return np.tile(np.repeat(np.arange(len(self.slices)), [raw.rows.stop - raw.rows.start for raw in self.slices]), self._count)

    def _rows(self, purpose: str, draw: Callable[[np.random.Generator, int], np.ndarray]) -> np.ndarray:
        """Of what is drawn, (V, global B, ...), the slices' rows, (V * B, ...)."""
        rows = [draw(self._generator(purpose, raw), raw.batch_size)[:, raw.rows] for raw in self.slices]
        return np.concatenate(rows, axis=1).reshape(-1, *rows[0].shape[2:])

    def uniform(self, purpose: str, *shape: int) -> np.ndarray:
        """(V * B, *shape) in [0, 1), crop-major."""
        return self._rows(purpose, lambda generator, batch_size: generator.random((self._count, batch_size, *shape)))

    def normal(self, purpose: str, *shape: int) -> np.ndarray:
        """(V * B, *shape), standard normal, crop-major."""
        return self._rows(purpose, lambda generator, batch_size: generator.standard_normal((self._count, batch_size, *shape)))

    def order(self, purpose: str, length: int) -> np.ndarray:
        """(V * B, length): for each row a permutation, the same for all of a global batch."""
        return self._rows(purpose, lambda generator, B: np.broadcast_to(generator.permutation(length), (self._count, B, length)))
