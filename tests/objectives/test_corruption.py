"""Corrupted blocks: against a slow loop that adds one after the other, and the statistics of GMML's code."""

from __future__ import annotations

import pytest
import torch

from vitssl.config.objectives.gmml import MOST_BLOCKS, Cells, GmmlConfig
from vitssl.objectives.corruption import (
    Blocks,
    copy_blocks,
    cover_area,
    draw_blocks,
    draw_other,
    first_cover,
    replacement,
    upsample_cells,
)

PIXELS, PATCHES = Cells(224, 1, 67), Cells(14, 16, 67)


def slow_union(blocks: Blocks, image: int, area: float, count: int) -> torch.Tensor:
    """The mask of one image: block after block, until it covers the area."""
    mask = torch.zeros(count, count, dtype=torch.bool)
    for s in range(blocks.top_RS.shape[1]):
        top, bottom, left, right = (int(edge_RS[image, s]) for edge_RS in blocks)
        mask[top:bottom, left:right] = True
        if mask.sum() >= area * count**2:
            return mask
    return torch.ones_like(mask)


@pytest.mark.parametrize("cells", [PATCHES, Cells(40, 1, 12), Cells(8, 4, 9), Cells(1, 4, 5)], ids=str)
@pytest.mark.parametrize("area", [0.0, 0.3, 0.75, 0.97, 1.0])
def test_the_union_grows_block_by_block(cells, area):
    torch.manual_seed(0)
    blocks = draw_blocks(6, 70, cells)
    masks, _ = cover_area(blocks, torch.full((6,), area), cells.count)
    for image, mask in enumerate(masks):
        assert torch.equal(mask, slow_union(blocks, image, area, cells.count))


def test_images_have_areas_of_their_own():
    torch.manual_seed(0)
    blocks, area_R = draw_blocks(5, 90, PATCHES), torch.linspace(0.1, 0.8, 5)
    masks, _ = cover_area(blocks, area_R, 14)
    assert all(torch.equal(masks[i], slow_union(blocks, i, float(area_R[i]), 14)) for i in range(5))


@pytest.mark.parametrize("S", [240, MOST_BLOCKS])
def test_as_many_blocks_as_there_are_exponents(S):
    """One cell each, along a diagonal: cell (s, s) is first covered by block s, all others by none."""
    start_RS = torch.arange(S)[None]
    first_HW = first_cover(Blocks(start_RS, start_RS + 1, start_RS, start_RS + 1), S)[0]
    assert torch.equal(first_HW.diagonal(), start_RS[0].int())
    assert (first_HW.fill_diagonal_(S) == S).all()


SIZES = [(224, 1, 0.15), (224, 16, 0.1), (32, 8, 0.3), (64, 16, 0.3), (96, 32, 0.3), (32, 4, 0.3), (8, 1, 0.3), (384, 16, 0.3)]


@pytest.mark.parametrize(("size_px", "px", "max_side"), SIZES)
def test_images_of_any_size_are_covered_as_asked_and_not_whole(size_px, px, max_side):
    torch.manual_seed(0)
    cells = GmmlConfig(align="patch", max_side=max_side).cells(size_px, px)
    R = 20 if cells.count > 100 else 400
    area_R = 0.5 + 0.25 * torch.rand(R)
    share_R = cover_area(draw_blocks(R, cells.enough_blocks(0.75), cells), area_R, cells.count)[0].float().mean((1, 2))
    assert (share_R >= area_R - 1e-6).all() and (share_R < 1).float().mean() > 0.99
    assert share_R.mean().item() == pytest.approx(0.63, abs=0.03 + 0.5 / cells.count)


