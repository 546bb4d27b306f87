"""The fields of ``backbone``, the named sizes, and what each backbone offers to objectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Optional

from vitssl.config.base import free

# name -> (embed_dim, depth, num_heads); pico is ours, for demonstrations and tests
VIT_SIZES = {
    "vit_pico": (96, 4, 3),
    "vit_tiny": (192, 12, 3),
    "vit_small": (384, 12, 6),
    "vit_base": (768, 12, 12),
    "vit_large": (1024, 24, 16),
}
# What a backbone can do. `cls`: a class token; `keep`: drop tokens before the first block.
OFFERS = {name: {"cls", "keep"} for name in VIT_SIZES}


@dataclass
class Backbone:
    name: Literal["vit_pico", "vit_tiny", "vit_small", "vit_base", "vit_large"] = "vit_tiny"
    patch_size: int = 16  # pixels
    positions: Literal["learned", "sincos"] = "learned"
    embed_dim: Optional[int] = None  # None takes the named size's
    depth: Optional[int] = None
    num_heads: Optional[int] = None
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    drop_path: float = 0.0  # of the last block; the rate grows linearly from 0
    init: Literal["trunc_normal", "xavier"] = "trunc_normal"  # timm/DeiT's, or MAE's
    frozen: bool = False  # a linear probe: no gradient, evaluation mode
    fused_attention: bool = free(True)

    def problems(self, sizes_px: Iterable[tuple[str, int]]) -> Iterator[str]:
        """``sizes_px``: (field, side in pixels) of all images that the backbone sees."""
        embed_dim, depth, num_heads = backbone_shape(self)
        for name, value in {"patch_size": self.patch_size, "embed_dim": embed_dim, "depth": depth, "num_heads": num_heads}.items():
            if value < 1:
                yield f"backbone.{name}: {value} is less than 1"
                return
        if embed_dim % num_heads:
            yield f"backbone.num_heads: {num_heads} does not divide embed_dim={embed_dim}"
        if self.positions == "sincos" and embed_dim % 4:
            yield f"backbone.positions: sincos needs an embed_dim that is a multiple of 4, not {embed_dim}"
        if self.mlp_ratio <= 0:
            yield f"backbone.mlp_ratio: {self.mlp_ratio} is not positive"
        if not 0 <= self.drop_path < 1:
            yield f"backbone.drop_path: {self.drop_path} is not in [0, 1)"
        for where, size_px in sizes_px:
            if size_px % self.patch_size:
                yield f"backbone.patch_size: {self.patch_size} does not divide the {size_px} px of {where}"


def backbone_shape(backbone: Backbone) -> tuple[int, int, int]:
    """(embed_dim, depth, num_heads) with the overrides applied."""
    named = VIT_SIZES[backbone.name]
    own = (backbone.embed_dim, backbone.depth, backbone.num_heads)
    return tuple(o if o is not None else n for o, n in zip(own, named, strict=True))  # type: ignore[return-value]
