"""Named views of a batch, computed on the device: crop, flip, colour, normalise, erase, mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from vitssl.config import View
from vitssl.data.loading.batch import Batch, RawBatch
from vitssl.data.pixels.layout import places, shape_of
from vitssl.views.augment import parse
from vitssl.views.color_steps import color_ops
from vitssl.views.crop import centre_windows, crop_windows
from vitssl.views.erase import erase
from vitssl.views.image_op import apply
from vitssl.views.mix import mix, one_hot
from vitssl.views.random import StepRandom
from vitssl.views.resample import LEVELS, Window, resample

MOST_AT_ONCE = {"cpu": 1, "cuda": 8}  # slices
CHUNK_FLOATS = {"cpu": 8 * 3 * 224 * 224, "cuda": 512 * 3 * 224 * 224}  # worked on at a time; a CPU's cache is small


def _chunks(pixels: Tensor, sizes_B2: np.ndarray, copies: int, side: int) -> Iterator[tuple[slice, Tensor]]:
    """Rows of the output, and the images (N, C, H, W) that they show, so few that the working set stays small."""
    B, most = len(sizes_B2), CHUNK_FLOATS[pixels.device.type] // 3
    if pixels.ndim == 1:
        images = list(places(pixels, sizes_B2))
        for first in range(0, copies * B, B):
            for run in _runs(sizes_B2, most, side):
                yield slice(first + run.start, first + run.stop), _padded(images[run])
        return
    length = max(1, most // max(side * side, pixels.shape[2:].numel()))
    at_once = max(1, length // B)  # copies; of one that does not fit a part
    for copy in range(0, copies, at_once):
        count = min(at_once, copies - copy)
        for start in range(0, B, length):
            images_NCHW, first = pixels[start : start + length], copy * B + start
            yield slice(first, first + count * len(images_NCHW)), images_NCHW.repeat(count, 1, 1, 1) if count > 1 else images_NCHW


def _runs(sizes_B2: np.ndarray, most: int, side: int) -> Iterator[slice]:
    """Runs of images that would have no more than ``most`` pixels, padded, or of one."""
    start, height, width = 0, side, side
    for stop, size in enumerate(sizes_B2.tolist()):
        height, width = max(height, size[0]), max(width, size[1])
        if stop > start and (stop + 1 - start) * height * width > most:
            yield slice(start, stop)
            start, height, width = stop, max(side, size[0]), max(side, size[1])
    yield slice(start, len(sizes_B2))


def _padded(images_CHW: list[Tensor]) -> Tensor:
    """(N, C, H, W), zero on the right and below."""
    if len(images_CHW) == 1:
        return images_CHW[0][None]
    height, width = (max(image.shape[axis] for image in images_CHW) for axis in (1, 2))
    padded_NCHW = images_CHW[0].new_zeros(len(images_CHW), 3, height, width)
    for padded_CHW, image_CHW in zip(padded_NCHW, images_CHW, strict=True):
        padded_CHW[:, : image_CHW.shape[1], : image_CHW.shape[2]] = image_CHW
    return padded_NCHW


class _Normalize:
    """[0, 255] to zero mean and unit variance, per channel, in place."""

    def __init__(self, mean: list[float], std: list[float], device: torch.device):
        self._mean_C11 = torch.tensor(mean, device=device)[:, None, None] * LEVELS
        self._inverse_std_C11 = 1 / (torch.tensor(std, device=device)[:, None, None] * LEVELS)

    def __call__(self, images_BCSS: Tensor) -> None:
        images_BCSS.sub_(self._mean_C11).mul_(self._inverse_std_C11)


def _joined(batches: Sequence[Tensor], sizes: Sequence[np.ndarray]) -> Tensor:
    """One batch of the images of several, on their device."""
    if len(batches) == 1:
        return batches[0]
    shape = shape_of(np.concatenate(sizes))
    if len(shape) == 1 or any(pixels.ndim == 1 for pixels in batches):
        return torch.cat([image.flatten() for pixels, sizes_B2 in zip(batches, sizes, strict=True) for image in places(pixels, sizes_B2)])
    if all(pixels.shape[1:] == shape[1:] for pixels in batches):
        return torch.cat(list(batches))
    together = batches[0].new_zeros(shape)
    for part, pixels in zip(together.split([len(pixels) for pixels in batches]), batches, strict=True):
        part[:, :, : pixels.shape[2], : pixels.shape[3]] = pixels
    return together


def _split(view_RCSS: Tensor, count: int, sizes: Sequence[np.ndarray]) -> list[Tensor]:
    """The images of each slice, crop-major, in memory of their own, so that none keeps the others' alive."""
    if len(sizes) == 1:
        return [view_RCSS]
    parts = view_RCSS.unflatten(0, (count, -1)).split([len(sizes_B2) for sizes_B2 in sizes], dim=1)
    return [part.clone(memory_format=torch.contiguous_format).flatten(0, 1) for part in parts]


