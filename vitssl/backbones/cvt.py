"""CvT, the convolutional vision transformer (Wu et al. 2021).

Its stages hold tokens on a shrinking grid. Overlapping convolutions embed the tokens of each stage, and depth-wise convolutions make the
queries, keys and values.

Shapes: N = h * w tokens of a stage's grid, M of them in a pass, P prefix tokens (the cls token, or none).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp, QuickGELU, trunc_normal_
from torch import Tensor, nn

from vitssl import config
from vitssl.backbones import layers, norms
from vitssl.backbones.base import Backbone, Embedded, Features


def build(cfg: config.BackboneConfig, size_px: int, requires: Set[str] = frozenset()) -> CvT:
    return CvT(cfg)


class ChannelNorm(nn.Module):
    """LayerNorm that adds epsilon to the standard deviation, not to the variance, as Drloc's CvT does."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, tokens: Tensor) -> Tensor:
        std, mean = torch.std_mean(layers.upcast(tokens), dim=-1, correction=0, keepdim=True)
        return (tokens - mean) / (std + self.eps) * self.weight + self.bias


class Variant(NamedTuple):
    """The choices in which the public implementations of CvT differ."""

    parts: tuple[str, ...]  # projections; those in one string share a depth-wise convolution
    padding: int  # of the first stage's embedding
    qkv_bias: bool
    cls_token: bool  # with it there is also a norm at the end
    wide_scale: bool  # divide logits by the root of the whole width instead of a head's width
    norm: Callable[[int], nn.Module]
    activation: type[nn.Module]


VARIANTS = {
    "microsoft": Variant(("q", "k", "v"), 2, True, True, True, partial(nn.LayerNorm, eps=1e-5), QuickGELU),
    "drloc": Variant(("q", "kv"), 3, False, False, False, ChannelNorm, nn.GELU),
}


class GridPositions(NamedTuple):
    """The positions of a pass's tokens on a grid."""

    grid: tuple[int, int]  # rows, columns
    index_BM: Tensor | None = None  # positions, counted row by row; None: all of them in this order

    def gather(self, map_BDhw: Tensor) -> Tensor:
        """Return the tokens (B, M, D) of a map at these positions."""
        tokens_BND = map_BDhw.flatten(2).transpose(1, 2)
        return tokens_BND if self.index_BM is None else layers.gather_tokens(tokens_BND, self.index_BM)

    def scatter(self, tokens_BMD: Tensor) -> Tensor:
        """Return the map (B, D, h, w) with the tokens at these positions, and zero elsewhere."""
        if self.index_BM is not None:
            empty = tokens_BMD.new_zeros(len(tokens_BMD), self.grid[0] * self.grid[1], tokens_BMD.shape[2])
            tokens_BMD = layers.scatter_tokens(empty, self.index_BM, tokens_BMD)
        return tokens_BMD.transpose(1, 2).unflatten(2, self.grid)


