"""SiT's corruption of images (Atito et al. 2021, code of the first version), for all images of a batch at once.

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
    """Rectangles of each image, as masks that are True in a rectangle's rows and in its columns."""

    rows_RSH: Tensor
    columns_RSW: Tensor

    def union(self, used_RS: Tensor) -> Tensor:
        """Return the mask of the pixels inside any rectangle that ``used_RS`` selects, bool (R, 1, H, W)."""
        rows_RHS = (self.rows_RSH & used_RS[..., None]).transpose(1, 2).to(torch.float32)
        with no_autocast(rows_RHS):
            return (rows_RHS @ self.columns_RSW.to(torch.float32) > 0)[:, None]

    def select_by_area(self, area_R: Tensor) -> Tensor:
        """Select an image's first rectangles until their areas add up to a share ``area_R`` of it, bool (R, S); overlaps count twice."""
        pixels_RS = self.rows_RSH.sum(-1) * self.columns_RSW.sum(-1)
        before_RS = pixels_RS.cumsum(1) - pixels_RS
        return before_RS < area_R[:, None] * self.rows_RSH.shape[-1] * self.columns_RSW.shape[-1]


def draw_rectangles(images_RCHW: Tensor, count: int, sides: list[float]) -> Rectangles:
    """Draw rectangles with uniform start and sides; those that cross the image's edge are cut.

    Args:
        images_RCHW: the images to draw for.
        count: number of rectangles per image.
        sides: smallest and largest side, as shares of the image's side.
    """
    R, device = len(images_RCHW), images_RCHW.device

    def interval(length: int) -> Tensor:
        least, most = (max(1, int(side * length)) for side in sides)
        start_RS1 = torch.randint(length - least + 1, (R, count, 1), device=device)
        stop_RS1 = start_RS1 + torch.randint(least, most + 1, (R, count, 1), device=device)
        place = torch.arange(length, device=device)
        return (start_RS1 <= place) & (place < stop_RS1)

    return Rectangles(*(interval(int(length)) for length in images_RCHW.shape[2:]))


def blurred(images_RCHW: Tensor, sigma_R: Tensor, radius_R: Tensor) -> Tensor:
    """Blur each image by a Gaussian with its own width and its own radius in pixels; borders are padded by reflection."""
    R, C, H, W = images_RCHW.shape
    offset = torch.arange(-BLUR_RADIUS_PX, BLUR_RADIUS_PX + 1, device=images_RCHW.device)
    weight = torch.exp(-0.5 * (offset / sigma_R[:, None]).square()) * (offset.abs() <= radius_R[:, None])
    taps = (weight / weight.sum(1, keepdim=True)).to(images_RCHW.dtype).repeat_interleave(C, 0)[:, None]
    padded = F.pad(images_RCHW, (BLUR_RADIUS_PX,) * 4, mode="reflect").flatten(0, 1)[None]
    with no_autocast(images_RCHW):
        horizontal = F.conv2d(padded, taps[:, :, None], groups=R * C)
        return F.conv2d(horizontal, taps[..., None], groups=R * C).view(R, C, H, W)


def corrupt(images_RCHW: Tensor, num_images: int, cfg: SitConfig) -> Tensor:
    """Corrupt images by grey, blur, noise and parts of another image, in this order, without reading a value on the host.

    The other image is drawn from the views of the same crop, after the first three steps. An image that draws itself keeps its pixels in
    the last step.
    """
    R, device = len(images_RCHW), images_RCHW.device
    used_R1 = torch.ones(R, 1, dtype=torch.bool, device=device)
    gray_R1HW = draw_rectangles(images_RCHW, 1, cfg.gray).union(used_R1)
    images_RCHW = torch.where(gray_R1HW, images_RCHW.mean(1, keepdim=True), images_RCHW)
    sigma_R, radius_R = 0.1 + 5 * torch.rand(R, device=device), torch.randint(1, BLUR_RADIUS_PX + 1, (R,), device=device)
    blur_R1HW = draw_rectangles(images_RCHW, 1, cfg.blur).union(used_R1)
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
    return rectangles.union(rectangles.select_by_area(most_area * torch.rand(len(images_RCHW), device=images_RCHW.device)))
