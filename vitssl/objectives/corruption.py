"""Group masking, which replaces blocks of an image by something alien (GMML, Atito et al. 2022, section 2.2).

Shapes: R views of B images, crop by crop; S blocks of an image; H x W cells of an image, each a pixel or a patch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vitssl.config.objectives.gmml import MOST_BLOCKS, Cells

NOISE, ZEROS, ALIEN, COPY = KINDS = ("noise", "zeros", "alien", "copy")
WORD_BITS = 24  # bits of a float32's significand


class Blocks(NamedTuple):
    """Rectangles of cells: rows from ``top`` to before ``bottom``, columns from ``left`` to before ``right``."""

    top_RS: Tensor
    bottom_RS: Tensor
    left_RS: Tensor
    right_RS: Tensor


def draw_blocks(num_images: int, num_blocks: int, cells: Cells, device: torch.device | None = None) -> Blocks:
    """Draw rectangles as GMML's code does.

    Starts are uniform over ``cells.starts``. Lengths are uniform in pixels, cut at the image's edge and rounded to cells (halves to even
    numbers).
    """

    def interval() -> tuple[Tensor, Tensor]:
        start_RS = torch.randint(cells.starts, (num_images, num_blocks), device=device)
        side_RS = torch.randint(cells.px, cells.max_side_px, (num_images, num_blocks), device=device)
        length_RS = torch.minimum(side_RS / cells.px, cells.count - start_RS).round().long()
        return start_RS, start_RS + length_RS

    return Blocks(*interval(), *interval())


def first_cover(blocks: Blocks, count: int) -> Tensor:
    """Return the number of the first block that covers each cell, or S if none does, int32 (R, count, count).

    For each row and each column, the blocks that cross it are stored as bits, the first block as the highest bit. The highest bit that a
    row and a column have in common is then the first block that covers their cell, and is read off the exponent of a float. A word has
    24 bits, for 24 blocks, which float32 represents exactly. For more than 240 blocks the exponents need float64.
    """
    R, S = blocks.top_RS.shape
    assert S <= MOST_BLOCKS, f"{S} blocks are more than there are exponents"
    dtype, top_exponent = (torch.float32, 126) if S <= 240 else (torch.float64, 1022)
    device = blocks.top_RS.device
    place = torch.arange(count, device=device)
    value_w1 = (2 ** torch.arange(WORD_BITS, dtype=torch.int32, device=device)).flip(0)[:, None]
    highest_RHW = torch.zeros(R, count, count, dtype=dtype, device=device)
    for start in range(0, S, WORD_BITS):
        top, bottom, left, right = (edge_RS[:, start : start + WORD_BITS, None] for edge_RS in blocks)
        value_s1 = value_w1[: top.shape[1]]
        row_RH = ((top <= place) & (place < bottom)).mul(value_s1).sum(1, dtype=torch.int32)
        column_RW = ((left <= place) & (place < right)).mul(value_s1).sum(1, dtype=torch.int32)
        common_RHW = row_RH[:, :, None] & column_RW[:, None]
        highest_RHW = torch.maximum(highest_RHW, common_RHW.to(dtype) * 2.0 ** (top_exponent + 1 - WORD_BITS - start))
    return torch.where(highest_RHW > 0, top_exponent + 1 - torch.frexp(highest_RHW).exponent, S)


def cover_area(blocks: Blocks, area_R: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the union of each image's first blocks, as many as are needed to cover a share of at least ``area_R``.

    All images are processed together, without reading a value on the host. If the S blocks together cover less, which happens with areas
    of 0.95 and more (`Cells.enough_blocks`), the whole image is covered.

    Args:
        blocks: S blocks of each image.
        area_R: the share of each image to cover, in [0, 1].
        count: number of cells per side of an image.

    Returns:
        The mask, bool (R, count, count), and the first block that covers each cell, as ``first_cover`` returns it.
    """
    R, S = blocks.top_RS.shape
    first_RHW = first_cover(blocks, count)
    first_RX = first_RHW.flatten(1).long()
    covered_RS = (
        torch.zeros(R, S + 1, device=area_R.device).scatter_add(1, first_RX, torch.ones_like(first_RX, dtype=torch.float)).cumsum(1)
    )
    too_few_R = (covered_RS[:, :S] < area_R[:, None] * count**2).sum(1)
    return first_RHW <= too_few_R[:, None, None], first_RHW


