"""Colour operations equal Pillow's and timm's on real and on degenerate images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_sample_images
from timm.data import auto_augment as timm_ops
from torchvision.transforms import functional as tv

from vitssl.views import color

BATCH = 4


def images() -> torch.Tensor:
    """Two photographs, one of them dim; one grey level; two levels of which one is rare. uint8 (4, 3, 48, 48)."""
    photos = [np.array(Image.fromarray(i).resize((48, 48))) for i in load_sample_images().images]
    flat, rare = np.full((48, 48, 3), 77, np.uint8), np.full((48, 48, 3), 30, np.uint8)
    rare[0, 0] = 140
    return torch.from_numpy(np.stack([photos[0], photos[1] // 3 + 20, flat, rare])).permute(0, 3, 1, 2).contiguous()


def one_by_one(operation, *arguments) -> torch.Tensor:
    """``operation(image, argument)`` of Pillow images."""
    pictures = [Image.fromarray(i.permute(1, 2, 0).numpy()) for i in images()]
    results = [operation(picture, *(a[k] for a in arguments)) for k, picture in enumerate(pictures)]
    return torch.from_numpy(np.stack([np.array(r) for r in results])).permute(0, 3, 1, 2).float()


@pytest.mark.parametrize(
    ("ours", "theirs", "argument", "levels"),
    [
        (color.autocontrast, lambda i, _: timm_ops.auto_contrast(i), [0] * BATCH, 1),
        (color.equalize, lambda i, _: timm_ops.equalize(i), [0] * BATCH, 0),
        (color.invert, lambda i, _: timm_ops.invert(i), [0] * BATCH, 0),
        (color.posterize, timm_ops.posterize, [8, 4, 1, 0], 0),
        (color.posterize, timm_ops.posterize, [2, 3, 6, 5], 0),
        (color.solarize, timm_ops.solarize, [0, 128, 77, 256], 0),
        (color.solarize_add, timm_ops.solarize_add, [110, 33, 80, 128], 0),
        (color.color, timm_ops.color, [0.1, 1.0, 1.9, 0.5], 1),
        (color.color, timm_ops.color, [1.7, 0.3, 0.6, 1.2], 1),
        (color.contrast, timm_ops.contrast, [0.1, 1.0, 1.9, 0.5], 1),
        (color.contrast, timm_ops.contrast, [1.6, 0.3, 0.7, 1.2], 1),
        (color.brightness, timm_ops.brightness, [0.1, 1.0, 1.9, 0.5], 1),
        (color.brightness, timm_ops.brightness, [1.63, 0.37, 0.71, 1.23], 1),
        (color.sharpness, timm_ops.sharpness, [0.1, 1.0, 1.9, 0.5], 2),
        (color.sharpness, timm_ops.sharpness, [1.9, 0.0, 0.6, 1.4], 2),
        (color.grayscale, lambda i, _: tv.to_grayscale(i, 3), [0] * BATCH, 1),
    ],
)
def test_operation_equals_pillow(ours, theirs, argument, levels):
    result = ours(images().float(), torch.tensor(argument, dtype=torch.float32))
    reference = one_by_one(theirs, argument)
    assert (result - reference).abs().max() <= levels
    assert (result - reference).abs().mean() < 0.02  # a level is the rare exception
    assert (result == result.round()).all() and result.min() >= 0 and result.max() <= 255


def test_hue_equals_torchvision():
    turns = [0.1, -0.3, 0.5, 0.0]
    ours = color.hue(images().float(), torch.tensor(turns))
    theirs = torch.stack([tv.adjust_hue(i / 255, t) * 255 for i, t in zip(images(), turns, strict=True)])
    assert (ours - theirs).abs().max() <= 0.51  # ours is rounded


def test_blur_is_a_gaussian_renormalised_at_the_border():
    sigma = [0.1, 0.7, 1.3, 2.0]
    ours = color.gaussian_blur(images().float(), torch.tensor(sigma))
    for k, image in enumerate(images().double().numpy()):
        blur = [ndimage.gaussian_filter(a, (0, sigma[k], sigma[k]), mode="constant", truncate=12) for a in (image, np.ones_like(image))]
        assert np.abs(ours[k].numpy() - blur[0] / blur[1]).max() <= 0.51