def fine_positions(keep_BM: Tensor | None, grid: tuple[int, int], factor: int) -> GridPositions:
    """Return the positions that the kept cells of ``grid`` cover on a grid with ``factor`` times as many rows and columns.

    Args:
        keep_BM: the kept cells; None for all.
        grid: rows and columns of the coarse grid.
        factor: by which the fine grid is finer.
    """
    rows, columns = grid[0] * factor, grid[1] * factor
    if keep_BM is None:
        return GridPositions((rows, columns))
    offsets = torch.arange(factor, device=keep_BM.device)
    row_BMf1 = ((keep_BM // grid[1]) * factor)[..., None, None] + offsets[:, None]
    column_BM1f = ((keep_BM % grid[1]) * factor)[..., None, None] + offsets
    return GridPositions((rows, columns), (row_BMf1 * columns + column_BM1f).flatten(1))


def key_positions(keep_BM: Tensor | None, grid: tuple[int, int], factor: int) -> GridPositions:
    """Return the positions of a stage's keys and values: every second row and column of its grid.

    If only some cells are kept, stages before the last one have keys and values only inside them, whose windows together see every token
    of the pass. The last stage has them everywhere: a key there spans several cells, and few windows contain no kept token (0.75 ** 9 =
    8 % at MAE's ratio).

    Args:
        keep_BM: the kept cells of the output's grid; None for all.
        grid: rows and columns of the output.
        factor: how many times as many rows and columns the stage has.
    """
    if factor > 1:
        return fine_positions(keep_BM, grid, factor // 2)
    return GridPositions(((grid[0] + 1) // 2, (grid[1] + 1) // 2))


class ConvEmbed(nn.Module):
    """Embedding of a map into the tokens of a coarser grid, by an overlapping convolution and a norm."""

    def __init__(self, in_dim: int, dim: int, kernel: int, stride: int, padding: int, norm: nn.Module):
        super().__init__()
        self.proj = nn.Conv2d(in_dim, dim, kernel, stride, padding)
        self.norm = norm

    def forward(self, map_BCHW: Tensor, positions: GridPositions) -> Tensor:
        return self.norm(positions.gather(self.proj(map_BCHW)))


class ConvProjection(nn.Module):
    """A depth-wise convolution and a batch norm, whose statistics include only the positions taken, not hidden ones."""

    def __init__(self, dim: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, stride, padding=1, groups=dim, bias=False)
        self.bn = norms.BatchNorm1d(dim)

    def forward(self, map_BDhw: Tensor, positions: GridPositions) -> Tensor:
        tokens_BMD = positions.gather(self.conv(map_BDhw))
        # normalised as a matrix, since torch may compute a wrong gradient for a map of width 1 (see `norms`)
        return self.bn(tokens_BMD.flatten(0, 1)).view(tokens_BMD.shape)


class ConvAttention(nn.Module):
    """Attention whose queries, keys and values are convolutions of the map, with stride 2 for keys and values (section 3.2).

    Prefix tokens bypass the convolutions.
    """

    def __init__(self, dim: int, num_heads: int, num_prefix_tokens: int, variant: Variant):
        super().__init__()
        self.parts, self.num_heads, self.num_prefix_tokens = variant.parts, num_heads, num_prefix_tokens
        self.scale = (dim if variant.wide_scale else dim // num_heads) ** -0.5
        self.fused_attn = True
        for part in self.parts:
            setattr(self, f"conv_proj_{part}", ConvProjection(dim, stride=1 if part == "q" else 2))
            setattr(self, f"proj_{part}", nn.Linear(dim, len(part) * dim, bias=variant.qkv_bias))
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, positions: GridPositions, keys: GridPositions) -> Tensor:
        prefix_BPD, patches_BMD = tokens.tensor_split([self.num_prefix_tokens], dim=1)
        map_BDhw = positions.scatter(patches_BMD)
        qkv = []
        for part in self.parts:
            convolved = getattr(self, f"conv_proj_{part}")(map_BDhw, positions if part == "q" else keys)
            projected = getattr(self, f"proj_{part}")(torch.cat([prefix_BPD, convolved], dim=1))
            qkv += projected.unflatten(2, (len(part), self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()  # each (B, A, P + M, d)
        q, k, v = qkv
        if self.fused_attn:
            out_BAMd = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            out_BAMd = (q * self.scale @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.proj(out_BAMd.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, num_prefix_tokens: int, drop_path: float, variant: Variant):
        super().__init__()
        self.norm1, self.norm2 = variant.norm(dim), variant.norm(dim)
        self.attn = ConvAttention(dim, num_heads, num_prefix_tokens, variant)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), act_layer=variant.activation)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, positions: GridPositions, keys: GridPositions) -> Tensor:
        tokens = tokens + self.drop_path(self.attn(self.norm1(tokens), positions, keys))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


class Stage(nn.Module):
    """An embedding, an optional cls token before the patch tokens, and blocks."""

    def __init__(self, patch_embed: ConvEmbed, blocks: list[Block], cls_token: nn.Parameter | None):
        super().__init__()
        self.patch_embed, self.blocks, self.cls_token = patch_embed, nn.ModuleList(blocks), cls_token

    def forward(self, map_BCHW: Tensor, positions: GridPositions, keys: GridPositions) -> Tensor:
        tokens = self.patch_embed(map_BCHW, positions)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1)
        for block in self.blocks:
            tokens = block(tokens, positions, keys)
        return tokens


class CvT(Backbone):
    """CvT with up to three stages and the authors' parameter names. It has no position embeddings, so it takes any image size.

    ``variant: microsoft`` follows the authors' code. ``drloc`` follows the other implementation, which Drloc's authors trained: no cls
    token, keys and values share a convolution, no norm at the end. Only the last stage has the cls token and drop-path.

    A pass on kept tokens never sees a hidden pixel. Because convolutions overlap, it starts from the image with the hidden cells
    set to zero. In every stage it holds only the tokens of the kept cells, and puts them on a zero map before each convolution,
    as ConvMAE does in its convolutional stages. Before the last stage, hidden cells are not keys either. Otherwise most of the early
    stages' attention would go to constants that occur in no other pass.
    """

    def __init__(self, cfg: config.BackboneConfig):
        super().__init__()
        size, family, variant = config.size_of(cfg), config.FAMILIES["cvt"], VARIANTS[cfg.variant]
        self.depths = size.depths
        self.strides = config.stage_strides_px(cfg)
        factors = family.widths[: len(self.depths)]
        self.widths = tuple(size.embed_dim * factor for factor in factors)
        self.embed_dim, self.num_layers, self.num_prefix_tokens = self.widths[-1], sum(self.depths), int(variant.cls_token)
        for i, factor in enumerate(factors):
            setattr(self, f"stage{i}", self._make_stage(i, size.num_heads * factor, size.mlp_ratio, cfg.drop_path, variant))
        self.norm = variant.norm(self.embed_dim) if variant.cls_token else nn.Identity()
        if cfg.variant == "microsoft":  # Drloc's variant keeps PyTorch's initialisation
            layers.init_linear(self, "trunc_normal")

    def _make_stage(self, i: int, num_heads: int, mlp_ratio: float, drop_path: float, variant: Variant) -> Stage:
        dim, last = self.widths[i], i == len(self.widths) - 1
        shape = (3, dim, 7, 4, variant.padding) if i == 0 else (self.widths[i - 1], dim, 3, 2, 1)
        embed = ConvEmbed(*shape, norm=variant.norm(dim))
        prefix, top_rate = (self.num_prefix_tokens, drop_path) if last else (0, 0.0)
        rates = layers.drop_path_rates(top_rate, self.depths[i])
        blocks = [Block(dim, num_heads, mlp_ratio, prefix, rate, variant) for rate in rates]
        return Stage(embed, blocks, nn.Parameter(trunc_normal_(torch.zeros(1, 1, dim), std=0.02)) if prefix else None)

    def embed(self, images_BCHW: Tensor) -> Embedded:
        """Return the images unchanged, since the input of the first convolution depends on which tokens are kept."""
        return Embedded(images_BCHW, self.grid_of(images_BCHW))

    def forward(
        self, embedded: Embedded, keep_BM: Tensor | None = None, mask_BN: Tensor | None = None, out_indices: tuple[int, ...] = ()
    ) -> Features:
        """Run the stages and the final norm. Intermediate features before the last stage are full maps, zero at hidden positions."""
        assert mask_BN is None, "config lets no objective put a mask token here"
        map_BCHW, (rows, columns) = embedded
        grid = (rows, columns)
        if keep_BM is not None:
            pixels = fine_positions(keep_BM, grid, self.stride)
            map_BCHW = pixels.scatter(pixels.gather(map_BCHW))
        intermediates = {}
        for i, stride in enumerate(self.strides):
            factor = self.stride // stride
            positions = fine_positions(keep_BM, grid, factor)
            tokens = getattr(self, f"stage{i}")(map_BCHW, positions, key_positions(keep_BM, grid, factor))
            if factor > 1:
                map_BCHW = positions.scatter(tokens)
            if i in out_indices:
                intermediates[i] = Features.of_map(map_BCHW) if factor > 1 else Features.split(tokens, self.num_prefix_tokens, 0, grid)
        return Features.split(self.norm(tokens), self.num_prefix_tokens, 0, grid, intermediates=intermediates)

    def layer_id(self, name: str) -> int:
        """Count blocks from 1 through all stages.

        A stage's embedding and cls token have the depth of the block before them, the final norm that of the heads.
        """
        stage = re.match(r"stage(\d)\.(?:blocks\.(\d+)\.)?", name)
        if not stage:
            return self.num_layers + 1
        blocks_before = sum(self.depths[: int(stage[1])])
        return blocks_before if stage[2] is None else blocks_before + int(stage[2]) + 1
