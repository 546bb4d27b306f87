"""Near-duplicates across splits (images that were saved again, resized or cropped by a little), and equal images within a split.

A signature holds the low frequencies of an image of any size: 8 x 8 of its brightness and 4 x 4 of each of two colour differences, without
the mean. They are weighted by the root of the frequency, so that a horizon under a sky does not outweigh what stands on it, and
normalised. The likeness of two images is the dot product of their signatures; a copy has 0.9 to 1.

How alike different images are depends on the set: two photographs of birds have 0.5, two trousers of Fashion-MNIST 0.95. So the distance
(1 - likeness) of an image to others that are not its copies is taken from the set itself: from its 20th nearest of 2,000 images. The
distance of a copy must be at most a quarter of the square of that distance: if other images are near, only what is all but equal counts.

Shapes: N images, S side of a thumbnail, D numbers of a signature, M images of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.fft import dctn

SIDE = 16  # pixels of each side of the image that a signature is made from
BRIGHTNESS, COLOURS = 8, 4  # frequencies kept in each direction
LEAST = 0.9  # least likeness of a near-duplicate, whatever the set
EXACT = 1e-4  # what rounding takes from a likeness of 1: an equal image is a near-duplicate in any set
SAMPLE, NEAREST = 2000, 20
LEARNED = {"train", "unlabeled"}  # splits that are trained on together
BLOCK = 1000, 8000  # images of a split, and of the other one, that are compared at once


class NearDuplicate(NamedTuple):
    """An image of a split, and the image of another split that it is most like; positions are within their splits."""

    split: str
    position: int
    of_split: str
    of_position: int
    likeness: float


def thumbnail(pixels: np.ndarray) -> np.ndarray:
    """Shrink, or enlarge, RGB pixels (H, W, 3) uint8 to (S, S, 3)."""
    return np.asarray(Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=3.0))


def signatures(thumbnails: list[np.ndarray]) -> np.ndarray:
    """Return the signatures (N, D) float32 of thumbnails; zeros for an image of one colour."""
    red, green, blue = np.array(thumbnails, dtype=np.float32).reshape(-1, SIDE, SIDE, 3).transpose(3, 0, 1, 2)
    brightness = 0.299 * red + 0.587 * green + 0.114 * blue
    parts = [_waves(brightness, BRIGHTNESS), _waves(red - brightness, COLOURS), _waves(blue - brightness, COLOURS)]
    joined = np.concatenate(parts, axis=1)
    length = np.linalg.norm(joined, axis=1, keepdims=True)
    return np.where(length > 1e-3, joined / np.maximum(length, 1e-3), 0)


def _waves(values: np.ndarray, count: int) -> np.ndarray:
    """Return the lowest frequencies of images (N, S, S), weighted: (N, count * count)."""
    frequency = np.arange(count)
    weights = np.hypot(frequency[:, None], frequency[None]) ** 0.5
    return (dctn(values, axes=(1, 2), norm="ortho")[:, :count, :count] * weights.astype(np.float32)).reshape(len(values), count**2)


def pairs_of(splits: list[str]) -> list[tuple[str, str]]:
    """Return the pairs of splits to compare, held-out ones first: all but train and unlabeled, which are trained on together."""
    ordered = sorted(splits, key=lambda split: split not in LEARNED)
    return [(held_out, other) for other, held_out in combinations(ordered, 2) if {other, held_out} != LEARNED]


def find(by_split: dict[str, np.ndarray], advance: Callable[[int], None] = lambda count: None) -> Iterator[NearDuplicate]:
    """Yield the near-duplicates across splits: for every image the one in each other split that it is most like, if they are alike enough.

    Args:
        by_split: the signatures (N, D) of each split's images.
        advance: called with the number of images that were compared since the last call.
    """
    for split, of_split in pairs_of(list(by_split)):
        others = by_split[of_split]
        sample = others[np.unique(np.linspace(0, len(others) - 1, min(SAMPLE, len(others))).astype(int))]
        for start in range(0, len(by_split[split]), BLOCK[0]):
            images = by_split[split][start : start + BLOCK[0]]
            nearest, likeness = _nearest(images, others)
            for i in np.flatnonzero(likeness >= _threshold(images @ sample.T)):
                yield NearDuplicate(split, start + int(i), of_split, int(nearest[i]), round(float(likeness[i]), 4))
            advance(len(images))


def equal(signatures_ND: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (position, position of the first equal image) of each image that equals an earlier one; images of one colour are left out."""
    first_positions: dict[bytes, int] = {}
    for position, signature in enumerate(np.round(signatures_ND, 3) + 0.0):  # makes 0.0 of -0.0, which has other bytes
        earlier = first_positions.setdefault(signature.tobytes(), position)
        if earlier != position and signature.any():
            yield position, earlier


def _nearest(images: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the position and the likeness of the image among ``others`` that each of ``images`` (B, D) is most like."""
    nearest, likeness = np.zeros(len(images), dtype=np.int64), np.full(len(images), -1, dtype=np.float32)
    for start in range(0, len(others), BLOCK[1]):
        products = images @ others[start : start + BLOCK[1]].T
        best = products.argmax(axis=1)
        value = products[np.arange(len(images)), best]
        nearest = np.where(value > likeness, start + best, nearest)
        likeness = np.maximum(likeness, value)
    return nearest, likeness


def _threshold(products: np.ndarray) -> np.ndarray:
    """Return the least likeness (B,) of a near-duplicate, given the likeness (B, M) of images to a sample of the other split."""
    rank = min(NEAREST, (products.shape[1] + 1) // 2)
    likeness_of_others = np.partition(products, -rank, axis=1)[:, -rank]
    return 1 - np.clip((1 - likeness_of_others) ** 2 / 4, EXACT, 1 - LEAST)
