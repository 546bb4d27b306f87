"""Colour operations on batches, whose results equal Pillow's on 8-bit images.

Pixels are floats that hold whole numbers in [0, 255], and operations round wherever Pillow does. Operations own their input, so they
may work in place. They all take one argument per image, a tensor (B,), even if they do not need it, so that all are called in the
same way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LEVELS = 255


def luma(images_BCHW: Tensor) -> Tensor:
    """Return ITU-R 601-2 grey images, rounded as in Pillow's mode L, (B, 1, H, W)."""
    red, green, blue = images_BCHW.split(1, dim=1)
    return red.mul(0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114).round_()


def blend(degenerate: Tensor, images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Move images away from (factor > 1) or towards (factor < 1) the degenerate image, cutting off fractions as Pillow does."""
    return torch.lerp(degenerate, images_BCHW, factor_B[:, None, None, None]).clamp_(0, LEVELS).floor_()


# ---------------------------------------------------------------------------------------------------------- histograms


def autocontrast(images_BCHW: Tensor, _: Tensor) -> Tensor:
    """Stretch every channel to the full range; channels with a single level are unchanged."""
    low = images_BCHW.amin((2, 3), keepdim=True)
    span = images_BCHW.amax((2, 3), keepdim=True) - low
    flat = span == 0
    # dividend and divisor are whole numbers, so that whole quotients are exact and floor does not lose a level
    return images_BCHW.sub_(low * ~flat).mul_(torch.where(flat, 1, LEVELS)).div_(torch.where(flat, 1, span)).floor_()


def equalize(images_BCHW: Tensor, _: Tensor) -> Tensor:
    """Flatten every channel's histogram."""
    B, C, H, W = images_BCHW.shape
    level_RP = images_BCHW.view(B * C, H * W).long()  # R channels of all images, P pixels
    counts_RL = torch.zeros(B * C, LEVELS + 1, device=images_BCHW.device)
    counts_RL.scatter_add_(1, level_RP, torch.ones((), device=images_BCHW.device).expand_as(level_RP))
    highest_R1 = level_RP.amax(1, keepdim=True)
    step_R1 = (H * W - counts_RL.gather(1, highest_R1)).div_(LEVELS, rounding_mode="floor")
    below_RL = counts_RL.cumsum(1) - counts_RL
    table_RL = ((step_R1 / 2).floor() + below_RL).div_(step_R1.clamp(min=1), rounding_mode="floor").clamp_(max=LEVELS)
    identity_L = torch.arange(LEVELS + 1.0, device=images_BCHW.device)
    return torch.where(step_R1 == 0, identity_L, table_RL).gather(1, level_RP).view(B, C, H, W)


# ----------------------------------------------------------------------------------------------------------- pointwise


def invert(images_BCHW: Tensor, _: Tensor) -> Tensor:
    return images_BCHW.neg_().add_(LEVELS)


def posterize(images_BCHW: Tensor, bits_B: Tensor) -> Tensor:
    """Keep the highest ``bits_B`` bits of every level."""
    step = torch.exp2(8 - bits_B)[:, None, None, None]
    return images_BCHW.div_(step).floor_().mul_(step)


def solarize(images_BCHW: Tensor, threshold_B: Tensor) -> Tensor:
    """Invert the levels at and above the threshold."""
    return torch.where(images_BCHW < threshold_B[:, None, None, None], images_BCHW, LEVELS - images_BCHW)


def solarize_add(images_BCHW: Tensor, add_B: Tensor) -> Tensor:
    """Add ``add_B`` to the levels below 128."""
    return torch.where(images_BCHW < 128, (images_BCHW + add_B[:, None, None, None]).clamp_(max=LEVELS), images_BCHW)


def brightness(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    return images_BCHW.mul_(factor_B[:, None, None, None]).clamp_(max=LEVELS).floor_()


def contrast(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Blend images with their mean grey."""
    grey = (luma(images_BCHW).mean((1, 2, 3), keepdim=True) + 0.5).floor_()
    return blend(grey, images_BCHW, factor_B)


def color(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Change the saturation by blending images with their grey versions."""
    return blend(luma(images_BCHW), images_BCHW, factor_B)


def grayscale(images_BCHW: Tensor, _: Tensor) -> Tensor:
    return luma(images_BCHW).expand_as(images_BCHW)


def hue(images_BCHW: Tensor, turn_B: Tensor) -> Tensor:
    """Rotate the hue by a share of the full circle in [-1/2, 1/2]; value and chroma are unchanged."""
    red, green, blue = images_BCHW.unbind(1)
    value = images_BCHW.amax(1)
    chroma = value - images_BCHW.amin(1)
    divisor = chroma.clamp(min=1)
    from_red = (green - blue) / divisor
    from_green, from_blue = (blue - red) / divisor + 2, (red - green) / divisor + 4
    sector = torch.where(value == red, from_red, torch.where(value == green, from_green, from_blue)) + 6 * turn_B[:, None, None]
    # red, green and blue follow the same trapezoid over the hue circle, at three phases
    phase = torch.stack([(n + sector) % 6 for n in (5, 3, 1)], dim=1)
    return (value[:, None] - chroma[:, None] * torch.minimum(phase, 4 - phase).clamp_(0, 1)).round_()


# ---------------------------------------------------------------------------------------------------------- neighbours


def sharpness(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Blend images with versions smoothed by a 3 x 3 kernel (centre 5, others 1, over 13), whose border pixels are unchanged."""
    column = images_BCHW[:, :, :-2] + images_BCHW[:, :, 1:-1] + images_BCHW[:, :, 2:]
    box = column[..., :-2] + column[..., 1:-1] + column[..., 2:]
    smooth = images_BCHW.clone()
    smooth[:, :, 1:-1, 1:-1] = box.add_(images_BCHW[:, :, 1:-1, 1:-1], alpha=4).div_(13).round_()
    return blend(smooth, images_BCHW, factor_B)


def _blur_matrices(sigma_B: Tensor, length: int) -> Tensor:
    """Return matrices of Gaussian weights (B, L, L), whose rows sum to one even at the borders."""
    place_L = torch.arange(length, device=sigma_B.device)
    distance_LL = (place_L[:, None] - place_L).float()
    weight_BLL = torch.exp(-0.5 * (distance_LL / sigma_B[:, None, None]).square())
    return weight_BLL / weight_BLL.sum(-1, keepdim=True)


def gaussian_blur(images_BCHW: Tensor, sigma_B: Tensor) -> Tensor:
    """Blur by an exact Gaussian, renormalised at the borders, with matrix products since every image has its own kernel."""
    B, C, H, W = images_BCHW.shape
    horizontal = torch.bmm(images_BCHW.reshape(B, C * H, W), _blur_matrices(sigma_B, W).transpose(1, 2)).view(B, C, H, W)
    return torch.matmul(_blur_matrices(sigma_B, H)[:, None], horizontal).round_()


OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "AutoContrast": autocontrast,
    "Equalize": equalize,
    "Invert": invert,
    "Posterize": posterize,
    "Solarize": solarize,
    "SolarizeAdd": solarize_add,
    "Color": color,
    "Contrast": contrast,
    "Brightness": brightness,
    "Sharpness": sharpness,
}
