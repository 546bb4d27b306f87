"""Masked image modelling, for pretraining or as SSAT's auxiliary task.

MAE (He et al. 2022), SimMIM (Xie et al. 2022) and ConvMAE (Gao et al. 2022) are settings of its fields.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.mae import MaeConfig
from vitssl.data.loading.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.decoders import make_decoder
from vitssl.objectives.masking import TokenMask, encode_visible, random_mask, reconstruction_error, reconstruction_images
from vitssl.objectives.step import Step


class Fusion(nn.Module):
    """ConvMAE's multi-scale fusion, which adds the features of earlier stages to those of the last one.

    A strided convolution shrinks each earlier stage to the output's grid and width. The final norm is applied to the sum, whereas the
    backbone applies it to the last stage alone.
    """

    def __init__(self, backbone: Backbone):
        super().__init__()
        factors = [backbone.stride // stride for stride in backbone.strides[:-1]]
        shrink = [nn.Conv2d(w, backbone.embed_dim, f, stride=f) for w, f in zip(backbone.widths[:-1], factors, strict=True)]
        self.shrink = nn.ModuleList(shrink)

    def forward(self, features: Features, step: Step, kept: TokenMask | None) -> Features:
        """Return the fused features.

        Args:
            features: of the backbone, with all intermediates.
            step: applies the final norm.
            kept: the mask of a pass that dropped the hidden tokens; None if the pass has all tokens.
        """
        fused = features.intermediates[len(self.shrink)].tokens_BND
        for i, shrink in enumerate(self.shrink):
            stage_BND = shrink(features.map(i)).flatten(2).transpose(1, 2)
            if kept is not None:
                stage_BND = layers.gather_tokens(stage_BND, kept.keep_BM)
            fused = fused + stage_BND
        return Features(features.prefix_BPD, step.norm(fused), features.extra_BJD, features.grid)


class Mae(Objective):
    """Masked image modelling, in which the encoder sees some of the patches and a decoder predicts the pixels of the hidden ones."""

    cfg: MaeConfig
    reconstructs, has_full_pass = True, False

    def __init__(self, cfg: MaeConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, self.patch_px = cfg, backbone.stride
        self.fusion = Fusion(backbone) if cfg.fuse else None
        self.out_indices = tuple(range(len(backbone.widths))) if cfg.fuse else ()
        self.decoder = make_decoder(cfg, run, backbone)

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        prediction_BNE, mask = self._predict(step)
        return {"mae": reconstruction_error(prediction_BNE, step.images(self.cfg.view), mask, self.patch_px, self.cfg)}

    def reconstruct(self, step: Step, batch: Batch) -> tuple[Tensor, Tensor]:
        prediction_BNE, mask = self._predict(step)
        return reconstruction_images(prediction_BNE, step.images(self.cfg.view), mask, self.patch_px, self.cfg)

    def _predict(self, step: Step) -> tuple[Tensor, TokenMask]:
        """Return the predicted pixels of all patches (B, N, E), and the mask."""
        view, images_BCHW = self.cfg.view, step.images(self.cfg.view)
        mask = random_mask(len(images_BCHW), math.prod(step.grid(view)), self.cfg.mask_ratio, images_BCHW.device)
        features = encode_visible(step, view, mask, self.cfg)
        if self.fusion is not None:
            features = self.fusion(features, step, mask if self.cfg.hide == "drop" else None)
        return self.decoder(features, mask), mask
