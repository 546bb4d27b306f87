"""The batches that the loader hands to the views, and those that the views hand to the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vitssl import config
from vitssl.config import Run
from vitssl.data import UNLABELLED
from vitssl.words import counted, listed


@dataclass
class RawBatch:
    """Decoded images on their way to the device: a slice of one global batch."""

    pixels: Tensor  # uint8 RGB (B, C, H, W), zero on the right and below if an image is smaller, or flat (`vitssl.data.pixels.layout`)
    sizes_B2: Tensor  # int64 (height, width) of each image; on the CPU
    labels_B: Tensor  # int64, -1 if the image has none
    index_B: Tensor  # int64 position of each image in the shards' index
    step: int  # optimiser step, from 0
    rows: slice  # rows of the global batch that this slice holds
    batch_size: int  # images of the global batch
    labelled: float  # labelled images of the global batch divided by its number of slices (ranks x accumulation)


@dataclass
class Batch:
    """Named views of a slice of the global batch, on the device."""

    views: dict[str, Tensor]  # name -> float (count * B, 3, H, W), normalised, copies of a view crop-major
    targets: dict[str, Tensor]  # view name -> int64 (count * B,), or float (count * B, K) with mixup or cutmix
    index_B: Tensor
    labelled: float | Tensor  # see RawBatch: the divisor of a mean over labelled images, so that ranks average exactly

    @classmethod
    def of(cls, run: Run, images: Tensor | Mapping[str, Tensor], labels_B: Tensor | None = None) -> Batch:
        """Make a whole global batch for the Model of a Run, without loader and views.

        Args:
            run: says which views its objectives read, and of which size.
            images: normalised, float (B, 3, S, S): the view "main"; or each view by its name, (count * B, 3, S, S), all images of its
                first copy first.
            labels_B: int64, negative for an image without a label; may be left out only if no objective reads labels.

        Raises:
            ValueError: the views, shapes or types are not those of the Run.
        """
        views, wanted = dict(images) if isinstance(images, Mapping) else {"main": images}, config.active_views(run)
        if views.keys() != wanted.keys():
            raise ValueError(f"views: {listed(views)}; the objectives of this Run read {listed(wanted)}")
        for name, view in views.items():
            if not isinstance(view, Tensor) or view.dim() != 4 or not view.is_floating_point() or not len(view):
                raise ValueError(f"view {name}: {_described(view)}; normalised images are a float tensor (B, 3, H, W)")
        if labels_B is None:
            if config.reads_labels(run):
                raise ValueError("labels: none; an objective of this Run reads them, int64 (B,), -1 where an image has none")
            some_BCHW, copies = next((views[name], view.count) for name, view in wanted.items())
            labels_B = torch.full((len(some_BCHW) // copies,), UNLABELLED, device=some_BCHW.device)
        if not isinstance(labels_B, Tensor) or labels_B.dim() != 1 or labels_B.dtype != torch.int64:
            raise ValueError(f"labels: {_described(labels_B)}; they are an int64 tensor (B,), -1 where an image has none")
        for name, read in wanted.items():
            px = config.view_px(run.data, name)
            shape = (read.count * len(labels_B), 3, px, px)
            if views[name].shape != shape:
                times = f"{read.count} copies of " if read.count > 1 else ""
                expected = f"{times}{counted(len(labels_B), 'normalised image')} of {px} px"
                raise ValueError(f"view {name}: {_described(views[name])}; wanted: {expected}, a float tensor {shape}")
        labels_B = labels_B.clamp(min=UNLABELLED)  # torch's own losses use -100 for no label
        targets = {name: labels_B.repeat(view.count) for name, view in wanted.items()}
        labelled = (labels_B >= 0).sum().clamp(min=1).float()
        return cls(views, targets, torch.arange(len(labels_B), device=labels_B.device), labelled)

    @classmethod
    def of_images(cls, images_BCHW: Tensor) -> Batch:
        """Make a batch of images alone, to predict from."""
        return cls({"main": images_BCHW}, {}, torch.zeros(len(images_BCHW), dtype=torch.int64, device=images_BCHW.device), labelled=0.0)

    @property
    def device(self) -> torch.device:
        return self.index_B.device

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the views, targets and positions, always in the same order."""
        return [*self.views.values(), *self.targets.values(), self.index_B]


def _described(value: object) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
