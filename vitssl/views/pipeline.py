"""Named views of a batch, computed on the device: crop, flip, colour, normalise, erase and mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from vitssl.config import View
from vitssl.data.loading.batch import Batch, RawBatch
from vitssl.data.pixels.layout import shape_of, unbind_images
from vitssl.views.augment import parse_policy
from vitssl.views.color_steps import color_ops
from vitssl.views.crop import centre_windows, crop_windows
from vitssl.views.erase import erase
from vitssl.views.image_op import apply
from vitssl.views.mix import mix, one_hot
from vitssl.views.random import StepRandom
from vitssl.views.resample import LEVELS, Window, resample

MOST_AT_ONCE = {"cpu": 1, "cuda": 8}  # slices made together
CHUNK_FLOATS = {"cpu": 8 * 3 * 224 * 224, "cuda": 512 * 3 * 224 * 224}  # numbers processed at a time; a CPU's cache is small


def _chunks(pixels: Tensor, sizes_B2: np.ndarray, copies: int, side: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield chunks of the output, small enough for a small working set: its rows and the images (N, C, H, W) that they show.

    Args:
        pixels: the images of a batch, padded to one size or flat (`vitssl.data.pixels.layout`).
        sizes_B2: height and width of each image.
        copies: how many times the output contains each image, one copy of all images after the other.
        side: pixels per side of the output.
    """
    B, most = len(sizes_B2), CHUNK_FLOATS[pixels.device.type] // 3
    if pixels.ndim == 1:
        images = list(unbind_images(pixels, sizes_B2))
        for first in range(0, copies * B, B):
            for run in _runs(sizes_B2, most, side):
                yield slice(first + run.start, first + run.stop), _padded(images[run])
        return
    length = max(1, most // max(side * side, pixels.shape[2:].numel()))
    copies_at_once = max(1, length // B)  # copies per chunk; if not even one fits, a part of it
    for copy in range(0, copies, copies_at_once):
        count = min(copies_at_once, copies - copy)
        for start in range(0, B, length):
            images_NCHW, first = pixels[start : start + length], copy * B + start
            yield slice(first, first + count * len(images_NCHW)), images_NCHW.repeat(count, 1, 1, 1) if count > 1 else images_NCHW


def _runs(sizes_B2: np.ndarray, most: int, side: int) -> Iterator[slice]:
    """Yield runs of consecutive images that have at most ``most`` pixels when padded to one size; a larger image is a run by itself."""
    start, height, width = 0, side, side
    for stop, size in enumerate(sizes_B2.tolist()):
        height, width = max(height, size[0]), max(width, size[1])
        if stop > start and (stop + 1 - start) * height * width > most:
            yield slice(start, stop)
            start, height, width = stop, max(side, size[0]), max(side, size[1])
    yield slice(start, len(sizes_B2))


def _padded(images_CHW: list[Tensor]) -> Tensor:
    """Stack images into one batch (N, C, H, W), padded with zeros on the right and below."""
    if len(images_CHW) == 1:
        return images_CHW[0][None]
    height, width = (max(image.shape[axis] for image in images_CHW) for axis in (1, 2))
    padded_NCHW = images_CHW[0].new_zeros(len(images_CHW), 3, height, width)
    for padded_CHW, image_CHW in zip(padded_NCHW, images_CHW, strict=True):
        padded_CHW[:, : image_CHW.shape[1], : image_CHW.shape[2]] = image_CHW
    return padded_NCHW


class _Normalize:
    """Normalisation, in place, of pixels in [0, 255] to zero mean and unit variance per channel."""

    def __init__(self, mean: list[float], std: list[float], device: torch.device):
        self._mean_C11 = torch.tensor(mean, device=device)[:, None, None] * LEVELS
        self._inverse_std_C11 = 1 / (torch.tensor(std, device=device)[:, None, None] * LEVELS)

    def __call__(self, images_BCSS: Tensor) -> None:
        images_BCSS.sub_(self._mean_C11).mul_(self._inverse_std_C11)


def _joined(batches: Sequence[Tensor], sizes: Sequence[np.ndarray]) -> Tensor:
    """Join batches of images into one, on their device."""
    if len(batches) == 1:
        return batches[0]
    shape = shape_of(np.concatenate(sizes))
    if len(shape) == 1 or any(pixels.ndim == 1 for pixels in batches):
        return torch.cat(
            [image.flatten() for pixels, sizes_B2 in zip(batches, sizes, strict=True) for image in unbind_images(pixels, sizes_B2)]
        )
    if all(pixels.shape[1:] == shape[1:] for pixels in batches):
        return torch.cat(list(batches))
    joined = batches[0].new_zeros(shape)
    for part, pixels in zip(joined.split([len(pixels) for pixels in batches]), batches, strict=True):
        part[:, :, : pixels.shape[2], : pixels.shape[3]] = pixels
    return joined


def _split(view_RCSS: Tensor, count: int, sizes: Sequence[np.ndarray]) -> list[Tensor]:
    """Split the images of a view by slice, crop-major, and copy them so that no slice keeps the memory of the others alive."""
    if len(sizes) == 1:
        return [view_RCSS]
    parts = view_RCSS.unflatten(0, (count, -1)).split([len(sizes_B2) for sizes_B2 in sizes], dim=1)
    return [part.clone(memory_format=torch.contiguous_format).flatten(0, 1) for part in parts]


def _on_device(raw: RawBatch, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(values.to(device, non_blocking=True) for values in (raw.pixels, raw.labels_B, raw.index_B))


def _resample(images_BCHW: Tensor, rows: Window, columns: Window, interpolation: str, out_BCSS: Tensor) -> Tensor:
    """Call ``resample`` without the source pixels that no image needs."""
    top, left = (int(window.start.min()) for window in (rows, columns))
    rows, columns = rows._replace(start=rows.start - top), columns._replace(start=columns.start - left)
    bottom, right = (int((window.start + window.length).max()) for window in (rows, columns))
    return resample(images_BCHW[:, :, top : top + bottom, left : left + right], rows, columns, interpolation, out_BCSS)


class TrainViews:
    """The training views of a Run.

    Args:
        views: by name, from ``config.active_views(run)``.
        image_size: pixels per side of views without a ``size``.
        mean, std: of the RGB channels, in [0, 1] units.
        num_classes: number of classes, for targets under mixup or cutmix.
        seed: of all random numbers.
        device: where the views are computed.

    Raises:
        ConfigError: an ``auto_augment`` does not exist.
    """

    def __init__(
        self, views: dict[str, View], *, image_size: int, mean: list[float], std: list[float], num_classes: int, seed: int,
        device: torch.device,
    ):  # fmt: skip
        self._views, self._image_size, self._num_classes, self._seed, self._device = views, image_size, num_classes, seed, device
        self._policies = {name: parse_policy(view.auto_augment, f"data.views.{name}.") for name, view in views.items() if view.auto_augment}
        self._normalize = _Normalize(mean, std, device)
        self._fill_C = (torch.tensor(mean, device=device) * LEVELS).round()

    def __call__(self, raw: RawBatch) -> Batch:
        """Make all views of a slice; targets are int64 (V * B,), or float (V * B, K) if mixup or cutmix is on."""
        (batch,) = self.make_batches([raw])
        return batch

    def slices_at_once(self, batch_size: int, largest_px: int) -> int:
        """Return how many slices to make together: on a GPU up to a chunk, since launching costs as much for few images as for many.

        Args:
            batch_size: number of images in a slice.
            largest_px: number of pixels of the largest image, which is uint8 and may have many more than its views.
        """
        view_floats = sum(view.count * 3 * (view.size or self._image_size) ** 2 for view in self._views.values())
        floats = batch_size * max(view_floats, 3 * largest_px // 4)
        return max(1, min(MOST_AT_ONCE[self._device.type], CHUNK_FLOATS[self._device.type] // floats))

    def make_batches(self, raws: Sequence[RawBatch]) -> list[Batch]:
        """Make all views of each slice."""
        on_device = [_on_device(raw, self._device) for raw in raws]
        batches = [Batch({}, {}, index_B, raw.labelled) for raw, (_, _, index_B) in zip(raws, on_device, strict=True)]
        sizes = [raw.sizes_B2.numpy() for raw in raws]
        pixels, sizes_B2 = _joined([pixels for pixels, _, _ in on_device], sizes), np.concatenate(sizes)
        for name, view in self._views.items():
            random = StepRandom(self._seed, name, view.count, *raws)
            view_RCSS = self._make(name, view, random, pixels, sizes_B2)
            if view.erasing_prob > 0:
                erase(view_RCSS, view, random)
            parts = _split(view_RCSS, view.count, sizes)
            for batch, raw, (_, labels_B, _), view_BCSS in zip(batches, raws, on_device, parts, strict=True):
                random = StepRandom(self._seed, name, view.count, raw)
                batch.views[name] = view_BCSS
                batch.targets[name] = self._mixed(view, random, view_BCSS, labels_B.repeat(view.count))
        return batches

    def _mixed(self, view: View, random: StepRandom, view_BCSS: Tensor, targets: Tensor) -> Tensor:
        """Mix the images of a slice in place if the view asks for it, and return the targets."""
        if view.mixup_alpha > 0 or view.cutmix_alpha > 0:
            return mix(view, view_BCSS, one_hot(targets, self._num_classes), random.generator("mix"))
        return targets

    def _make(self, name: str, view: View, random: StepRandom, pixels: Tensor, sizes_B2: np.ndarray) -> Tensor:
        """Crop, colour and normalise the images, a chunk at a time."""
        px = view.size or self._image_size
        rows, columns = crop_windows(view, px, random, np.tile(sizes_B2, (view.count, 1)))
        policy = self._policies.get(name)
        policy_ops = policy.sample(random).image_ops(px, self._fill_C, view.auto_augment_interpolation) if policy else ()
        image_ops = [*policy_ops, *color_ops(view.color, random)]
        view_BCSS = torch.empty(view.count * len(sizes_B2), 3, px, px, device=self._device)
        for part, images_NCHW in _chunks(pixels, sizes_B2, view.count, px):
            crops_NCSS = _resample(images_NCHW, rows.take(part), columns.take(part), view.interpolation, view_BCSS[part])
            apply(image_ops, crops_NCSS, part)
            self._normalize(crops_NCSS)
        return view_BCSS


class EvalView:
    """The view ``main`` of an evaluation: resize, centre crop and normalise.

    Args:
        image_size: pixels per side.
        eval_crop: the short side is resized to ``image_size / eval_crop`` pixels (bicubic).
        mean, std: of the RGB channels, in [0, 1] units.
        device: where the view is computed.
    """

    def __init__(self, image_size: int, eval_crop: float, mean: list[float], std: list[float], device: torch.device):
        self._image_size, self._eval_crop, self.device = image_size, eval_crop, device
        self._normalize = _Normalize(mean, std, device)

    @property
    def black_C11(self) -> Tensor:
        """Black, as normalised."""
        black_C11 = torch.zeros(3, 1, 1, device=self.device)
        self._normalize(black_C11)
        return black_C11

    def __call__(self, raw: RawBatch) -> Batch:
        pixels, labels_B, index_B = _on_device(raw, self.device)
        px = self._image_size
        sizes_B2 = raw.sizes_B2.numpy()
        rows, columns = centre_windows(px, self._eval_crop, sizes_B2)
        view_BCSS = torch.empty(len(sizes_B2), 3, px, px, device=self.device)
        for part, images_NCHW in _chunks(pixels, sizes_B2, 1, px):
            self._normalize(_resample(images_NCHW, rows.take(part), columns.take(part), "bicubic", view_BCSS[part]))
        return Batch({"main": view_BCSS}, {"main": labels_B}, index_B, raw.labelled)
