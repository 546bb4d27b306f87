"""Masked image modelling, as SSAT's auxiliary task or for pretraining: MAE (He et al. 2022), SimMIM (Xie et al. 2022) and ConvMAE
(Gao et al. 2022) are values of its fields.

Shapes: B images, N tokens, M kept tokens, P prefix tokens, D width, E values of a patch, p pixels per patch side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.mae import MaeConfig
from vitssl.data.batch import Batch
from vitssl.data.masks import Selection, random_keep
from vitssl.objectives.base import Encode, Objective


def patchify(images_BCHW: Tensor, patch_px: int) -> Tensor:
    """(B, N, p * p * 3), each patch row by row with the channels innermost."""
    B, C, H, W = images_BCHW.shape
    rows, columns = H // patch_px, W // patch_px
    patches = images_BCHW.reshape(B, C, rows, patch_px, columns, patch_px)
    return patches.permute(0, 2, 4, 3, 5, 1).reshape(B, rows * columns, patch_px * patch_px * C)


def unpatchify(patches_BNE: Tensor, patch_px: int) -> Tensor:
    """The inverse of ``patchify`` for a square image."""
    B, N, E = patches_BNE.shape
    side, C = round(N**0.5), E // patch_px**2
    patches = patches_BNE.reshape(B, side, side, patch_px, patch_px, C)
    return patches.permute(0, 5, 1, 3, 2, 4).reshape(B, C, side * patch_px, side * patch_px)


def normalize_patches(patches_BNE: Tensor, eps: float = 1e-6) -> Tensor:
    """Each patch to mean 0 and unbiased variance 1 (the paper's normalised pixels)."""
    variance, mean = torch.var_mean(patches_BNE, dim=-1, keepdim=True)
    return (patches_BNE - mean).div_((variance + eps).sqrt())


def masked_error(prediction_BNE: Tensor, target_BNE: Tensor, mask_BN: Tensor, kind: str) -> Tensor:
    """Squared (l2) or absolute (l1) error: mean over a patch's values, then over the masked patches of all images."""
    error = F.mse_loss if kind == "l2" else F.l1_loss
    # this and the sum make one pass each over the step's largest tensor and one back; a mean's gradient would be written out
    error_BN = error(layers.upcast(prediction_BNE), target_BNE, reduction="none").sum(-1)
    return (error_BN * mask_BN).sum() / (mask_BN.sum() * target_BNE.shape[-1])


class PixelShuffle(nn.Linear):
    """SimMIM's decoder: one linear layer from every token to its own patch (a 1x1 convolution and a pixel shuffle)."""

    def __init__(self, cfg: MaeConfig, backbone: Backbone, grid: tuple[int, int]):
        super().__init__(backbone.embed_dim, backbone.stride**2 * 3)
        layers.init_linear(self, "trunc_normal")

    def forward(self, features: Features, selection: Selection) -> Tensor:  # type: ignore[override]
        return super().forward(features.tokens_BND)


class Transformer(nn.Module):
    """MAE's decoder: a small transformer over the visible tokens and mask tokens, which predicts the pixels of every patch."""

    def __init__(self, cfg: MaeConfig, backbone: Backbone, grid: tuple[int, int]):
        super().__init__()
        dim, prefix = cfg.decoder_dim, backbone.num_prefix_tokens
        self.embed = nn.Linear(backbone.embed_dim, dim)
        # where the backbone sees the mask itself, every token comes from there
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim)) if cfg.hide == "drop" else None
        positions = torch.cat([torch.zeros(prefix, dim), layers.sincos_positions(grid, dim)])
        self.register_buffer("pos_embed", positions[None])
        self.blocks = layers.make_blocks(dim, cfg.decoder_depth, cfg.decoder_heads, mlp_ratio=4.0)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pred = nn.Linear(dim, backbone.stride**2 * 3)
        layers.init_linear(self, "xavier")
        if self.mask_token is not None:
            nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, features: Features, selection: Selection) -> Tensor:
        """Predicted patches (B, N, p * p * 3)."""
        prefix = features.prefix_BPD.shape[1]
        tokens = torch.cat([self.embed(features.prefix_BPD), self._full(self.embed(features.tokens_BND), selection)], dim=1)
        tokens = tokens + self.pos_embed
        for block in self.blocks:
            tokens = block(tokens)
        return self.pred(self.norm(tokens[:, prefix:]))

    def _full(self, visible: Tensor, selection: Selection) -> Tensor:
        """All N tokens: the mask token stands at every hidden place."""
        if self.mask_token is None:
            return visible
        tokens = self.mask_token.to(visible.dtype).expand(*selection.mask_BN.shape, -1)
        return tokens.scatter(1, selection.keep_BM[..., None].expand(-1, -1, visible.shape[-1]), visible)


class Fusion(nn.Module):
    """ConvMAE's multi-scale fusion: each earlier stage is shrunk to the output's grid and width by a strided convolution, and added.

    The sum goes through the final norm, which in the backbone's own features saw the last stage alone.
    """

    def __init__(self, backbone: Backbone):
        super().__init__()
        factors = [backbone.stride // stride for stride in backbone.strides[:-1]]
        shrink = [nn.Conv2d(w, backbone.embed_dim, f, stride=f) for w, f in zip(backbone.widths[:-1], factors, strict=True)]
        self.shrink = nn.ModuleList(shrink)

    def forward(self, features: Features, encode: Encode, selection: Selection, dropped: bool) -> Features:
        fused = features.stages[len(self.shrink)][0]
        prefix = features.prefix_BPD.shape[1]
        for i, shrink in enumerate(self.shrink):
            tokens, grid = features.stages[i]
            added = shrink(tokens.transpose(1, 2).unflatten(2, grid)).flatten(2).transpose(1, 2)
            if dropped:
                added = added.gather(1, selection.keep_BM[..., None].expand(-1, -1, added.shape[-1]))
            fused = torch.cat([fused[:, :prefix], fused[:, prefix:] + added], dim=1)
        normed = encode.norm(fused)
        return Features(normed[:, :prefix], normed[:, prefix:], features.grid)


class Mae(Objective):
    """The encoder sees a part of the patches, a decoder predicts the pixels of the hidden ones."""

    whole_pass = False

    def __init__(self, cfg: MaeConfig, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, self.patch_px = cfg, backbone.stride
        grid = backbone.grid(config.view_px(run.data, cfg.view))
        self.fusion = Fusion(backbone) if cfg.fuse else None
        self.ends = tuple(range(len(backbone.widths))) if cfg.fuse else ()
        kind = Transformer if cfg.decoder == "transformer" else PixelShuffle
        self.decoder = kind(cfg, backbone, grid)
        layers.set_fused_attention(self.decoder, run.backbone.fused_attention)

    def select(self, batch_size: int, grid: tuple[int, int], like: Tensor) -> Selection:
        return random_keep(batch_size, grid[0] * grid[1], self.cfg.mask_ratio, device=like.device, name="mae")

    def forward(self, encode: Encode, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        view = self.cfg.view
        dropped = self.cfg.hide == "drop"
        features = encode(view, keep="mae") if dropped else encode(view, mask="mae")
        selection = encode.selection("mae")
        if self.fusion is not None:
            features = self.fusion(features, encode, selection, dropped)
        target_BNE = patchify(encode.images(view), self.patch_px)
        if self.cfg.normalize_targets:
            target_BNE = normalize_patches(target_BNE)
        return {"mae": masked_error(self.decoder(features, selection), target_BNE, selection.mask_BN, self.cfg.loss)}
