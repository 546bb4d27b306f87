"""T2T-ViT, the tokens-to-token vision transformer (Yuan et al. 2021), with performers (Choromanski et al. 2021) in its tokenizer.

Shapes: E values in an unfolded token, m random features.
"""

from __future__ import annotations

import math
from collections.abc import Set

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Embedded, Features, IsotropicTransformer

TOKEN_DIM = 64  # width of the token transformers, in all sizes


def build(cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()) -> T2T:
    return T2T(cfg)


def sinusoid_positions(count: int, dim: int, device: torch.device | None = None) -> Tensor:
    """Return the fixed 1-D position embeddings (count, dim) of Vaswani et al. 2017.

    Sines have even indices and cosines odd ones, with wavelengths from 2 pi to 20000 pi.
    """
    position_N1 = torch.arange(count, dtype=torch.float64, device=device)[:, None]
    angles = position_N1 * 10000.0 ** -(torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :dim].float()


def soft_split(map_BCHW: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Unfold overlapping windows of a map into tokens (B, N, C * kernel * kernel)."""
    return F.unfold(map_BCHW, kernel, padding=padding, stride=stride).transpose(1, 2)


class TokenPerformer(nn.Module):
    """Linear attention of one head by positive orthogonal random features, and an MLP; it maps (B, N, E) to (B, N, TOKEN_DIM).

    As in the released code, the values are the skip connection, since the input is wider, and queries and keys are not scaled. There are
    half as many features m as dimensions. Their fixed directions have length sqrt(m), and are a buffer because they are not trained.
    """

    w: Tensor

    def __init__(self, in_dim: int, dropout: float = 0.1):
        super().__init__()
        features = TOKEN_DIM // 2
        self.norm1 = nn.LayerNorm(in_dim)
        self.kqv = nn.Linear(in_dim, 3 * TOKEN_DIM)
        self.register_buffer("w", nn.init.orthogonal_(torch.empty(features, TOKEN_DIM)) * math.sqrt(features))
        self.proj = nn.Linear(TOKEN_DIM, TOKEN_DIM)
        self.drop = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(TOKEN_DIM)
        self.mlp = nn.Sequential(nn.Linear(TOKEN_DIM, TOKEN_DIM), nn.GELU(), nn.Linear(TOKEN_DIM, TOKEN_DIM), nn.Dropout(dropout))

    def forward(self, tokens_BNE: Tensor) -> Tensor:
        k, q, v = self.kqv(self.norm1(tokens_BNE)).chunk(3, dim=-1)
        # exponentials and sums over thousands of tokens need more precision than bfloat16 has
        with layers.no_autocast(v):
            attended = self.attend(layers.upcast(q), layers.upcast(k), layers.upcast(v))
        tokens = v + self.drop(self.proj(attended))
        return tokens + self.mlp(self.norm2(tokens))

    def attend(self, q_BND: Tensor, k_BND: Tensor, v_BND: Tensor, eps: float = 1e-8) -> Tensor:
        """Average the values with weights phi(q) . phi(k), which approximate exp(q . k), in O(N): Eq. 4 of Choromanski et al."""
        q_BNm, k_BNm = self.features(q_BND), self.features(k_BND)
        total_BN1 = q_BNm @ k_BNm.sum(1)[..., None]
        return q_BNm @ (k_BNm.transpose(1, 2) @ v_BND) / (total_BN1 + eps)

    def features(self, x_BND: Tensor) -> Tensor:
        """Return the random features phi(x) = exp(w x - |x|^2 / 2) / sqrt(m), (B, N, m): Lemma 1 of Choromanski et al."""
        return torch.exp(F.linear(x_BND, self.w) - x_BND.square().sum(-1, keepdim=True) / 2) / math.sqrt(len(self.w))


class TokensToToken(nn.Module):
    """The tokenizer, from images to one token per 16 x 16 pixels (section 3.1).

    It consists of soft splits of strides 4, 2 and 2, with a performer after each of the first two.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.attention1 = TokenPerformer(3 * 7 * 7)
        self.attention2 = TokenPerformer(TOKEN_DIM * 3 * 3)
        self.project = nn.Linear(TOKEN_DIM * 3 * 3, dim)

    def forward(self, images_BCHW: Tensor, grid: tuple[int, int]) -> Tensor:
        tokens = self.attention1(soft_split(images_BCHW, 7, stride=4, padding=2))
        tokens = self.attention2(self._split(tokens, (4 * grid[0], 4 * grid[1])))
        return self.project(self._split(tokens, (2 * grid[0], 2 * grid[1])))

    def _split(self, tokens_BND: Tensor, grid: tuple[int, int]) -> Tensor:
        """Unfold the tokens of ``grid`` into those of a grid with half the rows and columns."""
        return soft_split(tokens_BND.transpose(1, 2).unflatten(2, grid), 3, stride=2, padding=1)


class Scale(nn.Module):
    """Multiplication by a constant, without parameters."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class T2T(IsotropicTransformer):
    """T2T-ViT with performers as token transformers and the parameter names of the authors' released files.

    ``attention_scale: embed_dim`` divides logits by the root of the whole width, as the released weights need.

    At every image size, position n in raster order gets row n + 1 of the fixed table of position embeddings, and the cls token gets row 0.
    The released code builds the same table for each size, so nothing needs to be resized.
    """

    def __init__(self, cfg: config.BackboneConfig):
        super().__init__()
        size = config.size_of(cfg)
        self.embed_dim, self.num_layers = size.embed_dim, size.depths[0]
        self.strides, self.widths = (config.stride_px(cfg),) * self.num_layers, (self.embed_dim,) * self.num_layers
        self.tokens_to_token = TokensToToken(self.embed_dim)
        self.cls_token = nn.Parameter(trunc_normal_(torch.zeros(1, 1, self.embed_dim), std=0.02))
        self.blocks = layers.make_blocks(
            self.embed_dim, self.num_layers, size.num_heads, size.mlp_ratio, size.qkv_bias, cfg.drop_path,
            norm_eps=1e-5,  # as in the released code: torch's default
        )  # fmt: skip
        self.attention_scale = cfg.attention_scale
        if self.attention_scale == "embed_dim":
            for block in self.blocks:
                block.get_submodule("attn").q_norm = Scale(size.num_heads**-0.5)  # in addition to timm's head_dim**-0.5
        self.norm = nn.LayerNorm(self.embed_dim)
        layers.init_linear(self, "trunc_normal")

    def embed(self, images_BCHW: Tensor) -> Embedded:
        """Return the tokens with their position embeddings added."""
        grid = self.grid_of(images_BCHW)
        positions = sinusoid_positions(1 + grid[0] * grid[1], self.embed_dim, images_BCHW.device)
        return Embedded(self.tokens_to_token(images_BCHW, grid) + positions[1:], grid)

    def forward(
        self, embedded: Embedded, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None, out_indices: tuple[int, ...] = ()
    ) -> Features:
        """Run the blocks and the final norm on all tokens.

        Hiding some of them is not supported, since overlapping windows carry hidden pixels into neighbouring tokens.
        """
        assert keep_BM is None and mask_BN is None, "config refuses objectives that need keep or mask"
        tokens, grid = embedded
        cls = (self.cls_token + sinusoid_positions(1, self.embed_dim, tokens.device)).expand(len(tokens), -1, -1)
        return self._transform(Features(cls, tokens, tokens[:, :0], grid), out_indices)

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Drop the fixed position table, by which the authors' files are recognised; any other table stays.

        Raises:
            ConfigError: these are the authors' weights, which were trained with another attention scale than this model's.
        """
        state = super().convert_state_dict(state, prefix)
        name = f"{prefix}pos_embed"
        if name not in state or not torch.allclose(state[name][0].float(), sinusoid_positions(*state[name].shape[1:]), atol=1e-4):
            return state
        if self.attention_scale != "embed_dim":
            reason = f"{self.attention_scale}, but T2T-ViT's released weights were trained with embed_dim; set that"
            raise config.ConfigError(reason, "backbone.attention_scale")
        return {key: value for key, value in state.items() if key != name}
