"""Resized crops and warps equal Pillow's, whatever surrounds them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from vitssl.views import resample as resampling
from vitssl.views.resample import Window, bicubic, bilinear, matrices, warp

PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def photo(height: int, width: int, which: int = 0) -> Image.Image:
    return Image.fromarray(load_sample_images().images[which]).resize((width, height), Image.Resampling.BICUBIC)


def tensor(*images: Image.Image, around: int = 0) -> torch.Tensor:
    """Images stacked on a canvas that is larger than any of them."""
    height, width = max(i.height for i in images) + 3, max(i.width for i in images) + 5
    canvas = torch.full((len(images), 3, height, width), around, dtype=torch.uint8)
    for k, image in enumerate(images):
        canvas[k, :, : image.height, : image.width] = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return canvas


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def window(start, length, resized, offset=0, flip=False) -> Window:
    return Window(*np.broadcast_arrays(*(np.atleast_1d(v) for v in (start, length, resized, offset, flip))))


def resample(images: torch.Tensor, rows: Window, columns: Window, side: int, interpolation: str) -> torch.Tensor:
    return resampling.resample(images, rows, columns, interpolation, torch.full((len(images), 3, side, side), torch.nan))


def test_kernels_at_known_places():
    places = torch.tensor([0.0, 0.5, -0.5, 1.0, 1.5, 2.0, 3.0])
    assert bilinear(places).tolist() == [1, 0.5, 0.5, 0, 0, 0, 0]
    assert bicubic(places).tolist() == [1, 0.5625, 0.5625, 0, -0.0625, 0, 0]  # Keys (1981) with a = -1/2


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width", "side"), [(32, 32, 224), (60, 41, 48), (213, 320, 32)])
def test_resized_crops_equal_pillow(height, width, side, interpolation):
    rng = np.random.default_rng(height)
    image = photo(height, width)
    for _ in range(4):
        h, w = rng.integers(3, (height, width), endpoint=True)
        top, left = rng.integers(0, (height - h, width - w), endpoint=True)
        ours = resample(tensor(image), window(top, h, side), window(left, w, side), side, interpolation)[0]
        theirs = image.crop((left, top, left + w, top + h)).resize((side, side), PILLOW[interpolation])
        assert (ours - pixels(theirs)).abs().max() <= 1
        assert (ours == ours.round()).all()


def test_images_of_a_ragged_batch_do_not_see_the_padding_or_each_other():
    images = [photo(32, 48), photo(80, 20, which=1), photo(9, 70)]
    heights, widths = np.array([i.height for i in images]), np.array([i.width for i in images])
    rows, columns = window(0, heights, 40), window(0, widths, 40)
    batch = resample(tensor(*images), rows, columns, 40, "bicubic")
    assert torch.equal(batch, resample(tensor(*images, around=255), rows, columns, 40, "bicubic"))
    for k, image in enumerate(images):
        assert (batch[k] - pixels(image.resize((40, 40), PILLOW["bicubic"]))).abs().max() <= 1


def test_flip_mirrors_the_crop():
    image = tensor(photo(32, 48))
    plain = resample(image, window(4, 20, 24), window(10, 30, 24), 24, "bicubic")
    flipped = resample(image, window(4, 20, 24), window(10, 30, 24, flip=True), 24, "bicubic")
    assert torch.equal(flipped, plain.flip(-1))


def test_offset_is_a_reflect_padded_crop_of_the_resized_image():
    image = photo(30, 30)
    resized = np.pad(np.array(image.resize((40, 40), PILLOW["bicubic"])), ((4, 4), (4, 4), (0, 0)), mode="reflect")
    ours = resample(tensor(image), window(0, 30, 40, offset=-3), window(0, 30, 40, offset=4), 40, "bicubic")[0]
    theirs = torch.from_numpy(resized[1:41, 8:48]).permute(2, 0, 1)
    assert (ours - theirs).abs().max() <= 1


def test_every_output_pixel_is_a_weighted_mean_of_the_window_only():
    weights = matrices(window([2, 0], [5, 20], [12, 7], [-2, 0]), 25, 7, "bicubic", torch.device("cpu"))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 7))
    assert (weights[0, :, :2] == 0).all() and (weights[0, :, 7:] == 0).all() and (weights[1, :, 20:] == 0).all()


def warped(image: Image.Image, affine: np.ndarray, interpolation: str, fill=(10, 200, 90)) -> tuple[torch.Tensor, torch.Tensor]:
    """Ours and Pillow's."""
    ours = warp(pixels(image)[None], torch.tensor(affine[None], dtype=torch.float32), torch.tensor(fill).float(), interpolation)[0]
    return ours, pixels(image.transform(image.size, Image.Transform.AFFINE, affine.ravel(), PILLOW[interpolation], fillcolor=fill))


def affine(seed: int) -> np.ndarray:
    return np.array([[1, 0, 0], [0, 1, 0]]) + np.random.default_rng(seed).normal(size=(2, 3)) * [0.3, 0.3, 8]


@pytest.mark.parametrize("seed", range(4))
def test_bilinear_warp_equals_pillow(seed):
    ours, theirs = warped(photo(64, 64), affine(seed), "bilinear")
    assert (ours - theirs).abs().max() <= 1
    assert 0 < (theirs == torch.tensor([10, 200, 90])[:, None, None]).all(0).float().mean() < 0.9  # some fill, and some image


@pytest.mark.parametrize("seed", range(4))
def test_bicubic_warp_is_near_pillows(seed):
    """Torch's cubic is a = -3/4, Pillow's a = -1: they are the same where pixels are hit, and apart by some levels between them."""
    ours, theirs = warped(photo(64, 64), affine(seed), "bicubic")
    bilinear, _ = warped(photo(64, 64), affine(seed), "bilinear")
    assert (ours - theirs).abs().mean() < 1.5 and (ours - theirs).abs().mean() < 0.5 * (bilinear - theirs).abs().mean()
    assert (ours == ours.round()).all() and ours.min() >= 0 and ours.max() <= 255
    fill = torch.tensor([10, 200, 90])[:, None, None]
    assert torch.equal((ours == fill).all(0), (theirs == fill).all(0))


def test_bicubic_warp_by_whole_pixels_moves_and_by_half_a_pixel_sharpens():
    edge = Image.fromarray(np.repeat([[0] * 8 + [200] * 8], 16, axis=0).astype(np.uint8)).convert("RGB")
    moved, _ = warped(edge, np.array([[1, 0, 3], [0, 1, 0]]), "bicubic")
    assert torch.equal(moved[:, :, :13], pixels(edge)[:, :, 3:]) and (moved[0, :, 13:] == 10).all()
    half, theirs = warped(edge, np.array([[1, 0, 0.5], [0, 1, 0]]), "bicubic")
    a = torch.tensor([-0.75, -1.0]) / 8 * 200  # what the outer taps of Keys' cubic add, halfway
    assert half[0, 0, 6:9].tolist() == [0, 100, int(200 - a[0])] and theirs[0, 0, 6:9].tolist() == [0, 100, 200 - a[1]]
