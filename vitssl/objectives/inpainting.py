"""SiT's corruption of images (Atito et al. 2021, first version's code), of all images of a batch together.

Shapes: R views of B images, crop by crop; S rectangles of an image.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitssl.backbones.layers import no_autocast
from vitssl.config.objectives.sit import BLUR_RADIUS_PX, SitConfig


class Rectangles(NamedTuple):
    """True in the rows and in the columns of each."""

    rows_RSH: Tensor
    columns_RSW: Tensor

    def union(self, used_RS: Tensor) -> Tensor:
        """The pixels of those that are used, bool (R, 1, H, W)."""
        rows_RHS = (self.rows_RSH & used_RS[..., None]).transpose(1, 2).to(torch.float32)
        with no_autocast(rows_RHS):
            return (rows_RHS @ self.columns_RSW.to(torch.float32) > 0)[:, None]

    def until(self, area_R: Tensor) -> Tensor:
        """Which ones it takes, bool (R, S), until the sum of their areas is a share ``area_R`` of the image: overlaps count twice."""
        pixels_RS = self.rows_RSH.sum(-1) * self.columns_RSW.sum(-1)
        before_RS = pixels_RS.cumsum(1) - pixels_RS
        return before_RS < area_R[:, None] * self.rows_RSH.shape[-1] * self.columns_RSW.shape[-1]


def draw_rectangles(images_RCHW: Tensor, count: int, sides: list[float]) -> Rectangles:
    """Sides uniform between two shares of the image's, the start uniform; cut at the image's edge."""
    R, device = len(images_RCHW), images_RCHW.device

    def interval(length: int) -> Tensor:
        least, most = (max(1, int(side * length)) for side in sides)
        start_RS1 = torch.randint(length - least + 1, (R, count, 1), device=device)
        stop_RS1 = start_RS1 + torch.randint(least, most + 1, (R, count, 1), device=device)
        place = torch.arange(length, device=device)
        return (start_RS1 <= place) & (place < stop_RS1)

    return Rectangles(*(interval(int(length)) for length in images_RCHW.shape[2:]))


def blurred(images_RCHW: Tensor, sigma_R: Tensor, radius_R: Tensor) -> Tensor:
    """Each image under a Gaussian of its own width, cut at its own radius in pixels; reflected at the border."""
    R, C, H, W = images_RCHW.shape
    offset = torch.arange(-BLUR_RADIUS_PX, BLUR_RADIUS_PX + 1, device=images_RCHW.device)
    weight = torch.exp(-0.5 * (offset / sigma_R[:, None]).square()) * (offset.abs() <= radius_R[:, None])
    taps = (weight / weight.sum(1, keepdim=True)).to(images_RCHW.dtype).repeat_interleave(C, 0)[:, None]
    padded = F.pad(images_RCHW, (BLUR_RADIUS_PX,) * 4, mode="reflect").flatten(0, 1)[None]
    with no_autocast(images_RCHW):
        across = F.conv2d(padded, taps[:, :, None], groups=R * C)
        return F.conv2d(across, taps[..., None], groups=R * C).view(R, C, H, W)


def corrupt(images_RCHW: Tensor, num_images: int, cfg: SitConfig) -> Tensor:
    """Grey, blur, noise, and parts of another image, one after the other; without a look at a value.

    The other image is as it is after the first three steps, of the same crop, and in each image's turn its own, which leaves it as it is.
    """
    R, device = len(images_RCHW), images_RCHW.device
    one = torch.ones(R, 1, dtype=torch.bool, device=device)
    gray_R1HW = draw_rectangles(images_RCHW, 1, cfg.gray).union(one)
    images_RCHW = torch.where(gray_R1HW, images_RCHW.mean(1, keepdim=True), images_RCHW)
    sigma_R, radius_R = 0.1 + 5 * torch.rand(R, device=device), torch.randint(1, BLUR_RADIUS_PX + 1, (R,), device=device)
    blur_R1HW = draw_rectangles(images_RCHW, 1, cfg.blur).union(one)
    images_RCHW = torch.where(blur_R1HW, blurred(images_RCHW, sigma_R, radius_R), images_RCHW)
    if cfg.noise_area:
        images_RCHW = torch.where(_parts(images_RCHW, cfg.noise_area, cfg), torch.randn_like(images_RCHW), images_RCHW)
    if cfg.alien_area:
        crop_R = torch.arange(R, device=device) // num_images * num_images
        other_R = crop_R + torch.randint(num_images, (R,), device=device)
        images_RCHW = torch.where(_parts(images_RCHW, cfg.alien_area, cfg), images_RCHW[other_R], images_RCHW)
    return images_RCHW


def _parts(images_RCHW: Tensor, most_area: float, cfg: SitConfig) -> Tensor:
    rectangles = draw_rectangles(images_RCHW, cfg.num_rectangles(most_area), cfg.sides)
    return rectangles.union(rectangles.until(most_area * torch.rand(len(images_RCHW), device=images_RCHW.device)))
