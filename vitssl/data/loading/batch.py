"""What the loader hands to the views, and what the views hand to the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class RawBatch:
    """Decoded images on their way to the device, a slice of one global batch."""

    pixels: Tensor  # uint8 RGB (B, C, H, W), zero on the right and below where an image is smaller, or flat (`vitssl.data.pixels.layout`)
    sizes_B2: Tensor  # int64 (height, width) of each image; on the CPU
    labels_B: Tensor  # int64, -1 where there is none
    index_B: Tensor  # int64 position of each image in the shards' index
    step: int  # optimiser step, from 0
    rows: slice  # of the global batch, that this slice holds
    batch_size: int  # of the global batch
    labelled: float  # labelled images of the global batch divided by its number of slices (ranks x accumulation)


@dataclass
class Batch:
    """Named views of a slice of the global batch, on the device."""

    views: dict[str, Tensor]  # name -> float (count * B, 3, H, W), normalised, copies of a view crop-major
    targets: dict[str, Tensor]  # view name -> int64 (count * B,), or float (count * B, K) where mixup or cutmix is on
    index_B: Tensor
    labelled: float | Tensor  # see RawBatch: what a mean over labelled images divides by, so that ranks average exactly

    @classmethod
    def of_images(cls, images: Tensor | Mapping[str, Tensor], labels_B: Tensor | None = None) -> Batch:
        """All of a global batch, without loader and views.

        Args:
            images: normalised, float (B, 3, H, W): the view "main"; or each view by its name, (count * B, 3, H, W), all images of its
                first copy first.
            labels_B: int64, -1 where there is none; they may be left out to predict, and where no objective reads any.

        Raises:
            ValueError: a shape, or a type of numbers, is another.
        """
        views = {"main": images} if isinstance(images, Tensor) else dict(images)
        for name, view in views.items():
            if view.dim() < 4 or view.shape[1] != 3 or not view.is_floating_point():
                raise ValueError(f"view {name}: {_described(view)}; normalised images are float (B, 3, H, W)")
        first = next(iter(views.values()))
        if labels_B is None:
            return cls(views, {}, torch.arange(len(first), device=first.device), labelled=0.0)
        if labels_B.dim() != 1 or labels_B.dtype != torch.int64:
            raise ValueError(f"labels: {_described(labels_B)}; they are int64 (B,), -1 where an image has none")
        for name, view in views.items():
            if not len(view) or len(view) % len(labels_B):
                raise ValueError(f"view {name}: {len(view)} images, which is no multiple of the {len(labels_B)} labels")
        targets = {name: labels_B.repeat(len(view) // len(labels_B)) for name, view in views.items()}
        labelled = (labels_B >= 0).sum().clamp(min=1).float()
        return cls(views, targets, torch.arange(len(labels_B), device=labels_B.device), labelled)

    @property
    def device(self) -> torch.device:
        return self.index_B.device

    def tensors(self) -> list[Tensor]:
        """Of the views, targets and positions, always in the same order."""
        return [*self.views.values(), *self.targets.values(), self.index_B]


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
