"""Named views of a batch, made on the device: crop, flip, colour, normalise, erase, mix.

Every random number but the erasing noise is drawn on the CPU for the whole global batch, from a generator keyed by
(seed, view, purpose, step), and then cut to this rank's rows: a view does not depend on the number of ranks, on accumulation, or
on which other augmentation is on, and needs no generator state to resume. Only the partners of mixup and cutmix come from
the slice itself.

Shapes: B images of the slice, V copies of a view, C channels, H W source pixels, S output pixels per side, K classes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.config import View
from vitssl.data.batch import UNLABELLED, Batch, RawBatch
from vitssl.data.resample import LEVELS, Window, resample, to_device

CHUNK_FLOATS = {"cpu": 16 * 3 * 224 * 224, "cuda": 256 * 3 * 224 * 224}  # what is worked on at a time: a CPU's cache is small


class Draws:
    """Random numbers of one view and step, for the copies and rows that a slice of the global batch holds."""

    def __init__(self, seed: int, view: str, count: int, raw: RawBatch):
        self._key, self._count, self._raw = (seed, zlib.crc32(view.encode()), raw.step), count, raw

    def generator(self, purpose: str) -> np.random.Generator:
        """The same for every slice of a global batch."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([*self._key, zlib.crc32(purpose.encode())])))

    def _rows(self, values: np.ndarray) -> np.ndarray:
        return values[:, self._raw.rows].reshape(-1, *values.shape[2:])

    def uniform(self, purpose: str, *shape: int) -> np.ndarray:
        """(V * B, *shape) in [0, 1), crop-major."""
        return self._rows(self.generator(purpose).random((self._count, self._raw.batch_size, *shape)))

    def normal(self, purpose: str, *shape: int) -> np.ndarray:
        """(V * B, *shape), standard normal, crop-major."""
        return self._rows(self.generator(purpose).standard_normal((self._count, self._raw.batch_size, *shape)))


# ---------------------------------------------------------------------------------------------------------------- crop


