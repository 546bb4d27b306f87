"""Random erasing of normalised images, as timm's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitssl.config import View
from vitssl.views.random import StepRandom
from vitssl.views.resample import to_device

Box = tuple[int, slice, slice]  # image, rows and columns
ERASED_RATIO = (0.3, 1 / 0.3)  # height / width


def erased_boxes(view: View, random: StepRandom, side: int) -> list[Box]:
    """The boxes: the first of ten attempts (area uniform, ratio log-uniform) that is inside the image."""
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


def erase(images_BCSS: Tensor, view: View, random: StepRandom) -> None:
    """Fill boxes in place: with standard normal noise (timm's mode ``pixel``), or with zero, the mean colour (``const``)."""
    boxes_of, slice_B = [[] for _ in random.slices], random.slice_B()
    for box in erased_boxes(view, random, images_BCSS.shape[-1]):
        boxes_of[slice_B[box[0]]].append(box)
    if any(boxes_of):
        generators = random.device_generators("erasing/noise", images_BCSS.device)
        (erase_at_once if images_BCSS.is_cuda else erase_one_by_one)(images_BCSS, boxes_of, view.erasing_mode, generators)


def erase_at_once(images_BCSS: Tensor, boxes_of: list[list[Box]], mode: str, generators: list[torch.Generator]) -> None:
    """The boxes of each slice in few kernels, and noise as large as the images: for a GPU, where launching is what costs."""
    boxes, device = [box for boxes in boxes_of for box in boxes], images_BCSS.device
    inside_2NS = np.zeros((2, len(boxes), images_BCSS.shape[-1]), dtype=bool)
    for (down_S, across_S), (_, rows, columns) in zip(inside_2NS.swapaxes(0, 1), boxes, strict=True):
        down_S[rows] = across_S[columns] = True
    down_NS, across_NS = to_device(inside_2NS, device)
    inside_N1SS = (down_NS[:, :, None] & across_NS[:, None])[:, None]
    index_N = to_device(np.array([i for i, _, _ in boxes]), device)
    images_NCSS = images_BCSS.index_select(0, index_N)
    fill_NCSS = torch.zeros_like(images_NCSS)
    if mode == "pixel":
        for part, generator in zip(fill_NCSS.split([len(boxes) for boxes in boxes_of]), generators, strict=True):
            part.normal_(generator=generator)
    images_BCSS.index_copy_(0, index_N, torch.where(inside_N1SS, fill_NCSS, images_NCSS))


def erase_one_by_one(images_BCSS: Tensor, boxes_of: list[list[Box]], mode: str, generators: list[torch.Generator]) -> None:
    """With no more noise than is needed: for a CPU, where drawing it is what costs."""
    for boxes, generator in zip(boxes_of, generators, strict=True):
        for i, rows, columns in boxes:
            box = images_BCSS[i, :, rows, columns]
            if mode == "const":
                box.zero_()
            else:
                box.copy_(torch.randn(box.shape, generator=generator, device=box.device))
