"""Random erasing of normalised images, as in timm.

Shapes: N boxes, each in a different image.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitssl.config import View
from vitssl.views.random import StepRandom
from vitssl.views.resample import to_device

ERASED_RATIO = (0.3, 1 / 0.3)  # height / width


class Boxes(NamedTuple):
    """Boxes to erase, as integers; rows and columns in pixels."""

    image_N: np.ndarray  # index of the image
    corner_N2: np.ndarray  # upper left corner
    size_N2: np.ndarray  # height, width

    def take(self, which: np.ndarray) -> Boxes:
        return Boxes(*(values[which] for values in self))


def erased_boxes(view: View, random: StepRandom, side: int) -> Boxes:
    """Draw a box for each image to erase: the first of ten attempts (area uniform, ratio log-uniform) that fits into the image."""
    unit_B10_2, place_B2 = random.uniform("erasing/shape", 10, 2), random.uniform("erasing/place", 2)
    area_B10 = side**2 * np.interp(unit_B10_2[..., 0], (0, 1), view.erasing_scale)
    ratio_B10 = np.exp(np.interp(unit_B10_2[..., 1], (0, 1), np.log(ERASED_RATIO)))
    box_B10_2 = np.rint(np.stack([np.sqrt(area_B10 * ratio_B10), np.sqrt(area_B10 / ratio_B10)], axis=-1)).astype(int)
    fits_B10 = (box_B10_2 < side).all(-1)
    image_N = np.flatnonzero((random.uniform("erasing") < view.erasing_prob) & fits_B10.any(1))
    size_N2 = box_B10_2[image_N, fits_B10[image_N].argmax(1)]
    return Boxes(image_N, (place_B2[image_N] * (side - size_N2 + 1)).astype(int), size_N2)


def erase(images_BCSS: Tensor, view: View, random: StepRandom) -> None:
    """Fill random boxes in place with standard normal noise (timm's mode ``pixel``) or with zero, the mean colour (``const``)."""
    boxes = erased_boxes(view, random, images_BCSS.shape[-1])
    slice_N = random.slice_B()[boxes.image_N]
    boxes, counts = boxes.take(np.argsort(slice_N, kind="stable")), np.bincount(slice_N, minlength=len(random.slices)).tolist()
    if len(slice_N):
        generators = random.device_generators("erasing/noise", images_BCSS.device)
        (erase_at_once if images_BCSS.is_cuda else erase_one_by_one)(images_BCSS, boxes, counts, view.erasing_mode, generators)


def erase_at_once(images_BCSS: Tensor, boxes: Boxes, counts: list[int], mode: str, generators: list[torch.Generator]) -> None:
    """Fill all boxes with few kernels but noise as large as the images, for GPUs, where kernel launches dominate the cost.

    Args:
        images_BCSS: images of all slices.
        boxes: the boxes, slice by slice.
        counts: number of boxes in each slice.
        mode: pixel or const.
        generators: one for the noise of each slice.
    """
    place_S, start_N21 = np.arange(images_BCSS.shape[-1]), boxes.corner_N2[..., None]
    inside_N2S = (place_S >= start_N21) & (place_S < start_N21 + boxes.size_N2[..., None])
    down_NS, across_NS = to_device(inside_N2S, images_BCSS.device).unbind(1)
    inside_N1SS = (down_NS[:, :, None] & across_NS[:, None])[:, None]
    image_N = to_device(boxes.image_N, images_BCSS.device)
    images_NCSS = images_BCSS.index_select(0, image_N)
    fill_NCSS = torch.zeros_like(images_NCSS)
    if mode == "pixel":
        for part, generator in zip(fill_NCSS.split(counts), generators, strict=True):
            part.normal_(generator=generator)
    images_BCSS.index_copy_(0, image_N, torch.where(inside_N1SS, fill_NCSS, images_NCSS))


def erase_one_by_one(images_BCSS: Tensor, boxes: Boxes, counts: list[int], mode: str, generators: list[torch.Generator]) -> None:
    """Fill boxes one by one with no more noise than needed, for CPUs, where drawing it dominates the cost.

    Takes the same arguments as ``erase_at_once``.
    """
    box_generators = (generator for generator, count in zip(generators, counts, strict=True) for _ in range(count))
    coordinates = zip(*(values.tolist() for values in boxes), strict=True)
    for (i, (top, left), (height, width)), generator in zip(coordinates, box_generators, strict=True):
        box = images_BCSS[i, :, top : top + height, left : left + width]
        if mode == "const":
            box.zero_()
        else:
            box.copy_(torch.randn(box.shape, generator=generator, device=box.device))
