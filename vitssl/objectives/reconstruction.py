"""Masked reconstruction, from a config with its fields: what MAE and LUT share."""

from __future__ import annotations

from torch import Tensor

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.reconstruction import ReconstructionConfig
from vitssl.objectives.decoders import LinearDecoder, TransformerDecoder
from vitssl.objectives.masking import TokenMask, masked_error, normalize_patches, patchify
from vitssl.objectives.step import Step


def make_decoder(cfg: ReconstructionConfig, run: config.Run, backbone: Backbone) -> LinearDecoder | TransformerDecoder:
    """Features and their mask to predicted patches (B, N, E)."""
    grid, values = backbone.grid(config.view_px(run.data, cfg.view)), backbone.stride**2 * 3
    if cfg.decoder == "pixel_shuffle":
        return LinearDecoder(backbone.embed_dim, values)
    decoder = TransformerDecoder(
        backbone.embed_dim, values, grid, backbone.num_prefix_tokens,
        dim=cfg.decoder_dim, depth=cfg.decoder_depth, num_heads=cfg.decoder_heads, dropped=cfg.hide == "drop",
    )  # fmt: skip
    layers.set_fused_attention(decoder, run.backbone.fused_attention)
    return decoder


def encode_visible(step: Step, view: str, mask: TokenMask, cfg: ReconstructionConfig) -> Features:
    """A pass in which the masked tokens are dropped, or replaced by a learned one."""
    return step.encode(view, keep_BM=mask.keep_BM) if cfg.hide == "drop" else step.encode(view, mask_BN=mask.mask_BN)


def reconstruction_error(prediction_BNE: Tensor, images_BCHW: Tensor, mask: TokenMask, patch_px: int, cfg: ReconstructionConfig) -> Tensor:
    """Mean error of the hidden patches, whose targets are the images' pixels, normalised per patch or as they are."""
    target_BNE = patchify(images_BCHW, patch_px)
    if cfg.normalize_targets:
        target_BNE = normalize_patches(target_BNE)
    return masked_error(prediction_BNE, target_BNE, mask.mask_BN, cfg.loss)
