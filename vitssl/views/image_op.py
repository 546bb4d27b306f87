"""One operation on some images of a batch."""

from __future__ import annotations

from collections.abc import Callable
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

    def apply(self, images_BCSS: Tensor, part: slice) -> None:
        """Work in place on the images of this part of the slice; the others are not looked at."""
        chosen = np.flatnonzero(self.chosen_B[part])
        if len(chosen):
            rows = to_device(chosen, images_BCSS.device)
            argument = to_device(self.argument_B[part][chosen].astype(np.float32), images_BCSS.device)
            images_BCSS.index_copy_(0, rows, self.operation(images_BCSS.index_select(0, rows), argument))
