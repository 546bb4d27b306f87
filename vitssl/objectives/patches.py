"""Pixels of patches as targets, and errors over the hidden ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.backbones import layers


def patchify(images_BCHW: Tensor, patch_px: int) -> Tensor:
    """(B, N, E), each patch row by row with the channels innermost."""
    B, C, H, W = images_BCHW.shape
    rows, columns = H // patch_px, W // patch_px
    patches = images_BCHW.reshape(B, C, rows, patch_px, columns, patch_px)
    return patches.permute(0, 2, 4, 3, 5, 1).reshape(B, rows * columns, patch_px * patch_px * C)


def unpatchify(patches_BNE: Tensor, grid: tuple[int, int], patch_px: int) -> Tensor:
    """The inverse of ``patchify``: images (B, C, H, W) of a grid of patches (rows, columns)."""
    B, _, E = patches_BNE.shape
    (rows, columns), C = grid, E // patch_px**2
    patches = patches_BNE.reshape(B, rows, columns, patch_px, patch_px, C)
    return patches.permute(0, 5, 1, 3, 2, 4).reshape(B, C, rows * patch_px, columns * patch_px)


def normalize_patches(patches_BNE: Tensor, eps: float = 1e-6) -> Tensor:
    """Each patch to mean 0 and unbiased variance 1 (MAE's normalised pixels)."""
    variance, mean = torch.var_mean(patches_BNE, dim=-1, keepdim=True)
    return (patches_BNE - mean).div_((variance + eps).sqrt())


def masked_error(prediction_BNE: Tensor, target_BNE: Tensor, mask_BN: Tensor, kind: str) -> Tensor:
    """Squared (l2) or absolute (l1) error: mean over a patch's values, then over the masked patches of all images."""
    error = F.mse_loss if kind == "l2" else F.l1_loss
    # this and the sum make one pass each over the step's largest tensor and one back; a mean's gradient would be written out
    error_BN = error(layers.upcast(prediction_BNE), target_BNE, reduction="none").sum(-1)
    return (error_BN * mask_BN).sum() / (mask_BN.sum() * target_BNE.shape[-1])
