"""Encoded image to RGB pixels, and back. Everything that this package ever decodes goes through here.

Images are uint8 RGB (H, W, 3). Users' files are read by `decode_file`, when shards are written and in predictions; shards by `decode`.
"""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vitssl.config import ConfigError
from vitssl.data.pixels import depth

EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png"}
# Pillow knows more, some of which start programs (EPS: Ghostscript) or open what a file names, whatever the file's ending says
FORMATS = ("JPEG", "MPO", "PNG", "BMP", "DIB", "GIF", "PPM", "TIFF", "WEBP", "AVIF", "JPEG2000")
MOST_PIXELS = 89_000_000  # 0.3 GB as RGB; a few kB of PNG can unfold to any size, and Pillow warns of more than this
# What Pillow's decoders raise on damaged or hostile bytes.
_BROKEN = (OSError, SyntaxError, ValueError, IndexError, TypeError, EOFError, RuntimeError, struct.error, Image.DecompressionBombError)


class Decoded(NamedTuple):
    """An image that a user gives."""

    pixels: np.ndarray  # uint8 RGB (H, W, 3)
    was: str | None  # what it was scaled from, in words; None where it had 8 bits


def decode_file(encoded: bytes, name: str) -> Decoded:
    """An encoded image as RGB pixels (H, W, 3) uint8.

    Turned upright by its EXIF orientation; grey, palette and CMYK images become RGB, transparency is dropped, other depths than 8 bits
    are scaled by the rule of `vitssl.data.pixels.depth`.

    Raises:
        ConfigError: naming ``name``, when the bytes are not an image, the image is cut short, or the rule refuses its values.
    """
    with _opened(encoded, name) as image:
        upper_bits = depth.sixteen_bit_colours(image)
        ImageOps.exif_transpose(image, in_place=True)
        return _scaled(image, upper_bits, name)


def upright(image: Image.Image, name: str = "the image") -> np.ndarray:
    """An opened image as `decode_file` gives its pixels; the image itself stays as it is.

    Raises:
        ConfigError: values that the rule refuses.
    """
    upper_bits = depth.sixteen_bit_colours(image)
    return _scaled(ImageOps.exif_transpose(image), upper_bits, name).pixels


def decode(encoded: bytes, name: str) -> np.ndarray:
    """An encoded image of a shard as RGB pixels (H, W, 3) uint8: as `decode_file`, but that 16 bits are read as their upper 8.

    Raises:
        ConfigError: naming ``name``, when the bytes are not an image or the image is cut short.
    """
    with _opened(encoded, name) as image:
        ImageOps.exif_transpose(image, in_place=True)
        return np.asarray(_rgb(image))


@contextlib.contextmanager
def _opened(encoded: bytes, name: str) -> Iterator[Image.Image]:
    """An encoded image, not decoded yet; makes one line of what Pillow raises about it."""
    try:
        with warnings.catch_warnings():  # of so many pixels that are refused here
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(encoded), formats=_formats())
        with opened as image:
            if image.width * image.height > MOST_PIXELS:
                raise ConfigError(f"{name}: {image.width:,} x {image.height:,} pixels, more than {MOST_PIXELS:,}; shrink it")
            yield image
    except ConfigError:
        raise
    except UnidentifiedImageError:
        raise ConfigError(f"{name}: cannot be decoded as an image (it is damaged, or none of {', '.join(_formats())})") from None
    except _BROKEN as error:
        raise ConfigError(f"{name}: cannot be decoded as an image ({' '.join(str(error).split())})") from None


@cache
def _formats() -> list[str]:
    """Those of FORMATS that this Pillow was built with."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _scaled(image: Image.Image, upper_bits: bool, name: str) -> Decoded:
    """RGB pixels of an upright image, of whose colours Pillow may have given the upper 8 of 16 bits."""
    if depth.is_deep(image):
        levels = depth.to_levels(np.asarray(image), name)
        return Decoded(rgb_array(levels.pixels, name), levels.was)
    pixels = np.asarray(_rgb(image))
    if upper_bits and pixels.max() < depth.DARKEST:
        raise ConfigError(f"{name}: 16 bits a colour, of which it uses the lowest only; save it with 8 bits a colour")
    return Decoded(pixels, None)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # shards that were written before such images were scaled hold them as they were
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def extension(encoded: bytes) -> str:
    """The file ending of an image that `decode` accepted, by its content: jpg, png, webp, ..."""
    with Image.open(io.BytesIO(encoded), formats=_formats()) as image:
        assert image.format is not None
        return EXTENSIONS.get(image.format, image.format.lower())


def rgb_array(array: np.ndarray, name: str) -> np.ndarray:
    """Pixels (H, W), (H, W, 1) or (H, W, 3) uint8 as RGB (H, W, 3).

    Raises:
        ConfigError: naming ``name``, for another shape or type.
    """
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or array.size == 0:
        raise ConfigError(f"{name}: {array.dtype} pixels of shape {array.shape}; expected uint8 (H, W) or (H, W, 3)")
    return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)


def encode_png(array: np.ndarray) -> bytes:
    """Pixels (H, W) or (H, W, 3) uint8 as PNG, without loss."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array.squeeze(2) if array.ndim == 3 and array.shape[2] == 1 else array)).save(buffer, "PNG")
    return buffer.getvalue()


def resized_sizes(sizes: np.ndarray, short_px: int | None) -> np.ndarray:
    """(height, width) pairs (N, 2) after shrinking the short side to ``short_px`` where it is longer, the long side rounded to a pixel."""
    sizes = np.asarray(sizes, dtype=np.int64)
    if short_px is None:
        return sizes
    short = sizes.min(axis=1, keepdims=True)
    return (2 * sizes * np.minimum(short, short_px) + short) // (2 * short)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """RGB pixels (H, W, 3) resized by Pillow's antialiased bicubic filter."""
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))
