"""Named views of a batch, made on the device: crop, flip, colour, normalise, erase, mix.

Shapes: B images of the slice, V copies of a view, C channels, H W source pixels, S output pixels per side, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from vitssl.config import ConfigError, View
from vitssl.data.augment import Touch, color_touches, parse
from vitssl.data.batch import Batch, RawBatch
from vitssl.data.draws import Draws
from vitssl.data.mix import erase, erased_boxes, mix, one_hot
from vitssl.data.resample import LEVELS, Window, resample

CHUNK_FLOATS = {"cpu": 8 * 3 * 224 * 224, "cuda": 256 * 3 * 224 * 224}  # worked on at a time; a CPU's cache is small


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
    corner_B2, crop_B2, resized_B2, offset_B2 = nothing_B2, sizes_B2, np.full_like(sizes_B2, out_px), nothing_B2
    if view.crop == "random_resized":
        corner_B2, crop_B2 = random_resized(view, draws, sizes_B2)
    elif view.crop == "pad":
        resized_B2 = short_side(sizes_B2, out_px)
        offset_B2 = np.floor(draws.uniform("crop/place", 2) * (resized_B2 - out_px + 2 * view.pad_px + 1)).astype(int) - view.pad_px
    flip_B2 = np.stack([nothing_B2[:, 0], draws.uniform("flip") < view.hflip], axis=1)
    return _windows(corner_B2, crop_B2, resized_B2, offset_B2, flip_B2)


def _windows(*fields_B2: np.ndarray) -> tuple[Window, Window]:
    rows, columns = (Window(*(values[:, axis] for values in fields_B2)) for axis in (0, 1))
    return rows, columns


def short_side(sizes_B2: np.ndarray, px: int) -> np.ndarray:
    """Sizes after torchvision's Resize of the short side; the long side is cut to whole pixels."""
    return px * sizes_B2 // sizes_B2.min(axis=1, keepdims=True)


def centre_windows(out_px: int, crop_share: float, sizes_B2: np.ndarray) -> tuple[Window, Window]:
    """Resize the short side to ``out_px / crop_share``, cut out the centre: torchvision's Resize and CenterCrop, with their rounding."""
    resized_B2 = short_side(sizes_B2, int(out_px / crop_share))
    offset_B2 = np.rint((resized_B2 - out_px) / 2).astype(int)
    nothing_B2 = np.zeros_like(sizes_B2)
    return _windows(nothing_B2, sizes_B2, resized_B2, offset_B2, nothing_B2)


