"""Random numbers for the views, as functions of (seed, view, purpose, step), so that resuming needs no generator state.

They are drawn on the CPU for the whole global batch and then cut to a slice's rows. So the augmentation of an image does not depend on the
number of ranks, on accumulation, or on which other augmentations are on. Only two things depend on the slice: the noise that erasing
fills in, which is drawn on the device, and the partners of mixup and cutmix, which belong to the same slice.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import torch

from vitssl.data.loading.batch import RawBatch


class StepRandom:
    """Random numbers of one view, for ``count`` copies of the rows that ``slices`` of global batches hold.

    Shapes: V copies of the view (``count``), B rows of all slices, one slice after the other.
    """

    def __init__(self, seed: int, view: str, count: int, *slices: RawBatch):
        self._key, self._count, self.slices = (seed, zlib.crc32(view.encode())), count, slices

    def _seeds(self, purpose: str, raw: RawBatch, *more: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([*self._key, raw.step, zlib.crc32(purpose.encode()), *more])

    def _generator(self, purpose: str, raw: RawBatch) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(self._seeds(purpose, raw)))

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a generator for a single slice, which is the same for every slice of a global batch."""
        (raw,) = self.slices
        return self._generator(purpose, raw)

    def device_generators(self, purpose: str, device: torch.device) -> list[torch.Generator]:
        """Return a generator for each slice, for noise that would be slow to draw on the CPU; it depends on the slice's first row."""
        words = [self._seeds(purpose, raw, raw.rows.start).generate_state(1, np.uint64)[0] for raw in self.slices]
        return [torch.Generator(device).manual_seed(int(word >> np.uint64(1))) for word in words]

    def slice_B(self) -> np.ndarray:
        """Return the index of the slice that each row belongs to, (V * B,), crop-major."""
        return np.tile(np.repeat(np.arange(len(self.slices)), [raw.rows.stop - raw.rows.start for raw in self.slices]), self._count)

    def _rows(self, purpose: str, draw: Callable[[np.random.Generator, int], np.ndarray]) -> np.ndarray:
        """Draw numbers (V, global B, ...) for each slice's global batch, and return the slices' rows of them, (V * B, ...)."""
        rows = np.concatenate([draw(self._generator(purpose, raw), raw.batch_size)[:, raw.rows] for raw in self.slices], axis=1)
        return rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])  # -1 would not do for shapes of no numbers

    def uniform(self, purpose: str, *shape: int) -> np.ndarray:
        """Draw uniform numbers in [0, 1), (V * B, *shape), crop-major."""
        return self._rows(purpose, lambda generator, batch_size: generator.random((self._count, batch_size, *shape)))

    def normal(self, purpose: str, *shape: int) -> np.ndarray:
        """Draw standard normal numbers, (V * B, *shape), crop-major."""
        return self._rows(purpose, lambda generator, batch_size: generator.standard_normal((self._count, batch_size, *shape)))

    def order(self, purpose: str, length: int) -> np.ndarray:
        """Draw a permutation for each row, (V * B, length), which is the same for all rows of a global batch."""
        return self._rows(purpose, lambda generator, B: np.broadcast_to(generator.permutation(length), (self._count, B, length)))