def upsample_cells(cells_RHW: Tensor, px: int) -> Tensor:
    """Repeat the value of every cell for its ``px`` x ``px`` pixels, (R, px * H, px * W)."""
    return cells_RHW.repeat_interleave(px, 1).repeat_interleave(px, 2)


def draw_other(num_views: int, num_images: int, device: torch.device | None = None) -> Tensor:
    """Draw for each of R views the index of another image's view in the same crop; with a single image, the index of the view itself."""
    row_R = torch.arange(num_views, device=device)
    image_R = row_R % num_images
    other_R = (image_R + torch.randint(1, max(num_images, 2), (num_views,), device=device)) % num_images
    return row_R - image_R + other_R


def copy_blocks(images_RCHW: Tensor, blocks: Blocks, block_RHW: Tensor, px: int) -> Tensor:
    """Return the images with the content of every block taken from a uniformly drawn position of the same image.

    Pixels that no block covers have no meaning in the result.

    Args:
        images_RCHW: the images.
        blocks: rectangles of cells.
        block_RHW: the block that each cell belongs to.
        px: pixels per side of a cell.
    """
    R, C, H, W = images_RCHW.shape

    def source(start_RS: Tensor, stop_RS: Tensor, cells: int, axis: int) -> Tensor:
        """Return the row (axis 1) or column (axis 2) from which each pixel is copied, (R, H, W)."""
        room_RS = cells - (stop_RS - start_RS) + 1
        shift_RS = (torch.rand(start_RS.shape, device=start_RS.device) * room_RS).long() - start_RS
        shift_RHW = shift_RS.gather(1, block_RHW.flatten(1).long().clamp(max=start_RS.shape[1] - 1)).view_as(block_RHW)
        place = torch.arange(cells * px, device=start_RS.device)
        return (upsample_cells(shift_RHW, px) * px + (place[:, None] if axis == 1 else place)).clamp(0, cells * px - 1)

    y_RHW, x_RHW = source(blocks.top_RS, blocks.bottom_RS, H // px, 1), source(blocks.left_RS, blocks.right_RS, W // px, 2)
    index_RX = (y_RHW * W + x_RHW).flatten(1)
    return images_RCHW.flatten(2).gather(2, index_RX[:, None].expand(R, C, H * W)).view_as(images_RCHW)


def replacement(kinds: tuple[str, ...], kind_R: Tensor, images_RCHW: Tensor, num_images: int, copies: Callable[[], Tensor]) -> Tensor:
    """Return images (R, C, H, W) whose pixels replace those of the blocks.

    Args:
        kinds: those of ``KINDS`` that are on: noise, N(0, 1); zeros; alien, another image of the batch; copy, other positions of the same
            image.
        kind_R: the kind of each image, as an index into ``kinds``.
        images_RCHW: normalised views.
        num_images: number B of images, of which ``images_RCHW`` are the views.
        copies: returns the result of ``copy_blocks``.
    """
    makers = {
        NOISE: lambda: torch.randn_like(images_RCHW),
        ZEROS: lambda: torch.zeros_like(images_RCHW),
        ALIEN: lambda: images_RCHW[draw_other(len(images_RCHW), num_images, images_RCHW.device)],
        COPY: copies,
    }
    result = makers[kinds[0]]()
    for i, kind in enumerate(kinds[1:], start=1):
        result = torch.where((kind_R == i)[:, None, None, None], makers[kind](), result)
    return result
