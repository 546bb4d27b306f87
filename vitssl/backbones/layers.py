"""Building blocks that several backbones and decoders share: position embeddings, initialisation, transformer blocks."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from timm.models.vision_transformer import Attention, Block
from torch import Tensor, nn


def upcast(values: Tensor) -> Tensor:
    """Convert ``values`` to float32, for operations that bfloat16 is too coarse for; float64, used to check gradients, is kept."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def no_autocast(values: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast on the device of ``values``; tensors on the meta device need none."""
    device = values.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def gather_tokens(tokens_BND: Tensor, index_BM: Tensor) -> Tensor:
    """Return the tokens at ``index_BM``, (B, M, D)."""
    return tokens_BND.gather(1, index_BM[..., None].expand(-1, -1, tokens_BND.shape[-1]))


def scatter_tokens(tokens_BND: Tensor, index_BM: Tensor, replaced_BMD: Tensor) -> Tensor:
    """Return the tokens with those at ``index_BM`` replaced by ``replaced_BMD``; the indices of an image must be distinct."""
    return tokens_BND.scatter(1, index_BM[..., None].expand(-1, -1, tokens_BND.shape[-1]), replaced_BMD)


def sincos_positions(grid: tuple[int, int], dim: int) -> Tensor:
    """Return fixed 2-D sine-cosine position embeddings, (rows * columns, dim).

    The first half encodes the column and the second the row, as in MAE's released code (the paper does not say). Within each half, sines
    come before cosines, with wavelengths from 2 pi to 10000 * 2 pi.
    """
    rows, columns = grid
    omega = 10000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [axis.reshape(-1, 1).double() * omega for axis in (column, row)]
    return torch.cat([part for a in angles for part in (a.sin(), a.cos())], dim=1).float()


def is_square(count: int) -> bool:
    """Whether ``count`` tokens can form a square grid."""
    return count > 0 and math.isqrt(count) ** 2 == count


def resize_positions(positions_ND: Tensor, old: tuple[int, int], new: tuple[int, int], antialias: bool) -> Tensor:
    """Resize learned or fixed position embeddings of patches to another grid, by bicubic interpolation.

    When the grid shrinks, antialiasing (as in timm) averages neighbours. Random values shrink with it: from 14 x 14 to 6 x 6, to 0.37 of
    their standard deviation, against 0.86 without antialiasing. DINO's code asks for a grid that is 0.1 larger (to guard against
    rounding), which shifts positions by up to a fifth of a token in this example; this function does not.
    """
    if old == new:
        return positions_ND
    image = upcast(positions_ND).reshape(1, *old, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(image, size=new, mode="bicubic", antialias=antialias, align_corners=False)
    return resized.flatten(2).transpose(1, 2)[0].to(positions_ND.dtype)


def set_fused_attention(module: nn.Module, fused: bool) -> None:
    """Switch fused attention on or off in all of ``module``. Fused is fast; unfused can be counted, hooked and differentiated twice."""
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = fused  # type: ignore[assignment]  # torch's stub allows tensors and modules alone


def drop_path_rates(last: float, depth: int) -> list[float]:
    """Return the drop-path rates of ``depth`` blocks, rising linearly from 0 to ``last`` (Huang et al. 2016)."""
    return [last * i / max(depth - 1, 1) for i in range(depth)]


def make_blocks(
    dim: int,
    depth: int,
    num_heads: int,
    mlp_ratio: float,
    qkv_bias: bool = True,
    drop_path: float = 0.0,
    attention: type[Attention] = Attention,
    layer_scale: float | None = None,
    norm_eps: float = 1e-6,
) -> nn.ModuleList:
    """Make timm's pre-norm transformer blocks. Drop-path grows linearly to ``drop_path``, and LayerScale starts at ``layer_scale``."""
    norm = partial(nn.LayerNorm, eps=norm_eps)
    blocks = [
        Block(
            dim, num_heads, mlp_ratio, qkv_bias, drop_path=rate, attn_layer=attention, init_values=layer_scale,
            norm_layer=norm,  # type: ignore[arg-type]  # timm says a class, and calls whatever it gets
        )
        for rate in drop_path_rates(drop_path, depth)
    ]  # fmt: skip
    return nn.ModuleList(blocks)


def init_linear(module: nn.Module, init: str) -> None:
    """Initialise every Linear in ``module`` by timm's truncated normal (DeiT) or xavier-uniform (MAE); biases become zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            trunc_normal_(part.weight, std=0.02) if init == "trunc_normal" else nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def init_patch_projection(projection: nn.Conv2d | nn.Linear, init: str) -> None:
    """Initialise the projection from patch to token, by lecun-normal as in timm or by xavier-uniform as in MAE.

    Xavier-uniform applies to the flattened weight, and the bias keeps torch's default, as in MAE.
    """
    if init == "xavier":
        nn.init.xavier_uniform_(projection.weight.view(projection.weight.shape[0], -1))
    else:
        fan_in = projection.weight[0].numel()
        trunc_normal_(projection.weight, std=math.sqrt(1 / fan_in) / 0.87962566103423978)
        if projection.bias is not None:
            nn.init.zeros_(projection.bias)
