"""Group masking: blocks of an image are replaced by something alien (GMML, Atito et al. 2022, section 2.2).

Shapes: R views of B images, crop by crop; S blocks of an image; images are divided into H x W cells, each a pixel or a patch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

NOISE, ZEROS, ALIEN, COPY = KINDS = ("noise", "zeros", "alien", "copy")
WORD_BITS = 24
MOST_BLOCKS = 252


class Cells(NamedTuple):
    """A square image's division into cells, and the sides that blocks may have.

    Attributes:
        count: of cells on a side.
        px: pixels on a cell's side.
        max_side_px: blocks' sides are uniform from ``px`` to less than this, before they are cut at the image's edge.
    """

    count: int
    px: int
    max_side_px: int

    def enough_blocks(self, area: float) -> int:
        """Twice as many blocks as cover that share of an image on average, as far as there is room for so many."""
        starts = range(max(self.count - 1, 1))
        sides = range(self.px, self.max_side_px)
        mean_side = sum(round(min(side / self.px, self.count - start)) for start in starts for side in sides) / len(starts) / len(sides)
        each = (mean_side / self.count) ** 2
        needed = math.log(1 - min(area, 0.95)) / math.log1p(-each) if each < 1 else 1.0
        return min(math.ceil(2 * needed), MOST_BLOCKS)


class Blocks(NamedTuple):
    """Rectangles of cells: rows ``top`` to ``bottom``, columns ``left`` to ``right``, the last ones excluded."""

    top_RS: Tensor
    bottom_RS: Tensor
    left_RS: Tensor
    right_RS: Tensor


def draw_blocks(num_images: int, num_blocks: int, cells: Cells, device: torch.device | None = None) -> Blocks:
    """Rectangles as in GMML's code: the start uniform on the cells but the last of each side, the lengths uniform in pixels, cut at the
    image's edge and rounded to cells, halves to even numbers.
    """

    def interval() -> tuple[Tensor, Tensor]:
        start_RS = torch.randint(max(cells.count - 1, 1), (num_images, num_blocks), device=device)
        side_RS = torch.randint(cells.px, cells.max_side_px, (num_images, num_blocks), device=device)
        length_RS = torch.minimum(side_RS / cells.px, cells.count - start_RS).round().long()
        return start_RS, start_RS + length_RS

    return Blocks(*interval(), *interval())


def first_cover(blocks: Blocks, count: int) -> Tensor:
    """The number of the first block that covers each cell, int32 (R, count, count); S where none does.

    A row and a column each know the blocks that cross them as a set of bits, block s having the value 2**(126 - s): the highest bit that
    the two have in common is the first block that covers their cell, and it is read off the exponent of a float32. A word of bits holds 24
    blocks, which float32 holds exactly.
    """
    R, S = blocks.top_RS.shape
    assert S <= MOST_BLOCKS, f"{S} blocks are more than the exponents of float32"
    device = blocks.top_RS.device
    place = torch.arange(count, device=device)
    value_w1 = (2 ** torch.arange(WORD_BITS, dtype=torch.int32, device=device)).flip(0)[:, None]
    highest_RHW = torch.zeros(R, count, count, device=device)
    for start in range(0, S, WORD_BITS):
        top, bottom, left, right = (edge_RS[:, start : start + WORD_BITS, None] for edge_RS in blocks)
        value_s1 = value_w1[: top.shape[1]]
        row_RH = ((top <= place) & (place < bottom)).mul(value_s1).sum(1, dtype=torch.int32)
        column_RW = ((left <= place) & (place < right)).mul(value_s1).sum(1, dtype=torch.int32)
        common_RHW = row_RH[:, :, None] & column_RW[:, None]
        highest_RHW = torch.maximum(highest_RHW, common_RHW * 2.0 ** (127 - WORD_BITS - start))
    return torch.where(highest_RHW > 0, 127 - torch.frexp(highest_RHW).exponent, S)


def covering_mask(blocks: Blocks, area_R: Tensor, count: int) -> Tensor:
    """The union of each image's first blocks, of as many as it takes to cover a share of at least ``area_R``; bool (R, count, count).

    For all images together, and without a look at a value. Where the S blocks do not cover as much, which happens with areas near 1, the
    whole image is covered.

    Args:
        blocks: S of each image.
        area_R: in [0, 1].
        count: of cells on a side.
    """
    R, S = blocks.top_RS.shape
    first_RHW = first_cover(blocks, count)
    first_RX = first_RHW.flatten(1).long()
    covered_RS = (
        torch.zeros(R, S + 1, device=area_R.device).scatter_add(1, first_RX, torch.ones_like(first_RX, dtype=torch.float)).cumsum(1)
    )
    too_few_R = (covered_RS[:, :S] < area_R[:, None] * count**2).sum(1)
    return first_RHW <= too_few_R[:, None, None]


def draw_other(num_views: int, num_images: int, device: torch.device | None = None) -> Tensor:
    """For each of R views the index of another image's view in the same crop; of the same image where there is one only."""
    row_R = torch.arange(num_views, device=device)
    image_R = row_R % num_images
    other_R = (image_R + torch.randint(1, max(num_images, 2), (num_views,), device=device)) % num_images
    return row_R - image_R + other_R


def moved(images_RCHW: Tensor, px: int) -> Tensor:
    """Each image moved around its edges by a random number of ``px`` pixels down and right, never back to where it was."""
    R, C, H, W = images_RCHW.shape
    device, (rows, columns) = images_RCHW.device, (H // px, W // px)
    # one of all offsets but (0, 0)
    offset_R = torch.randint(1, rows * columns, (R,), device=device)
    y_RH = (torch.arange(H, device=device) + (offset_R // columns * px)[:, None]) % H
    x_RW = (torch.arange(W, device=device) + (offset_R % columns * px)[:, None]) % W
    down = images_RCHW.gather(2, y_RH[:, None, :, None].expand(R, C, H, W))
    return down.gather(3, x_RW[:, None, None, :].expand(R, C, H, W))


def replacement(kinds: tuple[str, ...], kind_R: Tensor, images_RCHW: Tensor, num_images: int, cell_px: int) -> Tensor:
    """What comes in the place of each image's blocks, (R, C, H, W).

    Args:
        kinds: of ``KINDS``: noise, N(0, 1); zeros; alien, another image of the batch; copy, the same image from elsewhere.
        kind_R: index into ``kinds``.
        images_RCHW: normalised.
        num_images: B, of which these are the views.
        cell_px: pixels of a cell's side.
    """
    made = {
        NOISE: lambda: torch.randn_like(images_RCHW),
        ZEROS: lambda: torch.zeros_like(images_RCHW),
        ALIEN: lambda: images_RCHW[draw_other(len(images_RCHW), num_images, images_RCHW.device)],
        COPY: lambda: moved(images_RCHW, cell_px),
    }
    result = made[kinds[0]]()
    for i, kind in enumerate(kinds[1:], start=1):
        result = torch.where((kind_R == i)[:, None, None, None], made[kind](), result)
    return result
