"""Crops: which part of each image a view shows, as in torchvision's RandomResizedCrop, RandomCrop, Resize and CenterCrop."""

from __future__ import annotations

import numpy as np

from vitssl.config import View
from vitssl.views.random import StepRandom
from vitssl.views.resample import Window


def random_resized(view: View, random: StepRandom, sizes_B2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw upper left corners and sizes (height, width) of crops, int (B, 2) each, as torchvision's RandomResizedCrop does.

    There are ten attempts at an area (uniform) and an aspect ratio (log-uniform). If none fits, the crop is the largest centred one
    within the ratios.
    """
    unit_B10_2 = random.uniform("crop/shape", 10, 2)
    area_B10 = np.prod(sizes_B2, axis=1)[:, None] * (view.scale[0] + (view.scale[1] - view.scale[0]) * unit_B10_2[..., 0])
    low, high = np.log(view.ratio)
    ratio_B10 = np.exp(low + (high - low) * unit_B10_2[..., 1])
    crop_B10_2 = np.rint(np.stack([np.sqrt(area_B10 / ratio_B10), np.sqrt(area_B10 * ratio_B10)], axis=-1)).astype(int)
    fits_B10 = ((crop_B10_2 > 0) & (crop_B10_2 <= sizes_B2[:, None])).all(-1)
    first_B = fits_B10.argmax(1)
    fits_B1 = fits_B10.any(1)[:, None]
    height_B, width_B = sizes_B2.T
    widest_B, tallest_B = np.rint(height_B * view.ratio[1]), np.rint(width_B / view.ratio[0])
    central_B2 = np.stack([np.minimum(height_B, tallest_B), np.minimum(width_B, widest_B)], axis=1).clip(1).astype(int)
    crop_B2 = np.where(fits_B1, crop_B10_2[np.arange(len(first_B)), first_B], central_B2)
    corner_B2 = np.floor(random.uniform("crop/place", 2) * (sizes_B2 - crop_B2 + 1)).astype(int)
    return np.where(fits_B1, corner_B2, (sizes_B2 - crop_B2) // 2), crop_B2


def crop_windows(view: View, out_px: int, random: StepRandom, sizes_B2: np.ndarray) -> tuple[Window, Window]:
    """Return the windows of rows and columns for ``view.crop``, including the flip."""
    nothing_B2 = np.zeros_like(sizes_B2)
    corner_B2, crop_B2, resized_B2, offset_B2 = nothing_B2, sizes_B2, np.full_like(sizes_B2, out_px), nothing_B2
    if view.crop == "random_resized":
        corner_B2, crop_B2 = random_resized(view, random, sizes_B2)
    elif view.crop == "pad":
        resized_B2 = short_side(sizes_B2, out_px)
        offset_B2 = np.floor(random.uniform("crop/place", 2) * (resized_B2 - out_px + 2 * view.pad_px + 1)).astype(int) - view.pad_px
    flip_B2 = np.stack([nothing_B2[:, 0], random.uniform("flip") < view.hflip], axis=1)
    return _windows(corner_B2, crop_B2, resized_B2, offset_B2, flip_B2)


def _windows(*fields_B2: np.ndarray) -> tuple[Window, Window]:
    rows, columns = (Window(*(values[:, axis] for values in fields_B2)) for axis in (0, 1))
    return rows, columns


def short_side(sizes_B2: np.ndarray, px: int) -> np.ndarray:
    """Return the sizes after torchvision's Resize of the short side to ``px``; the long side is rounded down to whole pixels."""
    return px * sizes_B2 // sizes_B2.min(axis=1, keepdims=True)


def centre_windows(out_px: int, crop_share: float, sizes_B2: np.ndarray) -> tuple[Window, Window]:
    """Return the windows of torchvision's Resize and CenterCrop, with their rounding.

    The short side is resized to ``out_px / crop_share``, then the centre is cut out.
    """
    resized_B2 = short_side(sizes_B2, int(out_px / crop_share))
    offset_B2 = np.rint((resized_B2 - out_px) / 2).astype(int)
    nothing_B2 = np.zeros_like(sizes_B2)
    return _windows(nothing_B2, sizes_B2, resized_B2, offset_B2, nothing_B2)
