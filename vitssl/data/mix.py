"""What is done to normalised batches: random erasing, mixup and cutmix, as timm's.

Shapes: B images, C channels, S pixels per side, K classes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitssl.config import View
from vitssl.data.draws import Draws

ERASED_RATIO = (0.3, 1 / 0.3)  # height / width


def erased_boxes(view: View, draws: Draws, side: int) -> list[tuple[int, slice, slice]]:
    """Image, rows and columns of the boxes: the first of ten attempts (area uniform, ratio log-uniform) that is inside the image."""
    unit_B10_2, place_B2 = draws.uniform("erasing/shape", 10, 2), draws.uniform("erasing/place", 2)
    area_B10 = side**2 * np.interp(unit_B10_2[..., 0], (0, 1), view.erasing_scale)
    ratio_B10 = np.exp(np.interp(unit_B10_2[..., 1], (0, 1), np.log(ERASED_RATIO)))
    box_B10_2 = np.rint(np.stack([np.sqrt(area_B10 * ratio_B10), np.sqrt(area_B10 / ratio_B10)], axis=-1)).astype(int)
    fits_B10 = (box_B10_2 < side).all(-1)
    boxes = []
    for i in np.flatnonzero((draws.uniform("erasing") < view.erasing_prob) & fits_B10.any(1)):
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


def one_hot(labels_B: Tensor, num_classes: int) -> Tensor:
    """float (B, K); a row of zeros for an unlabelled image, whose label is no class."""
    return (labels_B[:, None] == torch.arange(num_classes, device=labels_B.device)).float()


def cutmix_box(share: float, side: int, rng: np.random.Generator) -> tuple[slice, slice]:
    """Rows and columns of a box of about ``share`` of the image, around a uniform centre, cut at the borders (CutMix, eq. 2)."""
    half = int(side * np.sqrt(share)) // 2
    rows, columns = (slice(max(int(c) - half, 0), min(int(c) + half, side)) for c in rng.integers(0, side, size=2))
    return rows, columns


def mix(view: View, images_BCSS: Tensor, targets_BK: Tensor, rng: np.random.Generator) -> Tensor:
    """Mixup or cutmix, the images in place; gives the mixed targets.

    timm's batch mode: one ratio for all, the partners are the flipped batch, and cutmix's ratio is that of the cut box.
    """
    cutmix = view.cutmix_alpha > 0 and (view.mixup_alpha == 0 or rng.random() < view.switch_prob)
    alpha = view.cutmix_alpha if cutmix else view.mixup_alpha
    own = rng.beta(alpha, alpha)
    if rng.random() >= view.mix_prob:
        return targets_BK
    if cutmix:
        side = images_BCSS.shape[-1]
        box = images_BCSS[:, :, *cutmix_box(1 - own, side, rng)]
        box.copy_(box.flip(0))
        own = 1 - box.shape[-2] * box.shape[-1] / side**2
    else:
        images_BCSS.lerp_(images_BCSS.flip(0), 1 - own)
    return targets_BK.lerp(targets_BK.flip(0), 1 - own)
