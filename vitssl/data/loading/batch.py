"""What the loader hands to the views, and what the views hand to the model."""

from __future__ import annotations

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
    def of_images(cls, images_BCHW: Tensor) -> Batch:
        """Images alone, to predict from."""
        return cls({"main": images_BCHW}, {}, torch.zeros(len(images_BCHW), dtype=torch.int64, device=images_BCHW.device), labelled=0.0)

    @property
    def device(self) -> torch.device:
        return self.index_B.device

    def tensors(self) -> list[Tensor]:
        """Of the views, targets and positions, always in the same order."""
        return [*self.views.values(), *self.targets.values(), self.index_B]
