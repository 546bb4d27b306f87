"""Conversion of images with other depths than 8 bits, from 10- to 16-bit cameras and scanners or with floating-point pixels.

The rule looks at one image alone, so that a prediction sees what training saw:

    whole numbers   count as 8, 10, 12, 14 or 16 bits, the fewest that hold the image's brightest value, and lose their lowest bits
    floats          are multiplied by 255 if they are from 0 to 1, and rounded if they are from 0 to 255
    anything else   is refused: negative values, values above 65,535 (floats: 255), NaN, and floats whose maximum is between 1 and 64

Of 16-bit colours Pillow gives only the upper 8 bits. An image in which these are all below 64 is refused. So no image turns black that
is not black, and a full 16-bit image becomes its upper 8 bits.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile

from vitssl.config import ConfigError

RULE = "each by the least of 8, 10, 12, 14 and 16 bits that holds its brightest value, or floats by 0 to 1, else 0 to 255"
DEPTHS = (8, 10, 12, 14, 16)
HALF_A_LEVEL = 0.5 / 255  # by how much a filter may overshoot 1
# of 255: an image whose brightest value is lower may be on a smaller scale, if nothing else tells its scale
DARKEST = 64


class Levels(NamedTuple):
    """Grey levels or colours from 0 to 255."""

    pixels: np.ndarray  # uint8, in the shape of the original values
    scaled_from: str | None  # what they were scaled from, in words; None if they were not scaled


def to_levels(values: np.ndarray, name: str) -> Levels:
    """Scale the values of an image, of any type, to uint8 of the same shape by the rule of this module.

    Raises:
        ConfigError: the rule refuses the values; the message starts with ``name``.
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
    """Whether the pixels of an image are grey values that do not fit into 8 bits."""
    return image.mode.startswith("I") or image.mode == "F"


def sixteen_bit_colours(image: Image.Image) -> bool:
    """Whether an image that is opened but not yet loaded has several channels of 16 bits each, of which Pillow gives the upper 8."""
    if is_deep(image) or not isinstance(image, ImageFile.ImageFile):
        return False
    arguments = [argument for *_, args in image.tile for argument in (args if isinstance(args, tuple) else (args,))]
    return any(re.fullmatch(r"[A-Za-z]+;16[BLN]", str(argument)) for argument in arguments)
