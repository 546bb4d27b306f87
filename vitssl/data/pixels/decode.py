"""Conversion of encoded images to RGB pixels and back. Every image that this package decodes goes through here.

Images are uint8 RGB (H, W, 3). `decode_file` reads users' files, when shards are written and for predictions; `decode` reads shards.
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
# Pillow goes by content, not by file ending, and knows formats that start programs (EPS: Ghostscript) or open files that an image names
FORMATS = ("JPEG", "MPO", "PNG", "BMP", "DIB", "GIF", "PPM", "TIFF", "WEBP", "AVIF", "JPEG2000")
MOST_PIXELS = 89_000_000  # 0.3 GB as RGB; a few kB of PNG can unfold to any size, and Pillow warns of more than this
# What Pillow's decoders raise on damaged or hostile bytes.
_BROKEN = (OSError, SyntaxError, ValueError, IndexError, TypeError, EOFError, RuntimeError, struct.error, Image.DecompressionBombError)


class Decoded(NamedTuple):
    """The pixels of an image that a user gives."""

    pixels: np.ndarray  # uint8 RGB (H, W, 3)
    scaled_from: str | None  # what it was scaled from, in words; None if it had 8 bits


def decode_file(encoded: bytes, name: str) -> Decoded:
    """Decode an image file to RGB pixels (H, W, 3) uint8.

    The image is turned upright by its EXIF orientation. Grey, palette and CMYK images become RGB, transparency is dropped, and other
    depths than 8 bits are scaled by the rule of `vitssl.data.pixels.depth`.

    Raises:
        ConfigError: the bytes are not an image, the image is cut short, or the rule refuses its values; the message starts with ``name``.
    """
    with _opened(encoded, name) as image:
        upper_bits = depth.sixteen_bit_colours(image)
        ImageOps.exif_transpose(image, in_place=True)
        return _scaled(image, upper_bits, name)


def decode_opened(image: Image.Image, name: str = "the image") -> np.ndarray:
    """Return the pixels of an opened image as `decode_file` does, without changing the image itself.

    Raises:
        ConfigError: the rule of `vitssl.data.pixels.depth` refuses its values.
    """
    upper_bits = depth.sixteen_bit_colours(image)
    return _scaled(ImageOps.exif_transpose(image), upper_bits, name).pixels


def decode(encoded: bytes, name: str) -> np.ndarray:
    """Decode an image of a shard to RGB pixels (H, W, 3) uint8 as `decode_file` does, except that 16 bits become their upper 8.

    Raises:
        ConfigError: the bytes are not an image, or the image is cut short; the message starts with ``name``.
    """
    with _opened(encoded, name) as image:
        ImageOps.exif_transpose(image, in_place=True)
        return np.asarray(_rgb(image))


@contextlib.contextmanager
def _opened(encoded: bytes, name: str) -> Iterator[Image.Image]:
    """Open an encoded image without decoding it, and turn what Pillow raises about it into a ConfigError of one line."""
    try:
        with warnings.catch_warnings():  # images of so many pixels are refused below
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
    """Return the names in FORMATS that this Pillow was built with."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _scaled(image: Image.Image, upper_bits: bool, name: str) -> Decoded:
    """Return the RGB pixels of an upright image; ``upper_bits`` says that Pillow gave the upper 8 of the 16 bits of its colours."""
    if depth.is_deep(image):
        levels = depth.to_levels(np.asarray(image), name)
        return Decoded(rgb_array(levels.pixels, name), levels.scaled_from)
    pixels = np.asarray(_rgb(image))
    if upper_bits and pixels.max() < depth.DARKEST:
        raise ConfigError(f"{name}: 16 bits a colour, of which it uses the lowest only; save it with 8 bits a colour")
    return Decoded(pixels, None)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # shards written before such images were scaled hold the 16 bits
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def extension(encoded: bytes) -> str:
    """Return the file ending (jpg, png, webp, ...) of an image that `decode` accepted, by its content."""
    with Image.open(io.BytesIO(encoded), formats=_formats()) as image:
        assert image.format is not None
        return EXTENSIONS.get(image.format, image.format.lower())


def rgb_array(array: np.ndarray, name: str) -> np.ndarray:
    """Return pixels (H, W), (H, W, 1) or (H, W, 3) uint8 as RGB (H, W, 3).

    Raises:
        ConfigError: another shape or type; the message starts with ``name``.
    """
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or array.size == 0:
        raise ConfigError(f"{name}: {array.dtype} pixels of shape {array.shape}; expected uint8 (H, W) or (H, W, 3)")
    return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)


def encode_png(array: np.ndarray) -> bytes:
    """Encode pixels (H, W), (H, W, 1) or (H, W, 3) uint8 as PNG, without loss."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array.squeeze(2) if array.ndim == 3 and array.shape[2] == 1 else array)).save(buffer, "PNG")
    return buffer.getvalue()


def resized_sizes(sizes: np.ndarray, short_px: int | None) -> np.ndarray:
    """Return (height, width) pairs (N, 2) with each short side above ``short_px`` shrunk to it, and the long side rounded to a pixel."""
    sizes = np.asarray(sizes, dtype=np.int64)
    if short_px is None:
        return sizes
    short = sizes.min(axis=1, keepdims=True)
    return (2 * sizes * np.minimum(short, short_px) + short) // (2 * short)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize RGB pixels (H, W, 3) with Pillow's antialiased bicubic filter."""
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))
