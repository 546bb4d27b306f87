"""Erasing follows timm's distribution, and fills its boxes and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitssl.config import View
from vitssl.data.loading.batch import RawBatch
from vitssl.views.erase import Boxes, erase_at_once, erase_one_by_one, erased_boxes
from vitssl.views.random import StepRandom

WAYS = (erase_at_once, erase_one_by_one)  # of a GPU and of a CPU


def step_random(images: int) -> StepRandom:
    nothing = torch.zeros(images)
    return StepRandom(0, "main", 1, RawBatch(nothing, nothing, nothing, nothing, 0, slice(0, images), images, 0.0))


def numbered(images: int, side: int = 16) -> torch.Tensor:
    """Image i is all i."""
    return torch.arange(float(images))[:, None, None, None].expand(images, 3, side, side).clone()


def test_erased_boxes_follow_timms_distribution():
    side = 200
    boxes = erased_boxes(View(erasing_prob=0.25), step_random(20_000), side)
    assert len(boxes.image_N) / 20_000 == pytest.approx(0.25, abs=0.01)
    heights, widths = boxes.size_N2.T
    areas, ratios = heights * widths / side**2, heights / widths
    assert 0.019 < areas.min() < 0.021 and 0.32 < areas.max() < 0.335
    assert areas.mean() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.005)  # nearly every first attempt fits
    assert 0.29 < ratios.min() < 0.31 and 3.2 < ratios.max() < 3.45 and np.median(ratios) == pytest.approx(1, abs=0.05)
    assert boxes.corner_N2.min() == 0 and (boxes.corner_N2 + boxes.size_N2).max() == side


def test_erased_boxes_are_as_large_as_asked_for():
    side, scale = 200, [0.1, 0.4]
    boxes = erased_boxes(View(erasing_prob=1.0, erasing_scale=scale), step_random(20_000), side)
    areas = boxes.size_N2.prod(1) / side**2
    assert len(areas) == 20_000 and 0.098 < areas.min() < 0.101 and 0.39 < areas.max() < 0.405
    assert areas.mean() == pytest.approx(0.25, abs=0.01)  # nearly every first attempt fits


def inside(boxes: Boxes, images: int, side: int) -> torch.Tensor:
    """Which pixels are in the boxes, (images, 3, side, side)."""
    mask = torch.zeros(images, 3, side, side, dtype=torch.bool)
    for i, (top, left), (height, width) in zip(*boxes, strict=True):
        mask[i, :, top : top + height, left : left + width] = True
    return mask


@pytest.mark.parametrize("erase", WAYS)
def test_constant_erasing_leaves_the_mean_colour(erase):
    images = numbered(40, side=64) + 1
    boxes = erased_boxes(View(erasing_prob=0.5), step_random(40), 64)
    erase(images, boxes, [len(boxes.image_N)], "const", [torch.Generator()])
    assert torch.equal(images == 0, inside(boxes, 40, 64)) and 0 < (images == 0).sum() < images.numel()


@pytest.mark.parametrize("erase", WAYS)
def test_erasing_fills_the_boxes_with_noise_and_nothing_else(erase):
    images = numbered(40, side=64)
    boxes = erased_boxes(View(erasing_prob=0.5), step_random(40), 64)
    erase(images, boxes, [len(boxes.image_N)], "pixel", [torch.Generator().manual_seed(0)])
    mask = inside(boxes, 40, 64)
    noise = images[mask]
    assert torch.equal(images[~mask], numbered(40, side=64)[~mask])
    assert noise.mean().abs() < 0.02 and noise.std() == pytest.approx(1, abs=0.02) and len(noise.unique()) > 0.9 * len(noise)
