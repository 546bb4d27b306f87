"""Tools for masked modelling: random masks, the pixels of patches as targets, and the error over hidden patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.backbones import layers
from vitssl.backbones.base import Features
from vitssl.config.objectives.reconstruction import ReconstructionConfig
from vitssl.objectives.step import Step

EPS = 1e-6  # added to a patch's variance


class TokenMask(NamedTuple):
    """Which tokens of each image are visible; their number is the same for every image."""

    keep_BM: Tensor  # int64 indices of the visible tokens, in no particular order
    mask_BN: Tensor  # bool, True = hidden


def random_mask(batch_size: int, num_tokens: int, mask_ratio: float, device: torch.device | None = None) -> TokenMask:
    """Keep ``int(num_tokens * (1 - mask_ratio))`` tokens of each image, uniformly at random (MAE, He et al. 2022, section 3)."""
    (mask,) = disjoint_masks(batch_size, num_tokens, [int(num_tokens * (1 - mask_ratio))], device)
    return mask


def disjoint_masks(batch_size: int, num_tokens: int, kept: Sequence[int], device: torch.device | None = None) -> list[TokenMask]:
    """Draw masks that keep no token in common.

    Of a random permutation of each image's tokens, the first mask keeps the first ``kept[0]``, the second the next ``kept[1]``, and so on.
    LUT's code draws the masks of its two views this way. If two numbers add up to ``num_tokens``, one mask hides what the other keeps.
    """
    assert all(count > 0 for count in kept) and sum(kept) <= num_tokens, f"{num_tokens} tokens have no disjoint parts of {list(kept)}"
    noise_BN = torch.rand(batch_size, num_tokens, device=device)
    parts = noise_BN.argsort(dim=1)[:, : sum(kept)].split(list(kept), dim=1)
    # scatters floats, since fvcore, with which tests/costs/test_cost.py counts, does not support scattering bools
    return [TokenMask(keep_BM, torch.ones_like(noise_BN).scatter(1, keep_BM, 0.0).bool()) for keep_BM in parts]


def patchify(images_BCHW: Tensor, patch_px: int) -> Tensor:
    """Cut images into patches (B, N, E), each row by row with the channels innermost."""
    B, C, H, W = images_BCHW.shape
    rows, columns = H // patch_px, W // patch_px
    patches = images_BCHW.reshape(B, C, rows, patch_px, columns, patch_px)
    return patches.permute(0, 2, 4, 3, 5, 1).reshape(B, rows * columns, patch_px * patch_px * C)


def unpatchify(patches_BNE: Tensor, grid: tuple[int, int]) -> Tensor:
    """Invert ``patchify`` for images of three channels whose patches form ``grid``, (B, 3, H, W)."""
    B, _, E = patches_BNE.shape
    rows, columns = grid
    patch_px = math.isqrt(E // 3)
    patches = patches_BNE.reshape(B, rows, columns, patch_px, patch_px, 3)
    return patches.permute(0, 5, 1, 3, 2, 4).reshape(B, 3, rows * patch_px, columns * patch_px)


def normalize_patches(patches_BNE: Tensor) -> Tensor:
    """Normalise each patch to mean 0 and unbiased variance 1 (MAE's normalised pixels)."""
    variance, mean = torch.var_mean(patches_BNE, dim=-1, keepdim=True)
    return (patches_BNE - mean).div_((variance + EPS).sqrt())


def masked_error(prediction_BNE: Tensor, target_BNE: Tensor, mask_BN: Tensor, kind: str) -> Tensor:
    """Return the mean squared (l2) or absolute (l1) error over the values of the masked patches of all images."""
    error = F.mse_loss if kind == "l2" else F.l1_loss
    # the error and the sum each need one forward and one backward pass over the step's largest tensor; a mean would store its gradient too
    error_BN = error(layers.upcast(prediction_BNE), target_BNE, reduction="none").sum(-1)
    return (error_BN * mask_BN).sum() / (mask_BN.sum() * target_BNE.shape[-1])


def encode_visible(step: Step, view: str, mask: TokenMask, cfg: ReconstructionConfig) -> Features:
    """Run a pass over ``view`` in which the masked tokens are dropped, or replaced by a learned token."""
    return step.encode(view, keep_BM=mask.keep_BM) if cfg.hide == "drop" else step.encode(view, mask_BN=mask.mask_BN)


def reconstruction_error(prediction_BNE: Tensor, images_BCHW: Tensor, mask: TokenMask, patch_px: int, cfg: ReconstructionConfig) -> Tensor:
    """Return the mean error of the hidden patches, whose targets are the images' pixels, optionally normalised per patch."""
    target_BNE = patchify(images_BCHW, patch_px)
    if cfg.normalize_targets:
        target_BNE = normalize_patches(target_BNE)
    return masked_error(prediction_BNE, target_BNE, mask.mask_BN, cfg.loss)


def reconstruction_images(
    prediction_BNE: Tensor, images_BCHW: Tensor, mask: TokenMask, patch_px: int, cfg: ReconstructionConfig
) -> tuple[Tensor, Tensor]:
    """Return the images with hidden patches in the data's mean colour, and with predictions in the hidden patches, (B, 3, H, W) each.

    Normalised predictions are scaled by the standard deviation and shifted by the mean of the true patch.
    """
    patches_BNE, hidden_BN1 = patchify(images_BCHW, patch_px), mask.mask_BN[..., None]
    prediction_BNE = layers.upcast(prediction_BNE)
    if cfg.normalize_targets:
        variance, mean = torch.var_mean(patches_BNE, dim=-1, keepdim=True)
        prediction_BNE = prediction_BNE * (variance + EPS).sqrt() + mean
    grid = (images_BCHW.shape[2] // patch_px, images_BCHW.shape[3] // patch_px)
    seen_BNE, given_BNE = torch.where(hidden_BN1, 0.0, patches_BNE), torch.where(hidden_BN1, prediction_BNE, patches_BNE)
    return unpatchify(seen_BNE, grid), unpatchify(given_BNE, grid)
