"""Images of other depths than 8 bits: 10- to 16-bit cameras and scanners, floating-point pixels.

The rule, for one image alone, so that a prediction sees what training saw:

    whole numbers   are taken as 8, 10, 12, 14 or 16 bits, the least that hold the image's brightest value, and lose their lowest bits
    floats          0 to 1 are multiplied by 255; 0 to 255 are rounded
    anything else   is refused: negative values, above 65,535 or 255, NaN, floats that end between 1 and 64

Of 16-bit colours Pillow gives the upper 8 bits; an image of which these are all below 64 is refused. So no image comes out black that
is not black, and a full 16-bit image comes out as its upper 8 bits.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile

from vitssl.config import ConfigError

RULE = "each by the least of 8, 10, 12, 14 and 16 bits that holds its brightest value, or floats by 0 to 1, else 0 to 255"
DEPTHS = (8, 10, 12, 14, 16)
HALF_A_LEVEL = 0.5 / 255  # what a filter may leave above 1
DARKEST = 64  # of 255: the least brightest value that is not taken for one on a smaller scale, where nothing else tells the scale


class Levels(NamedTuple):
    """Grey levels or colours 0 to 255."""

    pixels: np.ndarray  # uint8, of the shape of what was scaled
    was: str | None  # what they were scaled from, in words; None where nothing was


def to_levels(values: np.ndarray, name: str) -> Levels:
    """An image's values of any type as uint8 of the same shape, by the rule above.

    Raises:
        ConfigError: naming ``name``, for values that the rule refuses.
    """
    if values.dtype == np.uint8:
        return Levels(values, None)
    if values.dtype == bool:
        return Levels(values * np.uint8(255), None)
    if values.dtype.kind not in "iuf" or values.size == 0:
        raise ConfigError(f"{name}: {values.dtype} pixels of shape {values.shape}; expected whole numbers or floats")
    low, high = values.min().item(), values.max().item()
    if values.dtype.kind == "f":
        return _of_floats(values, low, high, name)
    if low < 0 or high > 65535:
        raise _refused(values, f"{low:,} to {high:,}", name, "0 to 65,535")
    bits = next(depth for depth in DEPTHS if high < 2**depth)
    return Levels((values >> (bits - 8)).astype(np.uint8), f"{bits} bits")


def _of_floats(values: np.ndarray, low: float, high: float, name: str) -> Levels:
    scale = 255 if high <= 1 + HALF_A_LEVEL else 1
    if not (low * scale >= -0.5 and (DARKEST if scale == 1 else 0) <= high * scale <= 255.5):
        raise _refused(values, f"{low:.4g} to {high:.4g}", name, "0 to 1 or 0 to 255")
    return Levels(np.rint(values * scale).clip(0, 255).astype(np.uint8), f"floats of 0 to {255 // scale}")


def _refused(values: np.ndarray, found: str, name: str, expected: str) -> ConfigError:
    return ConfigError(f"{name}: {values.dtype} pixels from {found}; expected {expected}; scale them, or save them with 8 bits")


def is_deep(image: Image.Image) -> bool:
    """Whether an image's pixels are grey values that do not fit into 8 bits."""
    return image.mode.startswith("I") or image.mode == "F"


def sixteen_bit_colours(image: Image.Image) -> bool:
    """Whether an image that is opened, and not yet loaded, has 16 bits for each of several channels, of which Pillow gives the upper 8."""
    if is_deep(image) or not isinstance(image, ImageFile.ImageFile):
        return False
    arguments = [argument for *_, given in image.tile for argument in (given if isinstance(given, tuple) else (given,))]
    return any(re.fullmatch(r"[A-Za-z]+;16[BLN]", str(argument)) for argument in arguments)
