"""How the images of a batch lie in memory: padded to one size or, where little of that would be image, one after the other.

A single panorama among thumbnails would otherwise make each of them as large as itself, and two, one wide and one high, much larger.

Shapes: P bytes of all images of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

MOST_PADDED = 4  # times the bytes of the images themselves that a padded batch may take
ALWAYS_PADDED = 2**28  # bytes that it may take in any case


def shape_of(sizes_B2: np.ndarray) -> tuple[int, ...]:
    """Of a batch of images of these sizes: (B, C, H, W) of the largest height and width, or (P,)."""
    images = 3 * int(sizes_B2.prod(axis=1).sum())
    shape = (len(sizes_B2), 3, *(int(side) for side in sizes_B2.max(axis=0)))
    return shape if math.prod(shape) <= max(MOST_PADDED * images, ALWAYS_PADDED) else (images,)


def offsets(sizes_N2: np.ndarray) -> np.ndarray:
    """Where each image starts that lies behind the others, and at the end the total, in bytes (N + 1,)."""
    return np.concatenate([[0], np.cumsum(3 * sizes_N2.prod(axis=1))])


def places(pixels: Any, sizes_B2: np.ndarray) -> Iterator[Any]:
    """The part (C, H, W) of a batch, an array or a tensor, in which each image lies."""
    if pixels.ndim == 4:
        yield from (image_CHW[:, :height, :width] for image_CHW, (height, width) in zip(pixels, sizes_B2.tolist(), strict=True))
        return
    for start, (height, width) in zip(offsets(sizes_B2)[:-1].tolist(), sizes_B2.tolist(), strict=True):
        yield pixels[start : start + 3 * height * width].reshape(3, height, width)


def clear_padding(pixels: np.ndarray, sizes_B2: np.ndarray) -> None:
    """Make zero what is no image."""
    if pixels.ndim == 4:
        for image_CHW, (height, width) in zip(pixels, sizes_B2, strict=True):
            image_CHW[:, height:] = 0
            image_CHW[:, :height, width:] = 0
