"""The Vision Transformer, on timm's modules and with timm's parameter names."""

from __future__ import annotations

import math
from collections.abc import Set

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed, trunc_normal_
from timm.models.vision_transformer import Attention
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Embedded, Features, IsotropicTransformer
from vitssl.backbones.sl_vit import LocalAttention, ShiftedPatches


def build(cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()) -> ViT:
    return ViT(cfg, size_px, requires)


class ViT(IsotropicTransformer):
    """The ViT of Dosovitskiy et al. 2021 in DeiT's sizes, for any square image and patch size.

    Position embeddings are learned or fixed sine-cosine. Fixed ones are a buffer ``pos_embed``, as they are not trained, and zero for
    prefix tokens. With ``reg_tokens`` there are further prefix tokens with position embeddings, like timm's ``reg_tokens`` (registers:
    Darcet et al. 2024; SiT has one). With ``tokenizer: shifted`` and ``attention: local`` the network is SL-ViT (Lee et al. 2021).
    """

    pos_embed: Tensor

    def __init__(self, cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()):
        super().__init__()
        size = config.size_of(cfg)
        self.embed_dim, self.num_layers = size.embed_dim, size.depths[0]
        self.strides, self.widths = (size.patch_size,) * self.num_layers, (self.embed_dim,) * self.num_layers
        self.base_grid = (size_px // self.stride, size_px // self.stride)
        self.patch_embed: ShiftedPatches | PatchEmbed
        if cfg.tokenizer == "shifted":
            self.patch_embed = ShiftedPatches(self.stride, self.embed_dim)
        else:
            self.patch_embed = PatchEmbed(size_px, self.stride, 3, self.embed_dim, strict_img_size=False)
        self.num_prefix_tokens = 1 + cfg.reg_tokens
        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.embed_dim))
        self.reg_token = nn.Parameter(torch.zeros(1, cfg.reg_tokens, self.embed_dim)) if cfg.reg_tokens else None
        self.mask_token = nn.Parameter(torch.zeros(1, 1, self.embed_dim)) if "mask" in requires else None
        if cfg.positions == "learned":
            num_tokens = self.num_prefix_tokens + math.prod(self.base_grid)
            self.pos_embed = nn.Parameter(torch.zeros(1, num_tokens, self.embed_dim))
        else:
            patches = layers.sincos_positions(self.base_grid, self.embed_dim)
            self.register_buffer("pos_embed", torch.cat([torch.zeros(self.num_prefix_tokens, self.embed_dim), patches])[None])
        self.antialias, self.has_layer_scale = cfg.interpolate_antialias, cfg.layer_scale is not None
        attention = LocalAttention if cfg.attention == "local" else Attention
        self.blocks = layers.make_blocks(
            self.embed_dim, self.num_layers, size.num_heads, size.mlp_ratio, size.qkv_bias, cfg.drop_path, attention, cfg.layer_scale
        )
        self.norm = nn.LayerNorm(self.embed_dim, eps=1e-6)
        self._init(cfg.init, cfg.cls_token_std)

    def _init(self, init: str, cls_token_std: float | None) -> None:
        layers.init_linear(self, init)
        layers.init_patch_projection(self.patch_embed.proj, init)
        # timm initialises the cls token with almost zero, MAE with N(0, 0.02)
        default_std = 1e-6 if init == "trunc_normal" else 0.02
        nn.init.normal_(self.cls_token, std=default_std if cls_token_std is None else cls_token_std)
        if self.reg_token is not None:
            nn.init.normal_(self.reg_token, std=default_std if cls_token_std is None else cls_token_std)
        if isinstance(self.pos_embed, nn.Parameter):
            trunc_normal_(self.pos_embed, std=0.02)
        if self.mask_token is not None:
            trunc_normal_(self.mask_token, std=0.02)

    def embed(self, images_BCHW: Tensor) -> Embedded:
        """Return the patch tokens with their position embeddings added."""
        grid = self.grid_of(images_BCHW)
        return Embedded(self.patch_embed(images_BCHW) + self._positions(grid), grid)

    def _positions(self, grid: tuple[int, ...]) -> Tensor:
        rows, columns = grid
        return layers.resize_positions(self.pos_embed[0, self.num_prefix_tokens :], self.base_grid, (rows, columns), self.antialias)

    def forward(
        self, embedded: Embedded, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None, out_indices: tuple[int, ...] = ()
    ) -> Features:
        tokens, grid = embedded
        if mask_BN is not None:
            assert self.mask_token is not None, "the objective's config must require mask"
            hidden = (self.mask_token + self._positions(grid)).to(tokens.dtype)
            tokens = torch.where(mask_BN[..., None], hidden, tokens)
        if keep_BM is not None:
            tokens = layers.gather_tokens(tokens, keep_BM)
        prefix = self.cls_token if self.reg_token is None else torch.cat([self.cls_token, self.reg_token], dim=1)
        prefix_BPD = (prefix + self.pos_embed[:, : self.num_prefix_tokens]).expand(len(tokens), -1, -1)
        return self._transform(Features(prefix_BPD, tokens, tokens[:, :0], grid), out_indices)

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Resize learned position embeddings to this model's grid, or replace fixed ones by this model's.

        If the weights have no position embeddings for prefix tokens (DeiT III, DINOv2 with registers), these become 0.

        Raises:
            ConfigError: the weights were trained with learned positions or with LayerScale, which this model does not have.
        """
        state = super().convert_state_dict(state, prefix)
        if f"{prefix}blocks.0.ls1.gamma" in state and not self.has_layer_scale:
            raise config.ConfigError("null, but the weights to start from have LayerScale; set 1e-5", "backbone.layer_scale")
        name = f"{prefix}pos_embed"
        loaded = state.get(name)
        if loaded is None or loaded.shape[-1] != self.embed_dim:
            return state
        P = self.num_prefix_tokens
        if not layers.is_square(loaded.shape[1] - P) and layers.is_square(loaded.shape[1]):
            loaded = F.pad(loaded, (0, 0, P, 0))
            state = {**state, name: loaded}
        if not layers.is_square(loaded.shape[1] - P):
            return state  # the weights have another number of prefix tokens
        side = math.isqrt(loaded.shape[1] - P)
        if not isinstance(self.pos_embed, nn.Parameter):
            if not torch.allclose(loaded[0, P:].float(), layers.sincos_positions((side, side), self.embed_dim), atol=1e-3):
                raise config.ConfigError("sincos, but the weights to start from have learned positions; set learned", "backbone.positions")
            return {**state, name: self.pos_embed}
        if loaded.shape == self.pos_embed.shape:
            return state
        patches = layers.resize_positions(loaded[0, P:], (side, side), self.base_grid, self.antialias)
        return {**state, name: torch.cat([loaded[0, :P], patches])[None]}
