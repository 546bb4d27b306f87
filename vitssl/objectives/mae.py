"""Masked autoencoding (He et al. 2022), as SSAT's auxiliary task or for pretraining.

Shapes: B images, N tokens, M kept tokens, D width, p pixels per patch side.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone
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
    return (patches_BNE - mean) / (variance + eps).sqrt()


def masked_mse(prediction_BNE: Tensor, target_BNE: Tensor, mask_BN: Tensor) -> Tensor:
    """Mean over a patch's values, then over the masked patches of all images."""
    error_BN = (prediction_BNE.float() - target_BNE).square().mean(-1)
    return (error_BN * mask_BN).sum() / mask_BN.sum()


class Mae(Objective):
    """A small transformer decoder predicts the pixels of the hidden patches from the encoded visible ones."""

    def __init__(self, cfg: config.Mae, run: config.Run, backbone: Backbone, num_classes: int):
        super().__init__()
        self.cfg, self.patch_px = cfg, backbone.patch_size
        dim = cfg.decoder_dim
        self.decoder_embed = nn.Linear(backbone.embed_dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        positions = torch.cat([torch.zeros(1, dim), layers.sincos_positions(backbone.grid(config.view_px(run.data, cfg.view)), dim)])
        self.register_buffer("decoder_pos_embed", positions[None])
        self.decoder_blocks = layers.make_blocks(dim, cfg.decoder_depth, cfg.decoder_heads, mlp_ratio=4.0)
        self.decoder_norm = nn.LayerNorm(dim, eps=1e-6)
        self.decoder_pred = nn.Linear(dim, backbone.patch_size**2 * 3)
        layers.init_linear(self, "xavier")
        nn.init.normal_(self.mask_token, std=0.02)

    def select(self, batch_size: int, grid: tuple[int, int], like: Tensor) -> Selection:
        return random_keep(batch_size, grid[0] * grid[1], self.cfg.mask_ratio, device=like.device, name="mae")

    def decode(self, visible_BMD: Tensor, cls_B1D: Tensor, selection: Selection) -> Tensor:
        """Predicted patches, (B, N, p * p * 3): the mask token stands at every hidden place."""
        visible = self.decoder_embed(visible_BMD)
        B, N = selection.mask_BN.shape
        tokens = self.mask_token.to(visible.dtype).expand(B, N, -1)
        tokens = tokens.scatter(1, selection.keep_BM[..., None].expand(-1, -1, visible.shape[-1]), visible)
        tokens = torch.cat([self.decoder_embed(cls_B1D), tokens], dim=1) + self.decoder_pos_embed
        for block in self.decoder_blocks:
            tokens = block(tokens)
        return self.decoder_pred(self.decoder_norm(tokens[:, 1:]))

    def forward(self, encode: Encode, batch: Batch, progress: Tensor) -> dict[str, Tensor]:
        view = self.cfg.view
        features, selection = encode(view, keep="mae"), encode.selection("mae")
        prediction_BNE = self.decode(features.tokens_BND, features.prefix_BPD[:, :1], selection)
        target_BNE = patchify(encode.images(view), self.patch_px)
        if self.cfg.normalize_targets:
            target_BNE = normalize_patches(target_BNE)
        return {"mae": masked_mse(prediction_BNE, target_BNE, selection.mask_BN)}

    def weights(self, progress: Tensor) -> dict[str, float | Tensor]:
        return {"mae": self.cfg.weight}
