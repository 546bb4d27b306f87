"""Colour operations on batches, equal to Pillow's on 8-bit images.

Pixels are floats that hold whole numbers in [0, 255]; an operation rounds wherever Pillow does. Operations own their input: they
may work in place. An operation takes one argument per image, a tensor (B,), even where it has no use for it, so that all are called
alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LEVELS = 255


def luma(images_BCHW: Tensor) -> Tensor:
    """(B, 1, H, W): ITU-R 601-2 grey, rounded, Pillow's mode L."""
    red, green, blue = images_BCHW.split(1, dim=1)
    return red.mul(0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114).round_()


def blend(degenerate: Tensor, images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Away from (factor > 1) or towards (factor < 1) the degenerate image; Pillow cuts the fraction off."""
    return torch.lerp(degenerate, images_BCHW, factor_B[:, None, None, None]).clamp_(0, LEVELS).floor_()


# ---------------------------------------------------------------------------------------------------------- histograms


def autocontrast(images_BCHW: Tensor, _: Tensor) -> Tensor:
    """Stretch every channel to the full range; a channel of one level stays."""
    low = images_BCHW.amin((2, 3), keepdim=True)
    span = images_BCHW.amax((2, 3), keepdim=True) - low
    flat = span == 0
    # whole numbers throughout: the quotient is exact where it should be whole, and floor does not lose a level
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
    """Keep the highest bits."""
    step = torch.exp2(8 - bits_B)[:, None, None, None]
    return images_BCHW.div_(step).floor_().mul_(step)


def solarize(images_BCHW: Tensor, threshold_B: Tensor) -> Tensor:
    """Invert the levels from the threshold on."""
    return torch.where(images_BCHW < threshold_B[:, None, None, None], images_BCHW, LEVELS - images_BCHW)


def solarize_add(images_BCHW: Tensor, add_B: Tensor) -> Tensor:
    """Brighten the levels below 128."""
    return torch.where(images_BCHW < 128, (images_BCHW + add_B[:, None, None, None]).clamp_(max=LEVELS), images_BCHW)


def brightness(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    return images_BCHW.mul_(factor_B[:, None, None, None]).clamp_(max=LEVELS).floor_()


def contrast(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Blend with the mean grey."""
    grey = (luma(images_BCHW).mean((1, 2, 3), keepdim=True) + 0.5).floor_()
    return blend(grey, images_BCHW, factor_B)


def color(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Blend with the grey image (saturation)."""
    return blend(luma(images_BCHW), images_BCHW, factor_B)


def grayscale(images_BCHW: Tensor, _: Tensor) -> Tensor:
    return luma(images_BCHW).expand_as(images_BCHW)


def hue(images_BCHW: Tensor, turn_B: Tensor) -> Tensor:
    """Rotate the hue by a share of the full turn, in [-1/2, 1/2]; value and chroma stay."""
    red, green, blue = images_BCHW.unbind(1)
    value = images_BCHW.amax(1)
    chroma = value - images_BCHW.amin(1)
    safe = chroma.clamp(min=1)
    from_red = (green - blue) / safe
    from_green, from_blue = (blue - red) / safe + 2, (red - green) / safe + 4
    sector = torch.where(value == red, from_red, torch.where(value == green, from_green, from_blue)) + 6 * turn_B[:, None, None]
    # red, green and blue are one trapezoid over the hue circle, at three phases
    phase = torch.stack([(n + sector) % 6 for n in (5, 3, 1)], dim=1)
    return (value[:, None] - chroma[:, None] * torch.minimum(phase, 4 - phase).clamp_(0, 1)).round_()


# ---------------------------------------------------------------------------------------------------------- neighbours


def sharpness(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Blend with the image smoothed by 3 x 3 (centre 5, others 1, over 13), whose border pixels stay."""
    column = images_BCHW[:, :, :-2] + images_BCHW[:, :, 1:-1] + images_BCHW[:, :, 2:]
    box = column[..., :-2] + column[..., 1:-1] + column[..., 2:]
    smooth = images_BCHW.clone()
    smooth[:, :, 1:-1, 1:-1] = box.add_(images_BCHW[:, :, 1:-1, 1:-1], alpha=4).div_(13).round_()
    return blend(smooth, images_BCHW, factor_B)


def _blur_matrices(sigma_B: Tensor, length: int) -> Tensor:
    """(B, L, L): Gaussian weights; rows sum to one at the borders too."""
    place_L = torch.arange(length, device=sigma_B.device)
    distance_LL = (place_L[:, None] - place_L).float()
    weight_BLL = torch.exp(-0.5 * (distance_LL / sigma_B[:, None, None]).square())
    return weight_BLL / weight_BLL.sum(-1, keepdim=True)


def gaussian_blur(images_BCHW: Tensor, sigma_B: Tensor) -> Tensor:
    """Exact Gaussian, renormalised at the borders. As matrix products, since every image has a different kernel."""
    B, C, H, W = images_BCHW.shape
    across = torch.bmm(images_BCHW.reshape(B, C * H, W), _blur_matrices(sigma_B, W).transpose(1, 2)).view(B, C, H, W)
    return torch.matmul(_blur_matrices(sigma_B, H)[:, None], across).round_()


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
