"""Masked image modelling, as SSAT's auxiliary task or for pretraining: MAE (He et al. 2022), SimMIM (Xie et al. 2022) and ConvMAE
(Gao et al. 2022) are values of its fields.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.mae import MaeConfig
from vitssl.data.batch import Batch
from vitssl.objectives.base import Objective
from vitssl.objectives.decoders import LinearDecoder, TransformerDecoder
from vitssl.objectives.masking import TokenMask, masked_error, normalize_patches, patchify, random_mask
from vitssl.objectives.step import Step


class Fusion(nn.Module):
    """ConvMAE's multi-scale fusion: each earlier stage is shrunk to the output's grid and width by a strided convolution, and added.

    The sum goes through the final norm, which in the backbone's features is applied to the last stage alone.
    """

    def __init__(self, backbone: Backbone):
        super().__init__()
        factors = [backbone.stride // stride for stride in backbone.strides[:-1]]
        shrink = [nn.Conv2d(w, backbone.embed_dim, f, stride=f) for w, f in zip(backbone.widths[:-1], factors, strict=True)]
        self.shrink = nn.ModuleList(shrink)

    def forward(self, features: Features, step: Step, kept: TokenMask | None) -> Features:
        """``kept``: of a pass that dropped the other tokens."""
        fused = features.intermediates[len(self.shrink)].tokens_BND
        for i, shrink in enumerate(self.shrink):
            added = shrink(features.map(i)).flatten(2).transpose(1, 2)
            if kept is not None:
                added = added.gather(1, kept.keep_BM[..., None].expand(-1, -1, added.shape[-1]))
            fused = fused + added
        return Features(features.prefix_BPD, step.norm(fused), features.extra_BJD, features.grid)


class Mae(Objective):
    """The encoder sees a part of the patches, a decoder predicts the pixels of the hidden ones."""

    whole_pass = False

    def __init__(self, cfg: MaeConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, self.patch_px, self.dropped = cfg, backbone.stride, cfg.hide == "drop"
        self.fusion = Fusion(backbone) if cfg.fuse else None
        self.out_indices = tuple(range(len(backbone.widths))) if cfg.fuse else ()
        grid, values = backbone.grid(config.view_px(run.data, cfg.view)), self.patch_px**2 * 3
        if cfg.decoder == "pixel_shuffle":
            self.decoder = LinearDecoder(backbone.embed_dim, values)
        else:
            self.decoder = TransformerDecoder(
                backbone.embed_dim, values, grid, backbone.num_prefix_tokens,
                dim=cfg.decoder_dim, depth=cfg.decoder_depth, num_heads=cfg.decoder_heads, dropped=self.dropped,
            )  # fmt: skip
        layers.set_fused_attention(self.decoder, run.backbone.fused_attention)

    def forward(self, step: Step, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        view, images_BCHW = self.cfg.view, step.images(self.cfg.view)
        mask = random_mask(len(images_BCHW), math.prod(step.grid(view)), self.cfg.mask_ratio, images_BCHW.device)
        features = step.encode(view, keep_BM=mask.keep_BM) if self.dropped else step.encode(view, mask_BN=mask.mask_BN)
        if self.fusion is not None:
            features = self.fusion(features, step, mask if self.dropped else None)
        prediction_BNE = self.decoder(features, mask)
        target_BNE = patchify(images_BCHW, self.patch_px)
        if self.cfg.normalize_targets:
            target_BNE = normalize_patches(target_BNE)
        return {"mae": masked_error(prediction_BNE, target_BNE, mask.mask_BN, self.cfg.loss)}
