"""Random numbers for the views: functions of (seed, view, purpose, step), so that resuming needs no generator state.

They are drawn on the CPU for the whole global batch and then cut to a slice's rows: what an image undergoes does not depend on the
number of ranks, on accumulation, or on which other augmentations are on. Two things do depend on the slice: the noise that erasing
fills in, drawn on the device, and the partners of mixup and cutmix, which are within the slice.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch

from vitssl.data.batch import RawBatch


class StepRandom:
    """Random numbers of one view and step, for the copies and rows that a slice of the global batch holds."""

    def __init__(self, seed: int, view: str, count: int, raw: RawBatch):
        self._key, self._count, self._raw = (seed, zlib.crc32(view.encode()), raw.step), count, raw

    def generator(self, purpose: str) -> np.random.Generator:
        """The same for every slice of a global batch."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([*self._key, zlib.crc32(purpose.encode())])))

    def _rows(self, values: np.ndarray) -> np.ndarray:
        return values[:, self._raw.rows].reshape(-1, *values.shape[2:])

    def device_generator(self, purpose: str, device: torch.device) -> torch.Generator:
        """For noise that would be slow to draw on the CPU; it depends on the slice's first row."""
        words = np.random.SeedSequence([*self._key, zlib.crc32(purpose.encode()), self._raw.rows.start]).generate_state(1, np.uint64)
        return torch.Generator(device).manual_seed(int(words[0] >> np.uint64(1)))

    def uniform(self, purpose: str, *shape: int) -> np.ndarray:
        """(V * B, *shape) in [0, 1), crop-major."""
        return self._rows(self.generator(purpose).random((self._count, self._raw.batch_size, *shape)))

    def normal(self, purpose: str, *shape: int) -> np.ndarray:
        """(V * B, *shape), standard normal, crop-major."""
        return self._rows(self.generator(purpose).standard_normal((self._count, self._raw.batch_size, *shape)))
