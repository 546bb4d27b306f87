"""The layout of a batch's images in memory: padded to one size or, if most of that would be padding, one after the other.

If batches were always padded, a single panorama among thumbnails would make each of them as large as itself, and two panoramas, one wide
and one high, would make them much larger still.

Shapes: P bytes of all images of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

MOST_PADDED = 4  # a padded batch may take this many times the bytes of its images
ALWAYS_PADDED = 2**28  # bytes that a padded batch may take in any case


def shape_of(sizes_B2: np.ndarray) -> tuple[int, ...]:
    """Return the shape of a batch of images of ``sizes_B2``: (B, C, H, W) with the largest height and width, or flat (P,)."""
    images = 3 * int(sizes_B2.prod(axis=1).sum())
    shape = (len(sizes_B2), 3, *(int(side) for side in sizes_B2.max(axis=0)))
    return shape if math.prod(shape) <= max(MOST_PADDED * images, ALWAYS_PADDED) else (images,)


def offsets(sizes_N2: np.ndarray) -> np.ndarray:
    """Return where each image starts when all lie one after the other, and the total at the end, in bytes (N + 1,)."""
    return np.concatenate([[0], np.cumsum(3 * sizes_N2.prod(axis=1))])


def unbind_images(pixels: Any, sizes_B2: np.ndarray) -> Iterator[Any]:
    """Yield for each image the part (C, H, W) of ``pixels``, a batch as array or tensor, that holds it."""
    if pixels.ndim == 4:
        yield from (image_CHW[:, :height, :width] for image_CHW, (height, width) in zip(pixels, sizes_B2.tolist(), strict=True))
        return
    for start, (height, width) in zip(offsets(sizes_B2)[:-1].tolist(), sizes_B2.tolist(), strict=True):
        yield pixels[start : start + 3 * height * width].reshape(3, height, width)


def clear_padding(pixels: np.ndarray, sizes_B2: np.ndarray) -> None:
    """Set the padding of a batch to zero."""
    if pixels.ndim == 4:
        for image_CHW, (height, width) in zip(pixels, sizes_B2, strict=True):
            image_CHW[:, height:] = 0
            image_CHW[:, :height, width:] = 0
