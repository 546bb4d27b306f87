"""Decoders, which predict the pixels of every patch from a backbone's features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Features
from vitssl.config.objectives.reconstruction import ReconstructionConfig
from vitssl.objectives.masking import TokenMask


class LinearDecoder(nn.Linear):
    """SimMIM's decoder: one linear layer from every token to its own patch (equal to a 1x1 convolution and a pixel shuffle)."""

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__(in_dim, out_dim)
        layers.init_linear(self, "trunc_normal")

    def forward(self, features: Features, mask: TokenMask) -> Tensor:  # type: ignore[override]
        """Return the predicted patches (B, N, E)."""
        return self.pixels(self.tokens(features, mask))

    def tokens(self, features: Features, mask: TokenMask) -> Tensor:
        """Return the tokens from which pixels are predicted: the backbone's patch tokens."""
        return features.tokens_BND

    def pixels(self, tokens_BND: Tensor) -> Tensor:
        """Predict the patches (B, N, E) from the result of ``tokens``."""
        return super().forward(tokens_BND)


class PixelDecoder(nn.Sequential):
    """GMML's decoder: linear layers with activations on every token (point-wise convolutions), and a transposed convolution to pixels.

    Args:
        dim: width D of the features.
        patch_px: pixels per side of a token.
        depth: the number of linear layers.
        activation: gelu (as in the authors' code, with a depth of 3) or relu (as in the paper's text, with a depth of 2).
    """

    def __init__(self, dim: int, patch_px: int, depth: int, activation: str):
        activations = {"gelu": nn.GELU, "relu": nn.ReLU}
        hidden = [part for _ in range(depth) for part in (nn.Linear(dim, dim), activations[activation]())]
        super().__init__(*hidden, nn.ConvTranspose2d(dim, 3, patch_px, stride=patch_px))
        layers.init_linear(self, "trunc_normal")

    def forward(self, features: Features) -> Tensor:
        """Return the predicted images (B, 3, H, W)."""
        *hidden, to_pixels = self
        tokens_BND = features.tokens_BND
        for part in hidden:
            tokens_BND = part(tokens_BND)
        return to_pixels(tokens_BND.transpose(1, 2).unflatten(2, features.grid))


class TransformerDecoder(nn.Module):
    """MAE's decoder: a small transformer over the visible tokens and mask tokens.

    Args:
        in_dim: width D of the features.
        out_dim: number E of values in a patch.
        grid: rows and columns of the N tokens.
        num_prefix_tokens: number P of prefix tokens.
        dim, depth, num_heads: of the decoder.
        dropped: whether the features hold only the kept tokens. Otherwise the backbone has seen the mask, and all N tokens come from it.
    """

    pos_embed: Tensor

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        grid: tuple[int, int],
        num_prefix_tokens: int,
        *,
        dim: int,
        depth: int,
        num_heads: int,
        dropped: bool,
    ):
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim)) if dropped else None
        positions = torch.cat([torch.zeros(num_prefix_tokens, dim), layers.sincos_positions(grid, dim)])
        self.register_buffer("pos_embed", positions[None])
        self.blocks = layers.make_blocks(dim, depth, num_heads, mlp_ratio=4.0)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pred = nn.Linear(dim, out_dim)
        layers.init_linear(self, "xavier")
        if self.mask_token is not None:
            nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, features: Features, mask: TokenMask) -> Tensor:
        """Return the predicted patches (B, N, E)."""
        return self.pixels(self.tokens(features, mask))

    def tokens(self, features: Features, mask: TokenMask) -> Tensor:
        """Return the tokens from which pixels are predicted: all N tokens after the blocks and the norm, (B, N, dim)."""
        P = features.prefix_BPD.shape[1]
        prefix, patches = self.embed(features.prefix_BPD), self.embed(features.tokens_BND)
        if self.mask_token is not None:  # fill in the mask token for every hidden patch
            hidden = self.mask_token.to(patches.dtype).expand(*mask.mask_BN.shape, -1)
            patches = layers.scatter_tokens(hidden, mask.keep_BM, patches)
        tokens = torch.cat([prefix, patches], dim=1) + self.pos_embed
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens[:, P:])

    def pixels(self, tokens_BND: Tensor) -> Tensor:
        """Predict the patches (B, N, E) from the result of ``tokens``."""
        return self.pred(tokens_BND)


def make_decoder(cfg: ReconstructionConfig, run: config.Run, backbone: Backbone) -> LinearDecoder | TransformerDecoder:
    """Build the decoder of ``cfg``, which maps features and their mask to predicted patches (B, N, E)."""
    (rows, columns), values = backbone.grid(config.view_px(run.data, cfg.view)), backbone.stride**2 * 3
    if cfg.decoder == "pixel_shuffle":
        return LinearDecoder(backbone.embed_dim, values)
    decoder = TransformerDecoder(
        backbone.embed_dim, values, (rows, columns), backbone.num_prefix_tokens,
        dim=cfg.decoder_dim, depth=cfg.decoder_depth, num_heads=cfg.decoder_heads, dropped=cfg.hide == "drop",
    )  # fmt: skip
    layers.set_fused_attention(decoder, run.backbone.fused_attention)
    return decoder