def _on_device(raw: RawBatch, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(values.to(device, non_blocking=True) for values in (raw.pixels, raw.labels_B, raw.index_B))


def _resample(images_BCHW: Tensor, rows: Window, columns: Window, interpolation: str, out_BCSS: Tensor) -> Tensor:
    """``resample`` without the source pixels that no image needs."""
    top, left = (int(window.start.min()) for window in (rows, columns))
    rows, columns = rows._replace(start=rows.start - top), columns._replace(start=columns.start - left)
    bottom, right = (int((window.start + window.length).max()) for window in (rows, columns))
    return resample(images_BCHW[:, :, top : top + bottom, left : left + right], rows, columns, interpolation, out_BCSS)


class TrainViews:
    """Make a Run's views.

    Args:
        views: by name, ``config.active_views(run)``.
        image_size: pixels, of views without a ``size``.
        mean, std: RGB in [0, 1] units.
        num_classes: of the targets' rows, where mixup or cutmix is on.
        seed: of all random numbers.
        device: where the views are computed.

    Raises:
        ConfigError: an ``auto_augment`` that does not exist.
    """

    def __init__(
        self, views: dict[str, View], *, image_size: int, mean: list[float], std: list[float], num_classes: int, seed: int,
        device: torch.device,
    ):  # fmt: skip
        self._views, self._image_size, self._num_classes, self._seed, self._device = views, image_size, num_classes, seed, device
        self._policies = {name: parse(view.auto_augment, f"data.views.{name}.") for name, view in views.items() if view.auto_augment}
        self._normalize = _Normalize(mean, std, device)
        self._fill_C = (torch.tensor(mean, device=device) * LEVELS).round()

    def __call__(self, raw: RawBatch) -> Batch:
        """All views of a slice; targets are int64 (V * B,), or float (V * B, K) where mixup or cutmix is on."""
        (batch,) = self.of([raw])
        return batch

    def at_once(self, batch_size: int, largest_px: int) -> int:
        """How many slices to make together: on a GPU up to a chunk, since few images take as long to launch as many.

        Args:
            batch_size: images of a slice.
            largest_px: pixels of the largest image, which is uint8 and may have many more than its views.
        """
        of_views = sum(view.count * 3 * (view.size or self._image_size) ** 2 for view in self._views.values())
        floats = batch_size * max(of_views, 3 * largest_px // 4)
        return max(1, min(MOST_AT_ONCE[self._device.type], CHUNK_FLOATS[self._device.type] // floats))

    def of(self, raws: Sequence[RawBatch]) -> list[Batch]:
        """All views of each slice."""
        there = [_on_device(raw, self._device) for raw in raws]
        batches = [Batch({}, {}, index_B, raw.labelled) for raw, (_, _, index_B) in zip(raws, there, strict=True)]
        sizes = [raw.sizes_B2.numpy() for raw in raws]
        pixels, sizes_B2 = _joined([pixels for pixels, _, _ in there], sizes), np.concatenate(sizes)
        for name, view in self._views.items():
            random = StepRandom(self._seed, name, view.count, *raws)
            view_RCSS = self._make(name, view, random, pixels, sizes_B2)
            if view.erasing_prob > 0:
                erase(view_RCSS, view, random)
            parts = _split(view_RCSS, view.count, sizes)
            for batch, raw, (_, labels_B, _), view_BCSS in zip(batches, raws, there, parts, strict=True):
                random = StepRandom(self._seed, name, view.count, raw)
                batch.views[name] = view_BCSS
                batch.targets[name] = self._mixed(view, random, view_BCSS, labels_B.repeat(view.count))
        return batches

    def _mixed(self, view: View, random: StepRandom, view_BCSS: Tensor, targets: Tensor) -> Tensor:
        """Mix a slice's images, in place; gives the targets."""
        if view.mixup_alpha > 0 or view.cutmix_alpha > 0:
            return mix(view, view_BCSS, one_hot(targets, self._num_classes), random.generator("mix"))
        return targets

    def _make(self, name: str, view: View, random: StepRandom, pixels: Tensor, sizes_B2: np.ndarray) -> Tensor:
        """Crop, colour and normalise, a chunk at a time."""
        px = view.size or self._image_size
        rows, columns = crop_windows(view, px, random, np.tile(sizes_B2, (view.count, 1)))
        policy = self._policies.get(name)
        of_policy = policy.sample(random).image_ops(px, self._fill_C, view.auto_augment_interpolation) if policy else ()
        image_ops = [*of_policy, *color_ops(view.color, random)]
        view_BCSS = torch.empty(view.count * len(sizes_B2), 3, px, px, device=self._device)
        for part, images_NCHW in _chunks(pixels, sizes_B2, view.count, px):
            crops_NCSS = _resample(images_NCHW, rows.take(part), columns.take(part), view.interpolation, view_BCSS[part])
            apply(image_ops, crops_NCSS, part)
            self._normalize(crops_NCSS)
        return view_BCSS


class EvalView:
    """Resize, centre crop, normalise: the view ``main`` of an evaluation.

    Args:
        image_size: pixels.
        eval_crop: the short side is resized to ``image_size / eval_crop`` pixels (bicubic).
        mean, std: RGB in [0, 1] units.
        device: where the view is computed.
    """

    def __init__(self, image_size: int, eval_crop: float, mean: list[float], std: list[float], device: torch.device):
        self._image_size, self._eval_crop, self.device = image_size, eval_crop, device
        self._normalize = _Normalize(mean, std, device)

    def __call__(self, raw: RawBatch) -> Batch:
        pixels, labels_B, index_B = _on_device(raw, self.device)
        px = self._image_size
        sizes_B2 = raw.sizes_B2.numpy()
        rows, columns = centre_windows(px, self._eval_crop, sizes_B2)
        view_BCSS = torch.empty(len(sizes_B2), 3, px, px, device=self.device)
        for part, images_NCHW in _chunks(pixels, sizes_B2, 1, px):
            self._normalize(_resample(images_NCHW, rows.take(part), columns.take(part), "bicubic", view_BCSS[part]))
        return Batch({"main": view_BCSS}, {"main": labels_B}, index_B, raw.labelled)