def random_resized(view: View, draws: Draws, sizes_B2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Upper left corners and sizes (height, width) of the crops, int (B, 2), as torchvision's RandomResizedCrop.

    Ten attempts at an area (uniform) and an aspect ratio (log-uniform); then the largest centred crop within the ratios.
    """
    unit_B10_2 = draws.uniform("crop/shape", 10, 2)
    area_B10 = np.prod(sizes_B2, axis=1)[:, None] * (view.scale[0] + (view.scale[1] - view.scale[0]) * unit_B10_2[..., 0])
    low, high = np.log(view.ratio)
    ratio_B10 = np.exp(low + (high - low) * unit_B10_2[..., 1])
    crop_B10_2 = np.rint(np.stack([np.sqrt(area_B10 / ratio_B10), np.sqrt(area_B10 * ratio_B10)], axis=-1)).astype(int)
    fits_B10 = ((crop_B10_2 > 0) & (crop_B10_2 <= sizes_B2[:, None])).all(-1)
    first_B = fits_B10.argmax(1)
    fits_B1 = fits_B10.any(1)[:, None]
    crop_B2 = np.where(fits_B1, crop_B10_2[np.arange(len(first_B)), first_B], _central(view, sizes_B2))
    corner_B2 = np.floor(draws.uniform("crop/place", 2) * (sizes_B2 - crop_B2 + 1)).astype(int)
    return np.where(fits_B1, corner_B2, (sizes_B2 - crop_B2) // 2), crop_B2


def _central(view: View, sizes_B2: np.ndarray) -> np.ndarray:
    """The largest (height, width) whose aspect ratio is allowed."""
    height_B, width_B = sizes_B2.T
    low, high = view.ratio
    return np.stack([np.minimum(height_B, np.rint(width_B / low)), np.minimum(width_B, np.rint(height_B * high))], axis=1).astype(int)


def crop_windows(view: View, out_px: int, draws: Draws, sizes_B2: np.ndarray) -> tuple[Window, Window]:
    """Windows of the rows and the columns for ``view.crop``, the flip included."""
    nothing_B2 = np.zeros_like(sizes_B2)
    corner_B2, crop_B2, offset_B2 = nothing_B2, sizes_B2, nothing_B2
    if view.crop == "random_resized":
        corner_B2, crop_B2 = random_resized(view, draws, sizes_B2)
    elif view.crop == "pad":
        offset_B2 = np.floor(draws.uniform("crop/place", 2) * (2 * view.pad_px + 1)).astype(int) - view.pad_px
    flip_B2 = nothing_B2.copy()
    flip_B2[:, 1] = draws.uniform("flip") < view.hflip
    resized_B2 = np.full_like(sizes_B2, out_px)
    rows, columns = (Window(*(values[:, axis] for values in (corner_B2, crop_B2, resized_B2, offset_B2, flip_B2))) for axis in (0, 1))
    return rows, columns


def centre_windows(out_px: int, crop_share: float, sizes_B2: np.ndarray) -> tuple[Window, Window]:
    """Resize the short side to ``out_px / crop_share``, cut out the centre: torchvision's Resize and CenterCrop, with their rounding."""
    short_px = int(out_px / crop_share)
    resized_B2 = short_px * sizes_B2 // sizes_B2.min(axis=1, keepdims=True)
    offset_B2 = np.rint((resized_B2 - out_px) / 2).astype(int)
    nothing_B2 = np.zeros_like(sizes_B2)
    rows, columns = (Window(*(values[:, axis] for values in (nothing_B2, sizes_B2, resized_B2, offset_B2, nothing_B2))) for axis in (0, 1))
    return rows, columns


def _chunks(count: int, floats_each: int, device: torch.device) -> Iterator[slice]:
    step = max(1, CHUNK_FLOATS.get(device.type, CHUNK_FLOATS["cuda"]) // floats_each)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


# ----------------------------------------------------------------------------------------------------------------- mix


def one_hot(labels_B: Tensor, num_classes: int) -> Tensor:
    """float (B, K); a row of zeros for an unlabelled image."""
    known_B1 = (labels_B != UNLABELLED)[:, None]
    return F.one_hot(labels_B.clamp(min=0), num_classes) * known_B1.float()


def cutmix_box(share: float, side: int, rng: np.random.Generator) -> tuple[slice, slice]:
    """Rows and columns of a box of about ``share`` of the image around a uniform centre, cut at the borders (CutMix, eq. 2)."""
    half = int(side * np.sqrt(share)) // 2
    centres = rng.integers(0, side, size=2)
    rows, columns = (slice(max(int(c) - half, 0), min(int(c) + half, side)) for c in centres)
    return rows, columns


def mix(view: View, images_BCSS: Tensor, targets_BK: Tensor, rng: np.random.Generator) -> Tensor:
    """Mixup or cutmix in place, as timm's batch mode: one ratio for all, the partner is the flipped slice; gives the targets."""
    cutmix = view.cutmix_alpha > 0 and (view.mixup_alpha == 0 or rng.random() < view.switch_prob)
    alpha = view.cutmix_alpha if cutmix else view.mixup_alpha
    lam = rng.beta(alpha, alpha)
    if rng.random() >= view.mix_prob:
        return targets_BK
    if cutmix:
        side = images_BCSS.shape[-1]
        rows, columns = cutmix_box(1 - lam, side, rng)
        box = images_BCSS[:, :, rows, columns]
        box.copy_(box.flip(0))
        lam = 1 - box.shape[-2] * box.shape[-1] / side**2
    else:
        images_BCSS.lerp_(images_BCSS.flip(0), 1 - lam)
    return targets_BK.lerp(targets_BK.flip(0), 1 - lam)


# --------------------------------------------------------------------------------------------------------------- views


class _Normalize:
    """[0, 255] to zero mean and unit variance, per channel."""

    def __init__(self, mean: list[float], std: list[float], device: torch.device):
        self._mean = torch.tensor(mean, device=device) * LEVELS
        self._variance = (torch.tensor(std, device=device) * LEVELS) ** 2

    def __call__(self, images_BCSS: Tensor) -> Tensor:
        # inference batch norm is the one fused kernel for this, on every device
        return F.batch_norm(images_BCSS, self._mean, self._variance, eps=0.0)


def _resample_slice(images_BCHW: Tensor, sizes_B2: np.ndarray, windows: tuple[Window, Window], part: slice, px: int, how: str) -> Tensor:
    """Some images of a slice, without the padding that none of them needs."""
    height, width = sizes_B2[part].max(axis=0)
    rows, columns = (window.take(part) for window in windows)
    return resample(images_BCHW[part, :, :height, :width], rows, columns, px, how)


class TrainViews:
    """Make a Run's views.

    Args:
        views: by name, ``config.views_of(run)``.
        image_size: pixels, of views without a ``size``.
        mean, std: RGB in [0, 1] units.
        num_classes: of the targets' rows, where mixup or cutmix is on.
        seed: of all random numbers.
        device: where the views are made.
    """

    def __init__(self, views: dict[str, View], *, image_size: int, mean: list[float], std: list[float], num_classes: int, seed: int,
                 device: torch.device):  # fmt: skip
        self._views, self._image_size, self._num_classes, self._seed, self._device = views, image_size, num_classes, seed, device
        self._normalize = _Normalize(mean, std, device)

    def __call__(self, raw: RawBatch) -> Batch:
        """All views of a slice, float32; targets are int64 (V * B,), or float (V * B, K) where mixup or cutmix is on."""
        images_BCHW = raw.images_BCHW.to(self._device, non_blocking=True)
        labels_B = raw.labels_B.to(self._device, non_blocking=True)
        batch = Batch({}, {}, raw.index_B.to(self._device, non_blocking=True), raw.labelled)
        for name, view in self._views.items():
            draws = Draws(self._seed, name, view.count, raw)
            made = self._make(view, draws, images_BCHW, raw.sizes_B2.numpy())
            targets = labels_B.repeat(view.count)
            if view.mixup_alpha > 0 or view.cutmix_alpha > 0:
                targets = mix(view, made, one_hot(targets, self._num_classes), draws.generator("mix"))
            batch.views[name], batch.targets[name] = made, targets
        return batch

    def _make(self, view: View, draws: Draws, images_BCHW: Tensor, sizes_B2: np.ndarray) -> Tensor:
        px = view.size or self._image_size
        B = len(images_BCHW)
        windows = crop_windows(view, px, draws, np.tile(sizes_B2, (view.count, 1)))
        made = torch.empty(view.count * B, 3, px, px, device=self._device)
        for copy in range(view.count):
            own = slice(copy * B, (copy + 1) * B)
            own_windows = tuple(window.take(own) for window in windows)
            for part in _chunks(B, 3 * px * px, self._device):
                pixels = _resample_slice(images_BCHW, sizes_B2, own_windows, part, px, view.interpolation)
                made[own][part] = self._normalize(pixels)
        return made


class EvalView:
    """Resize, centre crop, normalise: the view ``main`` of an evaluation.

    Args:
        image_size: pixels.
        eval_crop: the short side is resized to ``image_size / eval_crop`` pixels (bicubic).
        mean, std: RGB in [0, 1] units.
        device: where the view is made.
    """

    def __init__(self, image_size: int, eval_crop: float, mean: list[float], std: list[float], device: torch.device):
        self._image_size, self._eval_crop, self._device = image_size, eval_crop, device
        self._normalize = _Normalize(mean, std, device)

    def __call__(self, raw: RawBatch) -> Batch:
        images_BCHW = raw.images_BCHW.to(self._device, non_blocking=True)
        sizes_B2, px = raw.sizes_B2.numpy(), self._image_size
        windows = centre_windows(px, self._eval_crop, sizes_B2)
        made = torch.empty(len(images_BCHW), 3, px, px, device=self._device)
        for part in _chunks(len(made), 3 * px * px, self._device):
            made[part] = self._normalize(_resample_slice(images_BCHW, sizes_B2, windows, part, px, "bicubic"))
        labels_B, index_B = (values.to(self._device, non_blocking=True) for values in (raw.labels_B, raw.index_B))
        return Batch({"main": made}, {"main": labels_B}, index_B, raw.labelled)
