"""Mixup and cutmix of normalised batches, as in timm."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitssl.config import View


def one_hot(labels_B: Tensor, num_classes: int) -> Tensor:
    """Return one-hot rows, float (B, K); unlabelled images, whose label is not a class, get zeros."""
    return (labels_B[:, None] == torch.arange(num_classes, device=labels_B.device)).float()


def cutmix_box(share: float, side: int, rng: np.random.Generator) -> tuple[slice, slice]:
    """Draw rows and columns of a box with about ``share`` of the image's area and a uniform centre, cut at the borders (CutMix, eq. 2)."""
    half = int(side * np.sqrt(share)) // 2
    rows, columns = (slice(max(int(c) - half, 0), min(int(c) + half, side)) for c in rng.integers(0, side, size=2))
    return rows, columns


def mix(view: View, images_BCSS: Tensor, targets_BK: Tensor, rng: np.random.Generator) -> Tensor:
    """Apply mixup or cutmix to the images in place, and return the mixed targets.

    This is timm's batch mode: all images share one ratio, their partners are the flipped batch, and cutmix uses the true ratio of the
    cut box.
    """
    cutmix = view.cutmix_alpha > 0 and (view.mixup_alpha == 0 or rng.random() < view.switch_prob)
    alpha = view.cutmix_alpha if cutmix else view.mixup_alpha
    kept_share = rng.beta(alpha, alpha)
    if rng.random() >= view.mix_prob:
        return targets_BK
    if cutmix:
        side = images_BCSS.shape[-1]
        box = images_BCSS[:, :, *cutmix_box(1 - kept_share, side, rng)]
        box.copy_(box.flip(0))
        kept_share = 1 - box.shape[-2] * box.shape[-1] / side**2
    else:
        images_BCSS.lerp_(images_BCSS.flip(0), 1 - kept_share)
    return targets_BK.lerp(targets_BK.flip(0), 1 - kept_share)