def _chunks(images_BCHW: Tensor, copies: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Rows of the output, and the images that they show, so few that the working set stays small."""
    B, C, H, W = images_BCHW.shape
    step = max(1, CHUNK_FLOATS[images_BCHW.device.type] // (C * max(side * side, H * W)))
    for first in range(0, copies * B, B):
        for start in range(0, B, step):
            stop = min(start + step, B)
            yield slice(first + start, first + stop), slice(start, stop)


# --------------------------------------------------------------------------------------------------------------- views


class _Normalize:
    """[0, 255] to zero mean and unit variance, per channel, in place."""

    def __init__(self, mean: list[float], std: list[float], device: torch.device):
        self._mean_C11 = torch.tensor(mean, device=device)[:, None, None] * LEVELS
        self._inverse_std_C11 = 1 / (torch.tensor(std, device=device)[:, None, None] * LEVELS)

    def __call__(self, images_BCSS: Tensor) -> None:
        images_BCSS.sub_(self._mean_C11).mul_(self._inverse_std_C11)


def _on_device(raw: RawBatch, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(values.to(device, non_blocking=True) for values in (raw.images_BCHW, raw.labels_B, raw.index_B))


def _resample(images_BCHW: Tensor, rows: Window, columns: Window, interpolation: str, out_BCSS: Tensor) -> Tensor:
    """``resample`` without the source pixels that no image needs."""
    (top, rows), (left, columns) = (_tight(window) for window in (rows, columns))
    bottom, right = (int((window.start + window.length).max()) for window in (rows, columns))
    return resample(images_BCHW[:, :, top : top + bottom, left : left + right], rows, columns, interpolation, out_BCSS)


def _tight(window: Window) -> tuple[int, Window]:
    first = int(window.start.min())
    return first, window._replace(start=window.start - first)


class TrainViews:
    """Make a Run's views.

    Args:
        views: by name, ``config.views_of(run)``.
        image_size: pixels, of views without a ``size``.
        mean, std: RGB in [0, 1] units.
        num_classes: of the targets' rows, where mixup or cutmix is on.
        seed: of all random numbers.
        device: where the views are made.

    Raises:
        ConfigError: an ``auto_augment`` that does not exist, a ``pad_px`` that is not less than the view's size.
    """

    def __init__(
        self, views: dict[str, View], *, image_size: int, mean: list[float], std: list[float], num_classes: int, seed: int,
        device: torch.device,
    ):  # fmt: skip
        self._views, self._image_size, self._num_classes, self._seed, self._device = views, image_size, num_classes, seed, device
        self._policies = {name: parse(view.auto_augment, f"data.views.{name}.") for name, view in views.items() if view.auto_augment}
        for name, view in views.items():
            if view.crop == "pad" and view.pad_px >= (view.size or image_size):
                raise ConfigError(f"{view.pad_px} pixels cannot be reflected from a view that is no larger", f"data.views.{name}.pad_px")
        self._normalize = _Normalize(mean, std, device)
        self._fill_C = (torch.tensor(mean, device=device) * LEVELS).round()

    def __call__(self, raw: RawBatch) -> Batch:
        """All views of a slice; targets are int64 (V * B,), or float (V * B, K) where mixup or cutmix is on."""
        images_BCHW, labels_B, index_B = _on_device(raw, self._device)
        batch = Batch({}, {}, index_B, raw.labelled)
        for name, view in self._views.items():
            draws = Draws(self._seed, name, view.count, raw)
            made, targets = self._make(name, view, draws, images_BCHW, raw.sizes_B2.numpy()), labels_B.repeat(view.count)
            if view.erasing_prob > 0:
                boxes = erased_boxes(view, draws, made.shape[-1])
                erase(made, boxes, view.erasing_mode, draws.device_generator("erasing/noise", self._device))
            if view.mixup_alpha > 0 or view.cutmix_alpha > 0:
                targets = mix(view, made, one_hot(targets, self._num_classes), draws.generator("mix"))
            batch.views[name], batch.targets[name] = made, targets
        return batch

    def _make(self, name: str, view: View, draws: Draws, images_BCHW: Tensor, sizes_B2: np.ndarray) -> Tensor:
        """Crop, colour and normalise, a chunk at a time."""
        px = view.size or self._image_size
        rows, columns = crop_windows(view, px, draws, np.tile(sizes_B2, (view.count, 1)))
        touches = self._touches(name, view, draws, px)
        made = torch.empty(view.count * len(images_BCHW), 3, px, px, device=self._device)
        for part, source in _chunks(images_BCHW, view.count, px):
            pixels = _resample(images_BCHW[source], rows.take(part), columns.take(part), view.interpolation, made[part])
            for touch in touches:
                touch.apply(pixels, part)
            self._normalize(pixels)
        return made

    def _touches(self, name: str, view: View, draws: Draws, px: int) -> list[Touch]:
        policy = self._policies.get(name)
        geometry_and_color = policy.draw(draws).touches(px, self._fill_C, view.auto_augment_interpolation) if policy else ()
        return [*geometry_and_color, *color_touches(view, draws)]


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
        images_BCHW, labels_B, index_B = _on_device(raw, self._device)
        px = self._image_size
        rows, columns = centre_windows(px, self._eval_crop, raw.sizes_B2.numpy())
        made = torch.empty(len(images_BCHW), 3, px, px, device=self._device)
        for part, source in _chunks(images_BCHW, 1, px):
            self._normalize(_resample(images_BCHW[source], rows.take(part), columns.take(part), "bicubic", made[part]))
        return Batch({"main": made}, {"main": labels_B}, index_B, raw.labelled)
