"""The Swin Transformer, on timm's modules and with timm's parameter names.

Shapes: w windows of a map, A heads, N tokens of a window or of a map, L rows of a table of relative positions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Set

import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed, trunc_normal_
from timm.models import swin_transformer as timm_swin
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers
from vitssl.backbones.base import Backbone, Embedded, Features

WINDOW = 7  # tokens per side of a window


def build(cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()) -> Swin:
    return Swin(cfg, size_px, requires)


class WindowAttention(timm_swin.WindowAttention):
    """timm's window attention, with optional relative positions, which takes maps smaller than a window without padding them."""

    relative_position_index: Tensor

    def __init__(self, dim: int, num_heads: int, window: tuple[int, int], qkv_bias: bool, relative_positions: bool):
        super().__init__(dim, num_heads, window_size=window, qkv_bias=qkv_bias)
        self.relative_positions = relative_positions
        if not relative_positions:
            self.register_parameter("relative_position_bias_table", None)

    def forward(self, tokens_BwND: Tensor, mask: Tensor | None = None, grid: tuple[int, int] | None = None) -> Tensor:
        """Apply attention within windows.

        Args:
            tokens_BwND: (B * w, N, D), the windows of an image one after the other.
            mask: (w, N, N), added to the logits; with None, all windows share one bias, as if w were 1.
            grid: rows and columns of the N tokens, if they may be fewer than those of a window.
        """
        bias_wANN = self._bias(grid or self.window_size)[None]
        if mask is not None:
            bias_wANN = bias_wANN + mask[:, None]
        w, N = len(bias_wANN), tokens_BwND.shape[1]
        # the axes of windows and heads are joined, so that all images share one bias instead of a copy for each
        qkv = self.qkv(tokens_BwND).view(-1, w, N, 3, self.num_heads, tokens_BwND.shape[2] // self.num_heads)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5).flatten(2, 3)
        bias = bias_wANN.flatten(0, 1)
        # CPUs have no fused kernel for the gradient of the bias, and torch's fallback is slower than the code below
        if self.fused_attn and not (bias.is_cpu and bias.requires_grad):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
        else:
            out = (q * self.scale @ k.transpose(-2, -1) + bias).softmax(-1) @ v
        return self.proj(out.unflatten(1, (w, -1)).transpose(2, 3).reshape(tokens_BwND.shape))

    def _bias(self, grid: tuple[int, int]) -> Tensor:
        """Return the relative position bias (A, N, N) for a grid that is no larger than a window."""
        rows, columns = grid
        if not self.relative_positions:
            return self.qkv.weight.new_zeros(1, 1, 1).expand(self.num_heads, rows * columns, rows * columns)
        index = self.relative_position_index.view(*self.window_size, *self.window_size)[:rows, :columns, :rows, :columns]
        return self.relative_position_bias_table[index.reshape(-1)].view(rows * columns, rows * columns, -1).permute(2, 0, 1)


class Block(timm_swin.SwinTransformerBlock):
    """timm's Swin block, for maps of any size. A map no larger than a window is one unshifted window; others are padded to whole windows.

    For every size, the result equals that of timm's block built for that size with the same window.
    """

    input_resolution: tuple[int, int]
    window_size: tuple[int, int]
    attn_mask: Tensor | None

    def __init__(
        self, dim: int, grid: tuple[int, int], num_heads: int, window: int, mlp_ratio: float, qkv_bias: bool, drop_path: float,
        shifted: bool, relative_positions: bool,
    ):  # fmt: skip
        shift = window // 2 if shifted else 0
        super().__init__(
            dim, grid, num_heads, window_size=window, shift_size=shift, mlp_ratio=mlp_ratio, qkv_bias=qkv_bias, drop_path=drop_path
        )
        self.attn = WindowAttention(dim, num_heads, self.window_size, qkv_bias, relative_positions)
        self.dynamic_mask = True  # makes timm call `get_attn_mask` in every pass

    def get_attn_mask(self, x: Tensor | None = None, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor | None:
        """Return timm's attention mask (w, N, N) for a padded, shifted map; for the size that the block was built for, the stored one."""
        rows, columns = (-(-side // window) * window for side, window in zip(self.input_resolution, self.window_size, strict=True))
        if x is not None and x.shape[1:3] == (rows, columns):
            return self.attn_mask
        return super().get_attn_mask(x, device, dtype)

    def _attn(self, x: Tensor) -> Tensor:
        grid = (x.shape[1], x.shape[2])
        if grid[0] <= self.window_size[0] and grid[1] <= self.window_size[1]:
            return self.attn(x.flatten(1, 2), grid=grid).view(x.shape)
        return super()._attn(x)


class Stage(nn.Module):
    """A stage of blocks, every second of which shifts its windows; every stage but the first begins with patch merging."""

    def __init__(self, cfg: config.BackboneConfig, index: int, grid: tuple[int, int], drop_paths: list[float]):
        super().__init__()
        size = config.size_of(cfg)
        dim, num_heads = size.embed_dim * 2**index, size.num_heads * 2**index
        self.downsample = timm_swin.PatchMerging(dim // 2, dim) if index else nn.Identity()
        self.blocks = nn.Sequential(*[
            Block(
                dim, grid, num_heads, cfg.window_size or WINDOW, size.mlp_ratio, size.qkv_bias, drop_path,
                shifted=i % 2 == 1, relative_positions=cfg.relative_positions,
            )
            for i, drop_path in enumerate(drop_paths)
        ])  # fmt: skip

    def forward(self, map_BHWD: Tensor) -> Tensor:
        return self.blocks(self.downsample(map_BHWD))


class Swin(Backbone):
    """The Swin Transformer (Liu et al. 2021) with one to four stages.

    Each stage is an intermediate layer: the output of its blocks, before the next stage's patch merging. If a window is larger than a
    stage's map at images of ``size_px``, it shrinks to the map, together with its table of relative positions, as in timm.
    """

    num_prefix_tokens = 0

    def __init__(self, cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()):
        super().__init__()
        size = config.size_of(cfg)
        self.depths, self.num_layers = size.depths, sum(size.depths)
        self.strides = config.stage_strides_px(cfg)
        self.widths = tuple(size.embed_dim * 2**i for i in range(len(size.depths)))
        self.embed_dim, self.antialias = self.widths[-1], cfg.interpolate_antialias
        self.patch_embed = PatchEmbed(
            size_px, size.patch_size, 3, size.embed_dim, norm_layer=nn.LayerNorm, output_fmt="NHWC", strict_img_size=False
        )
        self.mask_token = nn.Parameter(torch.zeros(1, 1, 1, size.embed_dim)) if "mask" in requires else None
        rates = iter(layers.drop_path_rates(cfg.drop_path, self.num_layers))
        sides = [size_px // stride for stride in self.strides]
        stages = [Stage(cfg, i, (sides[i], sides[i]), [next(rates) for _ in range(n)]) for i, n in enumerate(size.depths)]
        self.layers = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(self.embed_dim)
        layers.init_linear(self, "trunc_normal")
        if self.mask_token is not None:
            trunc_normal_(self.mask_token, std=0.02)

    def embed(self, images_BCHW: Tensor) -> Embedded:
        """Return the map of patch embeddings (B, H, W, D) that the first stage gets."""
        return Embedded(self.patch_embed(images_BCHW), self.grid_of(images_BCHW))

    def forward(
        self, embedded: Embedded, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None, out_indices: tuple[int, ...] = ()
    ) -> Features:
        assert keep_BM is None, "windows need all tokens"
        tokens_BHWD, grid = embedded
        if mask_BN is not None:
            assert self.mask_token is not None, "the objective's config must require mask"
            (rows, columns), side = grid, self.strides[-1] // self.strides[0]  # patches per side of an output token
            hidden = mask_BN.view(-1, rows, 1, columns, 1).expand(-1, rows, side, columns, side)
            hidden_BHW1 = hidden.reshape(-1, rows * side, columns * side, 1)
            tokens_BHWD = torch.where(hidden_BHW1, self.mask_token.to(tokens_BHWD.dtype), tokens_BHWD)
        intermediates = {}
        for i, stage in enumerate(self.layers):
            tokens_BHWD = stage(tokens_BHWD)
            if i in out_indices:
                intermediates[i] = Features.split(tokens_BHWD.flatten(1, 2), 0, 0, (tokens_BHWD.shape[1], tokens_BHWD.shape[2]))
        return Features.split(self.norm(tokens_BHWD.flatten(1, 2)), 0, 0, grid, intermediates=intermediates)

    def layer_id(self, name: str) -> int:
        """Return 0 for the patch embedding and mask token; blocks count from 1 through all stages.

        Patch merging counts with the block after it, as in timm, and the final norm with the heads, as in MAE's code.
        """
        match = re.match(r"layers\.(\d+)\.(?:blocks\.(\d+)|downsample)\.", name)
        if match:
            return sum(self.depths[: int(match[1])]) + int(match[2] or 0) + 1
        return self.num_layers + 1 if name.startswith("norm.") else 0

    def convert_state_dict(self, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Resize tables of relative positions to this model's windows, and replace the names of the authors' files by timm's.

        In the authors' files, patch merging belongs to the stage before it, and there are also index and mask buffers.
        """
        # at most four digits, since Python refuses to convert a number of 5,000
        merging = re.compile(rf"{re.escape(prefix)}layers\.(\d{{1,4}})\.downsample\.")
        from_authors = f"{prefix}layers.0.downsample.norm.weight" in state
        current, converted = {f"{prefix}{name}": value for name, value in self.state_dict().items()}, {}
        for name, value in state.items():
            if name.startswith(prefix) and name.endswith(("relative_position_index", "attn_mask")):
                continue
            if from_authors:
                name = merging.sub(lambda match: f"{prefix}layers.{int(match[1]) + 1}.downsample.", name)
            if name.endswith("relative_position_bias_table") and name in current:
                value = resize_table(value, len(current[name]), self.antialias)
            converted[name] = value
        return converted


def resize_table(table_LA: Tensor, length: int, antialias: bool) -> Tensor:
    """Resize a square table of relative positions (L, A) to ``length`` rows, by bicubic interpolation."""
    old, new = (math.isqrt(n) for n in (len(table_LA), length))
    return layers.resize_positions(table_LA, (old, old), (new, new), antialias)
