"""Operations that apply to some images of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitssl.views.resample import to_device

Operation = Callable[[Tensor, Tensor], Tensor]  # images (B, C, S, S) in [0, 255] and an argument for each image -> images


class ImageOp(NamedTuple):
    """An operation, the images that undergo it, and its argument for each image."""

    operation: Operation
    chosen_B: np.ndarray  # bool
    argument_B: np.ndarray  # (B, ...), one per image


def apply(image_ops: Sequence[ImageOp], images_BCSS: Tensor, part: slice) -> None:
    """Apply operations one after the other, in place, to the images that undergo them.

    The indices and arguments of all operations are copied to the device together, since many small copies would keep a GPU waiting.

    Args:
        image_ops: operations on the whole batch.
        images_BCSS: the images of one part of the batch.
        part: the rows of the batch that ``images_BCSS`` holds.
    """
    chosen = [np.flatnonzero(op.chosen_B[part]) for op in image_ops]
    arguments = [op.argument_B[part][rows] for op, rows in zip(image_ops, chosen, strict=True)]
    if not sum(map(len, chosen)):
        return
    device = images_BCSS.device
    rows_per_op = to_device(np.concatenate(chosen), device).split([len(rows) for rows in chosen])
    values = np.concatenate([argument.ravel() for argument in arguments]).astype(np.float32)
    values_per_op = to_device(values, device).split([argument.size for argument in arguments])
    for op, rows, flat, argument in zip(image_ops, rows_per_op, values_per_op, arguments, strict=True):
        if len(rows):
            images_BCSS.index_copy_(0, rows, op.operation(images_BCSS.index_select(0, rows), flat.view(argument.shape)))
