"""Random erasing of normalised images, as timm's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitssl.config import View
from vitssl.views.random import StepRandom

ERASED_RATIO = (0.3, 1 / 0.3)  # height / width


def erased_boxes(view: View, random: StepRandom, side: int) -> list[tuple[int, slice, slice]]:
    """Image, rows and columns of the boxes: the first of ten attempts (area uniform, ratio log-uniform) that is inside the image."""
    unit_B10_2, place_B2 = random.uniform("erasing/shape", 10, 2), random.uniform("erasing/place", 2)
    area_B10 = side**2 * np.interp(unit_B10_2[..., 0], (0, 1), view.erasing_scale)
    ratio_B10 = np.exp(np.interp(unit_B10_2[..., 1], (0, 1), np.log(ERASED_RATIO)))
    box_B10_2 = np.rint(np.stack([np.sqrt(area_B10 * ratio_B10), np.sqrt(area_B10 / ratio_B10)], axis=-1)).astype(int)
    fits_B10 = (box_B10_2 < side).all(-1)
    boxes = []
    for i in np.flatnonzero((random.uniform("erasing") < view.erasing_prob) & fits_B10.any(1)):
        height, width = box_B10_2[i, fits_B10[i].argmax()]
        top, left = (int(u * (side - length + 1)) for u, length in zip(place_B2[i], (height, width), strict=True))
        boxes.append((int(i), slice(top, top + int(height)), slice(left, left + int(width))))
    return boxes


def erase(images_BCSS: Tensor, boxes: list[tuple[int, slice, slice]], mode: str, generator: torch.Generator) -> None:
    """Fill the boxes in place: with standard normal noise (timm's mode ``pixel``), or with zero, the mean colour (``const``)."""
    for i, rows, columns in boxes:
        box = images_BCSS[i, :, rows, columns]
        if mode == "const":
            box.zero_()
        else:
            box.copy_(torch.randn(box.shape, generator=generator, device=box.device))
