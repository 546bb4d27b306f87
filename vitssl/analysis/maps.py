"""Attention maps of trained transformers as pictures: where the class token and some patches attend to in the last block.

The figures correspond to DINO's, and to LUT's Figures 1b, A and B.

Shapes: h heads, T tokens of the sequence, N patches, Q of them chosen as queries.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vitssl.analysis import pictures
from vitssl.analysis.attention import normalize_rows, recorded, transformer_of
from vitssl.analysis.base import DrawnImages, Numbers
from vitssl.analysis.pictures import Maps
from vitssl.trained import Trained


def measure(trained: Trained, drawn: DrawnImages) -> Numbers:
    """Compute the maps of `query_attention` for every image, with up to three patches on the diagonal as queries."""
    pictures.check(drawn)
    backbone = transformer_of(trained)
    grid = backbone.grid(trained.run.data.image_size)
    queries, last = patches(grid), backbone.num_layers - 1
    images, tokens, heads = [], [], []
    indices = [row * grid[1] + column for row, column in queries]
    with (
        recorded(backbone, [last], lambda map_BhTT: query_attention(map_BhTT, backbone.num_prefix_tokens, grid, indices)) as maps,
        torch.no_grad(),
    ):
        for batch in drawn.batches():
            trained.encode(batch.views["main"])
            images.append(pictures.pixels(trained, batch.views["main"]))
            tokens.append(maps[last][0].cpu())
            heads.append(maps[last][1].cpu())
    cls_maps, *patch_maps = torch.cat(tokens).unbind(1)
    rows = [Maps("class token", cls_maps)]
    rows += [
        Maps(f"patch in row {row + 1}, column {column + 1}", values, place=(row, column), compared=i == 0)
        for i, ((row, column), values) in enumerate(zip(queries, patch_maps, strict=True))
    ]
    rows += [Maps(f"class token, head {i}", values, compared=False) for i, values in enumerate(torch.cat(heads).unbind(1), 1)]
    return pictures.numbers(drawn, np.concatenate(images), grid, rows)


def patches(grid: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the patches chosen as queries: the middle one and those halfway to two corners, without duplicates."""
    rows, columns = grid
    return list(dict.fromkeys((rows * i // 4, columns * i // 4) for i in (2, 1, 3)))


def query_attention(map_BhTT: Tensor, prefix: int, grid: tuple[int, ...], queries: list[int]) -> tuple[Tensor, Tensor]:
    """Return the attention of the class token and of some patches to all patches, as shares of its sum over patches.

    Args:
        map_BhTT: attention, with rows that sum to 1.
        prefix: number of tokens before the patches, the first of which is the class token.
        grid: rows and columns of the patches.
        queries: indices of the patches chosen as queries.

    Returns:
        (B, 1 + Q, N), the class token and the chosen patches, averaged over heads; (B, h, N), the class token for each head.
    """
    rows = [0, *(prefix + number for number in queries)]
    shares_BhQN = normalize_rows(map_BhTT[:, :, rows, prefix : prefix + math.prod(grid)].float())
    return shares_BhQN.mean(1), shares_BhQN[:, :, 0]