@pytest.mark.parametrize(
    ("cells", "area", "mean", "blocks"),
    [(PIXELS, (0.5, 0.75), 0.63, 60), (PATCHES, (0.5, 0.75), 0.64, 34), (PIXELS, (0.3, 0.3), 0.313, 21), (PATCHES, (0.3, 0.3), 0.317, 12)],
)
def test_statistics_of_gmmls_code(cells, area, mean, blocks):
    """What was simulated with its procedure: the covered share of noise (p = 0.75) and of alien blocks (0.3), and their number."""
    torch.manual_seed(0)
    R = 2000 if cells is PATCHES else 300
    num_blocks = cells.enough_blocks(area[1])
    drawn = draw_blocks(R, num_blocks, cells)
    area_R = area[0] + (area[1] - area[0]) * torch.rand(R)
    masks, first_RHW = cover_area(drawn, area_R, cells.count)
    share_R = masks.float().mean((1, 2))
    assert (share_R >= area_R - 1e-6).all() and (share_R < 1).all(), "enough blocks were drawn for every image"
    assert share_R.mean().item() == pytest.approx(mean, abs=0.01)
    if area[0] < area[1]:
        assert share_R.std().item() == pytest.approx(0.07, abs=0.01)
    # the number of blocks: the last cell that was needed belongs to the last one
    assert (first_RHW.masked_fill(~masks, -1).amax((1, 2)) + 1).float().mean().item() == pytest.approx(blocks, rel=0.1)


def test_no_block_begins_in_the_last_row_of_patches():
    """As in the code: 0.38 of the first row, 0.52 of the last one and 0.73 of the centre are covered."""
    torch.manual_seed(0)
    area_R = 0.5 + 0.25 * torch.rand(4000)
    share_HW = cover_area(draw_blocks(4000, PATCHES.enough_blocks(0.75), PATCHES), area_R, 14)[0].float().mean(0)
    assert [share_HW[row].mean().item() for row in (0, 13)] == pytest.approx([0.38, 0.52], abs=0.02)
    assert share_HW[6:8, 6:8].mean().item() == pytest.approx(0.73, abs=0.02)


def test_sides_are_cut_at_the_edge_and_rounded_to_even_numbers_of_patches():
    blocks = draw_blocks(500, 40, PATCHES)
    height_RS = blocks.bottom_RS - blocks.top_RS
    assert blocks.bottom_RS.max() == 14 and blocks.top_RS.max() == 12
    inside = height_RS[blocks.top_RS <= 8]
    # 16 to 66 pixels, uniformly: 8 of 51 round to one patch (up to 23), 17 to two (24 to 40), 15 to three (41 to 55), 11 to four
    shares = inside.bincount(minlength=5)[1:] / len(inside)
    assert shares.tolist() == pytest.approx([8 / 51, 17 / 51, 15 / 51, 11 / 51], abs=0.02)


def test_another_image_is_never_the_same_one_in_another_crop():
    other_R = torch.stack([draw_other(12, 4) for _ in range(300)])
    row_R = torch.arange(12)
    assert ((other_R % 4) != row_R % 4).all() and (other_R // 4 == row_R // 4).all()
    assert all(len(column.unique()) == 3 for column in other_R.T), "each of the three others comes"


@pytest.mark.parametrize("px", [1, 2])
def test_each_block_shows_another_place_of_its_image(px):
    """Compared block by block: one square of the image, of as many places as there are, moved as a whole by whole cells."""
    torch.manual_seed(0)
    cells = Cells(8, px, 3 * px)
    place = torch.arange(8.0 * px)
    images = torch.stack(torch.meshgrid(place, place, indexing="ij")).expand(300, 2, -1, -1)  # of every pixel its row and its column
    blocks = draw_blocks(300, 60, cells)
    mask, block_RHW = cover_area(blocks, torch.full((300,), 0.3), 8)
    moved, offsets = copy_blocks(images, blocks, block_RHW, px) - images, set()
    for by, own, shown in zip(moved, upsample_cells(block_RHW, px), upsample_cells(mask, px), strict=True):
        for block in own[shown].unique():
            (offset,) = by[:, (own == block) & shown].unique(dim=1).T.int().tolist()  # all of a block comes from one place
            offsets.add(tuple(offset))
    assert len(offsets) > 40 and all(dy % px == dx % px == 0 for dy, dx in offsets)


def test_every_image_gets_its_kind():
    torch.manual_seed(0)
    images = torch.randn(400, 3, 8, 8)
    kind_R = torch.arange(400) % 4
    result = replacement(("noise", "zeros", "alien", "copy"), kind_R, images, 400, lambda: images + 9)
    noise, zeros, alien, copy = (result[kind_R == kind] for kind in range(4))
    assert noise.mean().abs() < 0.03 and noise.std().item() == pytest.approx(1, abs=0.03)
    assert (zeros == 0).all()
    assert all((image == images).flatten(1).all(1).sum() == 1 for image in alien[:20])
    assert torch.equal(copy, images[kind_R == 3] + 9)
