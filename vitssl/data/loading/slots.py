"""Memory that worker processes write batches into and this process reads. Through a pipe, pixels are pickled, written and read once more.

The memory is anonymous and reaches the workers by the fork, so that it needs no /dev/shm, of which containers have 64 MB. Its pages take up
memory once something is written to them, so that a slot takes as much as the largest batch that it has held.
"""

from __future__ import annotations

import math
import mmap

import numpy as np

from vitssl.config import ConfigError
from vitssl.data.pixels.layout import ALWAYS_PADDED, MOST_PADDED


def open_slots(sizes_N2: np.ndarray, batch_size: int, count: int) -> list[np.ndarray]:
    """Return ``count`` slots, each for a batch of images of ``sizes_N2``. A batch that is larger than nearly all others does not fit in.

    Raises:
        ConfigError: the system does not give that much address space.
    """
    images, side = 3 * float(sizes_N2.prod(axis=1, dtype=np.int64).mean()), sizes_N2.max(axis=0).tolist()
    size = min(max(ALWAYS_PADDED, int(MOST_PADDED * batch_size * images)), 3 * batch_size * math.prod(side))
    try:
        return [np.frombuffer(mmap.mmap(-1, size), np.uint8) for _ in range(count)]
    except OSError as error:
        reason = f"no room for {count} batches of up to {size / 1e9:.2g} GB that workers decode ahead ({error.strerror})"
        raise ConfigError(f"{reason}; set it lower, or a smaller data.cache_px", "data.workers") from None
