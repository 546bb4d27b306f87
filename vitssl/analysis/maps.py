"""Attention maps of trained transformers as pictures: what the class token and some patches look at in the last block (DINO's figures,
LUT's Figures 1b, A and B).

Shapes: h heads, T tokens of the sequence, N patches, Q of which are asked.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vitssl.analysis import pictures
from vitssl.analysis.attention import recorded, shares, transformer_of
from vitssl.analysis.base import Numbers, Sample
from vitssl.analysis.pictures import Maps
from vitssl.trained import Trained


def measure(trained: Trained, sample: Sample) -> Numbers:
    """Of every image the maps of `of_map`, of three patches on the diagonal."""
    pictures.check(sample)
    backbone = transformer_of(trained)
    grid = backbone.grid(trained.run.data.image_size)
    asked, last = patches(grid), backbone.num_layers - 1
    images, tokens, heads = [], [], []
    numbers = [row * grid[1] + column for row, column in asked]
    with recorded(backbone, [last], lambda map_BhTT: of_map(map_BhTT, backbone.num_prefix_tokens, grid, numbers)) as maps, torch.no_grad():
        for batch in sample.batches():
            trained.encode(batch.views["main"])
            images.append(pictures.pixels(trained, batch.views["main"]))
            tokens.append(maps[last][0].cpu())
            heads.append(maps[last][1].cpu())
    of_cls, *of_patches = torch.cat(tokens).unbind(1)
    rows = [Maps("class token", of_cls)]
    rows += [
        Maps(f"patch in row {row + 1}, column {column + 1}", values, place=(row, column), compared=i == 0)
        for i, ((row, column), values) in enumerate(zip(asked, of_patches, strict=True))
    ]
    rows += [Maps(f"class token, head {i}", values, compared=False) for i, values in enumerate(torch.cat(heads).unbind(1), 1)]
    return pictures.numbers(sample, np.concatenate(images), grid, rows)


def patches(grid: tuple[int, ...]) -> list[tuple[int, int]]:
    """The places that are asked: the middle, and half way from there to two corners; fewer of a small grid."""
    rows, columns = grid
    return list(dict.fromkeys((rows * i // 4, columns * i // 4) for i in (2, 1, 3)))


def of_map(map_BhTT: Tensor, prefix: int, grid: tuple[int, ...], asked: list[int]) -> tuple[Tensor, Tensor]:
    """Attention to patches alone, as shares of their sum.

    Args:
        map_BhTT: rows of sum 1.
        prefix: how many tokens come before the patches, the class token first.
        grid: of the patches.
        asked: numbers of patches.

    Returns:
        (B, 1 + Q, N) of the class token and of these patches, means over heads; (B, h, N) of the class token by each head.
    """
    rows = [0, *(prefix + number for number in asked)]
    shares_BhQN = shares(map_BhTT[:, :, rows, prefix : prefix + math.prod(grid)].float())
    return shares_BhQN.mean(1), shares_BhQN[:, :, 0]
