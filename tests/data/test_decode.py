from __future__ import annotations

import io
import os
import random

import numpy as np
import pytest
from PIL import Image, features

from vitssl.config import ConfigError
from vitssl.data.pixels import decode


def encoded(image: Image.Image, format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def gradient(height: int = 6, width: int = 5) -> np.ndarray:
    return (np.arange(height * width * 3) * 2).astype(np.uint8).reshape(height, width, 3)


def test_rgb_png_comes_back_as_it_was():
    pixels = gradient()
    assert np.array_equal(decode.decode(encoded(Image.fromarray(pixels), "PNG"), "x"), pixels)
    assert np.array_equal(decode.decode(decode.encode_png(pixels), "x"), pixels)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(mode):
    grey = np.full((4, 3), 255 if mode == "1" else 100, np.uint8)
    if mode == "I;16":
        image, format = Image.fromarray(grey.astype(np.uint16) * 256), "PNG"
    else:
        image, format = Image.fromarray(grey).convert(mode), "TIFF" if mode == "CMYK" else "PNG"
    pixels = decode.decode(encoded(image, format), "x")
    assert pixels.shape == (4, 3, 3) and pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - grey[:, :, None]).max() <= 1


def test_palette_with_transparency_keeps_its_colours():
    image = Image.fromarray(gradient()).quantize(8)
    expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(decode.decode(encoded(image, "PNG", transparency=bytes([0] * 8)), "x"), expected)


# EXIF orientation -> how a viewer turns the stored pixels (EXIF 2.3, tag 0x0112)
TURNS = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, 1),
}


@pytest.mark.parametrize("orientation", TURNS)
def test_exif_orientation_is_applied(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = encoded(Image.fromarray(gradient()), "PNG", exif=exif)
    assert np.array_equal(decode.decode(image, "x"), TURNS[orientation](gradient()))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"not an image", lambda b: b"", lambda b: b[:40] + b"\0" * 40])
@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_damaged_images_are_named(damage, format):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    with pytest.raises(ConfigError, match=r"^cat/1\.jpg: cannot be decoded") as error:
        decode.decode(damage(encoded(image, format)), "cat/1.jpg")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
def test_altered_bytes_are_an_image_or_one_line(format):
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow knows no AVIF")
    image, rng = encoded(Image.effect_noise((48, 40), 60).convert("RGB"), format), random.Random(0)
    for _ in range(60):
        altered = bytearray(image[: rng.randrange(len(image))] if rng.random() < 0.2 else image)
        for _ in range(rng.randrange(6)):
            altered[rng.randrange(min(len(altered), 300))] = rng.randrange(256)
        for read in (decode.decode, decode.decode_file):
            try:
                read(bytes(altered), "x.jpg")
            except ConfigError as error:
                assert str(error).startswith("x.jpg: ") and "\n" not in str(error)


def test_no_image_starts_a_program(tmp_path, monkeypatch):
    """Pillow gives EPS to Ghostscript, whatever the file is called."""
    started = tmp_path / "started"
    for name in ("gs", "gswin64c"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {started}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(ConfigError, match=r"^cat/1\.jpg: cannot be decoded as an image \(it is damaged, or none of JPEG, .*JPEG2000\)$"):
        decode.decode_file(program, "cat/1.jpg")
    assert not started.exists()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_small_file_does_not_unfold_to_gigabytes():
    small = encoded(Image.new("1", (20_000, 5_001)), "PNG")
    assert len(small) < 30_000
    with pytest.raises(ConfigError, match=r"^x: 20,000 x 5,001 pixels, more than 89,000,000; shrink it$"):
        decode.decode(small, "x")


def test_extension_follows_the_content():
    image = Image.fromarray(gradient())
    assert [decode.extension(encoded(image, f)) for f in ("JPEG", "PNG", "BMP", "WEBP")] == ["jpg", "png", "bmp", "webp"]


def test_grey_arrays_become_rgb_and_others_are_refused():
    grey = gradient()[:, :, 0]
    assert np.array_equal(decode.rgb_array(grey, "x"), decode.rgb_array(grey[:, :, None], "x"))
    assert np.array_equal(decode.rgb_array(grey, "x")[:, :, 2], grey)
    for wrong in (grey.astype(np.float32), np.zeros((3, 4, 5), np.uint8), np.zeros((0, 4), np.uint8)):
        with pytest.raises(ConfigError, match=r"^here: "):
            decode.rgb_array(wrong, "here")


def test_resized_sizes_by_hand():
    sizes = np.array([[100, 200], [200, 100], [60, 200], [50, 50], [3, 10]])
    assert decode.resized_sizes(sizes, 50).tolist() == [[50, 100], [100, 50], [50, 167], [50, 50], [3, 10]]  # none is enlarged
    assert decode.resized_sizes(sizes, None) is sizes


def test_resize_is_pillows_bicubic():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(pixels).resize((15, 10), Image.Resampling.BICUBIC))
    assert np.array_equal(decode.resize(pixels, 10, 15), expected)
    assert decode.resize(pixels, 20, 30) is pixels
