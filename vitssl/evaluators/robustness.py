"""Evaluation of the Run's classifier on altered images.

Shapes: B images of a batch, S pixels per side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.config.evals import RobustnessConfig
from vitssl.data.loading.batch import Batch
from vitssl.evaluators.base import Subject
from vitssl.evaluators.classification import Classification


def outer_corners_42(side: int) -> np.ndarray:
    """Return the corners (x, y) of an image in pixels, clockwise from the upper left."""
    last = side - 1
    return np.array([(0, 0), (last, 0), (last, last), (0, last)])


def corners_42(side: int, distortion: float, seed: int, image: int) -> np.ndarray:
    """Draw where the corners of an image go: each inwards, by whole pixels.

    The draw depends on the seed and the image's number alone, not on batches or ranks. Its distribution is that of torchvision's
    RandomPerspective, with which SSAT's Table 2 was made.
    """
    most = min(int(distortion * (side // 2)), (side - 2) // 3)  # more would fold some of the smallest images over
    inwards_42 = np.random.default_rng([seed, image]).integers(0, most, (4, 2), endpoint=True)
    return np.abs(outer_corners_42(side) - inwards_42)


def homographies_B33(from_B42: np.ndarray, to_42: np.ndarray) -> np.ndarray:
    """Return the projective maps that send each image's four corners ``from_B42`` to ``to_42``."""
    x_B4, y_B4 = from_B42[..., 0], from_B42[..., 1]
    one_B4, zero_B4 = np.ones_like(x_B4), np.zeros_like(x_B4)
    of_x_B48 = np.stack([x_B4, y_B4, one_B4, zero_B4, zero_B4, zero_B4, -x_B4 * to_42[:, 0], -y_B4 * to_42[:, 0]], axis=-1)
    of_y_B48 = np.stack([zero_B4, zero_B4, zero_B4, x_B4, y_B4, one_B4, -x_B4 * to_42[:, 1], -y_B4 * to_42[:, 1]], axis=-1)
    places_B81 = np.broadcast_to(to_42.T.reshape(8, 1), (len(from_B42), 8, 1))
    entries_B8 = np.linalg.solve(np.concatenate([of_x_B48, of_y_B48], axis=1).astype(float), places_B81)[..., 0]
    return np.concatenate([entries_B8, one_B4[:, :1]], axis=1).reshape(-1, 3, 3)


def warp(images_BCSS: Tensor, numbers: Sequence[int], distortion: float, seed: int, black_C11: Tensor) -> Tensor:
    """Return each image in a perspective of its own (bilinear); what lies outside of it is black.

    Args:
        images_BCSS: normalised, float32.
        numbers: of the images, by which their perspectives are drawn.
        distortion: how far corners move inwards at most / half the side.
        seed: of the draws.
        black_C11: black, as normalised.
    """
    side = images_BCSS.shape[-1]
    drawn_B42 = np.stack([corners_42(side, distortion, seed, number) for number in numbers])
    maps_B33 = torch.from_numpy(homographies_B33(drawn_B42, outer_corners_42(side))).to(images_BCSS)
    centre_S = torch.arange(side, device=images_BCSS.device, dtype=images_BCSS.dtype) + 0.5
    of_x_B311, of_y_B311, shift_B311 = maps_B33[..., None, None].unbind(2)
    points_B3SS = of_x_B311 * centre_S + of_y_B311 * centre_S[:, None] + shift_B311  # no matrix product, which TF32 would round
    depth_B1SS = points_B3SS[:, 2:]
    # what lies behind the horizon is not of the image
    sources_B2SS = torch.where(depth_B1SS > 0, 2 / side * points_B3SS[:, :2] / depth_B1SS - 1, 2.0).clamp(-2, 2)
    grid_BSS2 = sources_B2SS.movedim(1, 3)
    return F.grid_sample(images_BCSS - black_C11, grid_BSS2, align_corners=False) + black_C11


def occlude(images_BCSS: Tensor, share: float) -> None:
    """Set a centred square, whose side is a ``share`` of the images', to the mean colour, in place."""
    side = images_BCSS.shape[-1]
    size = round(share * side)
    start = (side - size) // 2
    images_BCSS[:, :, start : start + size, start : start + size] = 0


class Robustness(Classification):
    """Evaluator of the classifier on images with a random perspective or without their centre, in the metrics of `Classification`."""

    cfg: RobustnessConfig

    def batches(self, subject: Subject) -> Iterator[Batch]:
        cfg = self.cfg
        for batch in super().batches(subject):
            if cfg.perspective:
                numbers = batch.index_B.tolist()
                batch.views["main"] = warp(batch.views["main"], numbers, cfg.perspective, cfg.seed, subject.view.black_C11)
            if cfg.occlusion:
                occlude(batch.views["main"], cfg.occlusion)
            yield batch
