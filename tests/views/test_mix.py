"""Mixup and cutmix against slow loops and known shares."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitssl.config import View
from vitssl.views.mix import cutmix_box, mix, one_hot


def numbered(images: int, side: int = 16) -> torch.Tensor:
    """Image i is all i."""
    return torch.arange(float(images))[:, None, None, None].expand(images, 3, side, side).clone()


def test_one_hot_of_an_unlabelled_image_is_zero():
    assert one_hot(torch.tensor([2, -1, 0]), 3).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_mixup_equals_a_slow_loop():
    view, labels = View(mixup_alpha=0.8), torch.tensor([0, 1, 2, -1, 1])
    images, original = numbered(5), numbered(5)
    targets = mix(view, images, one_hot(labels, 3), np.random.default_rng(4))
    own = np.random.default_rng(4).beta(0.8, 0.8)
    for i, partner in enumerate(reversed(range(5))):
        torch.testing.assert_close(images[i], own * original[i] + (1 - own) * original[partner])
        expected = torch.zeros(3)
        for weight, label in ((own, labels[i]), (1 - own, labels[partner])):
            if label >= 0:
                expected[label] += weight
        torch.testing.assert_close(targets[i], expected)


@pytest.mark.parametrize("seed", range(8))
def test_cutmix_targets_are_shares_of_pixels(seed):
    images = numbered(6)
    targets = mix(View(cutmix_alpha=1.0), images, torch.eye(6), np.random.default_rng(seed))
    for i in range(6):
        assert set(images[i].unique().tolist()) <= {i, 5 - i}
        assert targets[i, i] == pytest.approx((images[i] == i).float().mean().item())
        assert targets[i].sum() == pytest.approx(1)


def test_cutmix_box_has_the_asked_size_unless_it_leaves_the_image():
    rng = np.random.default_rng(0)
    boxes = [cutmix_box(0.25, 100, rng) for _ in range(2000)]
    heights, widths = (np.array([axis.stop - axis.start for axis in axes]) for axes in zip(*boxes, strict=True))
    assert heights.max() == widths.max() == 50
    # an edge cuts it when the centre lies within 25 of a border: half of the time, by a half on average at most
    assert (heights == 50).mean() == pytest.approx(0.5, abs=0.05) and heights.mean() == pytest.approx(50 - 0.5 * 12.5, abs=1)
    assert all(axis.start >= 0 and axis.stop <= 100 for box in boxes for axis in box)


@pytest.mark.parametrize(
    ("view", "mixed", "cut"),
    [
        (View(mixup_alpha=1.0), 1.0, 0.0),
        (View(cutmix_alpha=1.0), 1.0, 1.0),
        (View(mixup_alpha=1.0, cutmix_alpha=1.0, mix_prob=0.6, switch_prob=0.3), 0.6, 0.3),
    ],
)
def test_probabilities(view, mixed, cut):
    rng, steps, counts = np.random.default_rng(0), 600, {"mixed": 0, "cut": 0}
    for _ in range(steps):
        images = numbered(2)
        targets = mix(view, images, torch.eye(2), rng)
        changed = not torch.equal(targets, torch.eye(2))
        counts["mixed"] += changed
        counts["cut"] += changed and set(images.unique().tolist()) <= {0.0, 1.0}
    assert counts["mixed"] / steps == pytest.approx(mixed, abs=0.06)
    assert counts["cut"] / max(counts["mixed"], 1) == pytest.approx(cut, abs=0.06)
