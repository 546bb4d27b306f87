"""Operations on some images of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitssl.views.resample import to_device

Operation = Callable[[Tensor, Tensor], Tensor]  # images (B, C, S, S) in [0, 255] and an argument for each


class ImageOp(NamedTuple):
    """An operation, the images that undergo it, and what it does to each."""

    operation: Operation
    chosen_B: np.ndarray  # bool
    argument_B: np.ndarray  # (B, ...), one per image


def apply(image_ops: Sequence[ImageOp], images_BCSS: Tensor, part: slice) -> None:
    """Work in place on the images of this part of the slice, one operation after the other; images that undergo none are not looked at.

    Which images and what arguments goes to the device at once, since a GPU is kept waiting by many small copies.
    """
    chosen = [np.flatnonzero(op.chosen_B[part]) for op in image_ops]
    arguments = [op.argument_B[part][rows] for op, rows in zip(image_ops, chosen, strict=True)]
    if not sum(map(len, chosen)):
        return
    device = images_BCSS.device
    rows_of = to_device(np.concatenate(chosen), device).split([len(rows) for rows in chosen])
    values = np.concatenate([argument.ravel() for argument in arguments]).astype(np.float32)
    values_of = to_device(values, device).split([argument.size for argument in arguments])
    for op, rows, flat, argument in zip(image_ops, rows_of, values_of, arguments, strict=True):
        if len(rows):
            images_BCSS.index_copy_(0, rows, op.operation(images_BCSS.index_select(0, rows), flat.view(argument.shape)))
