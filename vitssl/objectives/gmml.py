"""Group masked model learning (GMML, Atito et al. 2022)."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.gmml import GmmlConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.corruption import copy_blocks, cover_area, draw_blocks, replacement, upsample_cells
from vitssl.objectives.decoders import PixelDecoder
from vitssl.objectives.step import Step

CORRUPTED = "gmml"  # name of the view that this objective makes


def pixel_error(prediction_RCHW: Tensor, images_RCHW: Tensor, mask_R1HW: Tensor | None, kind: str) -> Tensor:
    """Return the mean absolute (l1) or squared (l2) error over the masked pixels of all images; without a mask, over all pixels.

    If a batch consists of several slices or is spread over GPUs, the mean of their means is minimised, as in the authors' code. Pixels
    of a slice with few masked pixels therefore count more.
    """
    error = F.mse_loss if kind == "l2" else F.l1_loss
    if mask_R1HW is None:
        return error(layers.upcast(prediction_RCHW), images_RCHW)
    error_RCHW = error(layers.upcast(prediction_RCHW), images_RCHW, reduction="none")
    return (error_RCHW * mask_R1HW).sum() / (mask_R1HW.sum() * images_RCHW.shape[1])


class Gmml(Objective):
    """GMML: a light decoder restores images with corrupted blocks from the features of several transformer blocks (Eq. 1, as a mean)."""

    cfg: GmmlConfig
    shares_upto: Tensor
    area_K2: Tensor

    reconstructs, has_full_pass = True, False

    def __init__(self, cfg: GmmlConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, size_px = cfg, config.view_px(run.data, cfg.view)
        self.out_indices = tuple(cfg.fused(run.backbone))
        self.decoder = PixelDecoder(backbone.embed_dim, backbone.stride, cfg.decoder_layers, cfg.activation)
        kinds = cfg.corrupt.enabled()
        self.kinds = tuple(kinds)
        if not kinds:
            return
        self.cells = cfg.cells(size_px, backbone.stride)
        self.num_blocks = self.cells.enough_blocks(cfg.largest_area())
        shares = torch.tensor([kind.share for kind in kinds.values()], dtype=torch.float64)
        # cumulative shares of all kinds but the last; constants, so not part of a checkpoint
        self.register_buffer("shares_upto", (shares.cumsum(0) / shares.sum())[:-1].float(), persistent=False)
        self.register_buffer("area_K2", torch.tensor([kind.area for kind in kinds.values()]), persistent=False)

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        prediction_RCHW, _, mask_R1HW = self._predict(step, batch)
        images_RCHW, everywhere = step.images(self.cfg.view), self.cfg.loss_on == "all"
        return {"gmml": pixel_error(prediction_RCHW, images_RCHW, None if everywhere else mask_R1HW, self.cfg.loss)}

    def reconstruct(self, step: Step, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the corrupted images and the reconstructions; unaltered pixels are copied if the loss does not include them."""
        prediction_RCHW, corrupted_RCHW, mask_R1HW = self._predict(step, batch)
        if self.cfg.loss_on == "all" or mask_R1HW is None:
            return corrupted_RCHW, layers.upcast(prediction_RCHW)
        return corrupted_RCHW, torch.where(mask_R1HW, layers.upcast(prediction_RCHW), corrupted_RCHW)

    def _predict(self, step: Step, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the predicted images, the corrupted images they are predicted from, and the mask of the corruption."""
        corrupted_RCHW, mask_R1HW = self.corrupt(step.images(self.cfg.view), len(batch.index_B))
        step.add(CORRUPTED, corrupted_RCHW)
        return self.decoder(self._fused(step.encode(CORRUPTED), step)), corrupted_RCHW, mask_R1HW

    @torch.no_grad()
    def corrupt(self, images_RCHW: Tensor, num_images: int) -> tuple[Tensor, Tensor | None]:
        """Return corrupted images and the mask of the corruption, bool (R, 1, H, W), or None if no kind of corruption is on.

        Raises:
            ConfigError: there is no other image to take alien blocks from.
        """
        if not self.kinds:
            return images_RCHW, None
        if self.training and "alien" in self.kinds and num_images < 2:  # the costs are counted outside of training, with one image
            raise config.ConfigError("a GPU gets one image, and there is no other to take blocks from; give it more", "optim.batch_size")
        R, device = len(images_RCHW), images_RCHW.device
        kind_R = (torch.rand(R, 1, device=device) >= self.shares_upto).sum(1)
        least_R, most_R = self.area_K2[kind_R].unbind(1)
        area_R = least_R + (most_R - least_R) * torch.rand(R, device=device)
        blocks, px = draw_blocks(R, self.num_blocks, self.cells, device), self.cells.px
        mask_RHW, block_RHW = cover_area(blocks, area_R, self.cells.count)
        alien_RCHW = replacement(self.kinds, kind_R, images_RCHW, num_images, partial(copy_blocks, images_RCHW, blocks, block_RHW, px))
        mask_R1HW = upsample_cells(mask_RHW, px)[:, None]
        return torch.where(mask_R1HW, alien_RCHW, images_RCHW), mask_R1HW

    def _fused(self, features: Features, step: Step) -> Features:
        """Return the mean or sum of the chosen blocks' outputs, after the final norm."""
        outputs = torch.stack([features.intermediates[index].tokens_BND for index in self.out_indices])
        fused = outputs.mean(0) if self.cfg.fuse == "mean" else outputs.sum(0)
        return Features(features.prefix_BPD, step.norm(fused), features.extra_BJD, features.grid)
