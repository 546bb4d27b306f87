"""Images of other depths than 8 bits: never black, never wrapped, the same in shards and in predictions."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitssl.config import ConfigError
from vitssl.data import shards
from vitssl.data.index import Index, read_image
from vitssl.data.pixels.decode import decode, decode_file, decode_opened
from vitssl.data.pixels.depth import to_levels

RAMP = np.linspace(0, 1, 64 * 48).reshape(48, 64)


def encoded(values: np.ndarray, format: str = "TIFF") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, format)
    return buffer.getvalue()


def png16(values_HWC: np.ndarray) -> bytes:
    """A PNG with 16 bits for each colour, which Pillow reads and does not write."""
    height, width, channels = values_HWC.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values_HWC)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
@pytest.mark.parametrize(("highest", "bits"), [(255, 8), (1000, 10), (4095, 12), (9000, 14), (65535, 16)])
def test_whole_numbers_are_scaled_by_the_depth_that_holds_them(format, highest, bits):
    values = (RAMP * highest).astype(np.uint16)
    pixels, found = decode_file(encoded(values, format), "x")
    assert found == f"{bits} bits" and pixels.dtype == np.uint8
    assert np.array_equal(pixels, np.repeat((values >> (bits - 8))[:, :, None], 3, axis=2))
    assert pixels.max() >= 64 and (np.diff(pixels[0, :, 0].astype(int)) >= 0).all()


@pytest.mark.parametrize("scale", [1, 255])
def test_floats_are_scaled_by_their_range(scale):
    values = (RAMP * scale).astype(np.float32)
    pixels, was = decode_file(encoded(values), "x")
    assert was == f"floats of 0 to {scale}"
    assert np.array_equal(pixels[:, :, 0], np.rint(RAMP * 255).astype(np.uint8))


def test_what_a_filter_leaves_beside_the_range_is_clipped():
    values = np.where(RAMP > 0.5, 1.001, -0.001).astype(np.float32)
    assert np.unique(decode_file(encoded(values), "x").pixels).tolist() == [0, 255]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((RAMP * 4095 - 1024).astype(np.int32), "int32 pixels from -1,024 to 3,071; expected 0 to 65,535; scale them, or save them with 8"),
        ((RAMP * 100_000).astype(np.int32), "int32 pixels from 0 to 100,000; expected 0 to 65,535"),
        ((RAMP * 4095).astype(np.float32), "float32 pixels from 0 to 4095; expected 0 to 1 or 0 to 255"),
        ((RAMP * 4 - 2).astype(np.float32), "float32 pixels from -2 to 2"),
        ((RAMP * 1.5).astype(np.float32), "float32 pixels from 0 to 1.5"),
        (np.where(RAMP > 0.5, np.nan, RAMP).astype(np.float32), "float32 pixels from nan to nan"),
        (np.where(RAMP > 0.5, np.inf, RAMP).astype(np.float32), "float32 pixels from 0 to inf"),
    ],
)  # fmt: skip
def test_what_has_no_scale_is_refused(values, message):
    with pytest.raises(ConfigError) as error:
        decode_file(encoded(values), "scan/1.tif")
    assert str(error.value).startswith(f"scan/1.tif: {message}")
    with pytest.raises(ConfigError, match=r"^scan/1\.tif: "):
        decode_opened(Image.open(io.BytesIO(encoded(values))), "scan/1.tif")


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_sixteen_bit_colours_are_their_upper_bits_or_refused(channels):
    full = np.repeat((RAMP * 65535).astype(np.uint16)[:, :, None], channels, axis=2)
    assert np.array_equal(decode_file(png16(full), "x").pixels[:, :, 0], full[:, :, 0] >> 8)
    for read in (lambda dark: decode_file(dark, "x"), lambda dark: decode_opened(Image.open(io.BytesIO(dark)), "x")):
        with pytest.raises(ConfigError, match=r"^x: 16 bits a colour, of which it uses the lowest only; save it with 8 bits a colour"):
            read(png16(full >> 4))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK"])
def test_modes_of_8_bits_are_read_as_in_shards(mode):
    image = Image.fromarray((RAMP * 255).astype(np.uint8)).convert("RGB").convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "TIFF")
    pixels, was = decode_file(buffer.getvalue(), "x")
    assert was is None and np.array_equal(pixels, decode(buffer.getvalue(), "x"))
    assert np.array_equal(pixels, decode_opened(Image.open(buffer))) and pixels.std() > 50


@pytest.mark.parametrize("shape", [(48, 64), (48, 64, 3)])
def test_arrays_are_scaled_by_the_same_rule(shape):
    ramp = RAMP if len(shape) == 2 else np.repeat(RAMP[:, :, None], 3, axis=2)
    for values, expected in (
        ((ramp * 4095).astype(np.uint16), (ramp * 4095).astype(int) >> 4),
        ((ramp * 255).astype(np.int64), (ramp * 255).astype(int)),
        (ramp, np.rint(ramp * 255)),
        (ramp > 0.5, 255 * (ramp > 0.5)),
    ):
        levels, _ = to_levels(values, "x")
        assert levels.dtype == np.uint8 and np.array_equal(levels, expected)
    levels, was = to_levels((ramp * 255).astype(np.uint8), "x")
    assert was is None and np.array_equal(levels, (ramp * 255).astype(int))
    for wrong in (np.zeros(shape, complex), np.zeros((0, 4))):
        with pytest.raises(ConfigError, match=r"^x: .* pixels of shape"):
            to_levels(wrong, "x")


# ------------------------------------------------------------------------------------------------------------- shards


def pixels_of(index: Index) -> list[np.ndarray]:
    files = [os.open(index.folder / shard["name"], os.O_RDONLY) for shard in index.shards]
    return [read_image(files[index.shard[i]], index, i) for i in range(len(index))]


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A folder with an image of each depth."""
    contents = {
        "12.png": encoded((RAMP * 4095).astype(np.uint16), "PNG"),
        "16.png": encoded((RAMP * 65535).astype(np.uint16), "PNG"),
        "8.png": encoded((RAMP * 255).astype(np.uint8), "PNG"),
        "float.tif": encoded(RAMP.astype(np.float32)),
    }
    for split in ("train", "test"):
        (tmp_path / "scans" / split / "a").mkdir(parents=True)
        for name, content in contents.items():
            (tmp_path / "scans" / split / "a" / name).write_bytes(content)
    return tmp_path / "scans"


def test_shards_hold_what_predictions_see(deep, tmp_path):
    index = shards.build(str(deep), tmp_path / "out", workers=1, progress=False)
    files = [deep / "train" / "a" / name for name in ("12.png", "16.png", "8.png", "float.tif")]
    for found, file in zip(pixels_of(index), files, strict=False):
        assert np.array_equal(found, decode_file(file.read_bytes(), "x").pixels)
        assert np.array_equal(found, decode_opened(Image.open(file)))
        assert np.abs(found[:, :, 0] - RAMP * 255).max() <= 1
    # the bytes of a file are kept where they are read alike
    tar = (index.folder / "train-000000.tar").read_bytes()
    stored = [tar[start : start + size] for start, size in zip(index.offset, index.size, strict=True)]
    assert [stored[i] == files[i].read_bytes() for i in range(4)] == [False, True, True, False]
    np.testing.assert_allclose(index.mean, 0.5, atol=0.01)
    assert shards.verify(index.folder, workers=1, progress=False) == []
    assert (
        "scaled   to 8 bits: 2 of 12 bits, 2 of 16 bits, 2 of floats of 0 to 1 (each by the least of 8, 10, 12, 14 and 16 bits that "
        "holds its brightest value, or floats by 0 to 1, else 0 to 255)"
    ) in shards.info(index.folder).splitlines()


def test_shards_of_16_bit_files_are_read_as_they_were():
    """Earlier versions kept such files, and read the upper 8 bits."""
    values = (RAMP * 4095).astype(np.uint16)
    assert np.array_equal(decode(encoded(values, "PNG"), "x")[:, :, 0], values >> 8)


def test_arrays_of_floats_become_shards(tmp_path):
    images = np.random.default_rng(0).random((6, 9, 7)).astype(np.float32)
    labels = np.arange(6) % 2
    np.savez(tmp_path / "x.npz", train_images=images, train_labels=labels, test_images=images[::-1], test_labels=labels)
    index = shards.build(f"npz:{tmp_path}/x.npz", tmp_path / "out", workers=1, progress=False)
    assert np.array_equal([pixels[:, :, 0] for pixels in pixels_of(index)[:6]], np.rint(images * 255))
    np.savez(tmp_path / "y.npz", train_images=images - 0.5, train_labels=labels, test_images=images, test_labels=labels)
    with pytest.raises(ConfigError, match="6 images cannot be used"):
        shards.build(f"npz:{tmp_path}/y.npz", tmp_path / "refused", workers=1, progress=False)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_set_with_nothing_to_see_is_refused(tmp_path, split):
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        (tmp_path / "scans" / name / "a").mkdir(parents=True)
        for i in range(3):
            values = rng.integers(0, 2 if name == split else 256, (8, 8), dtype=np.uint8)
            Image.fromarray(values).save(tmp_path / "scans" / name / "a" / f"{i}.png")
    with pytest.raises(ConfigError) as error:
        shards.build(str(tmp_path / "scans"), tmp_path / "out", workers=1, progress=False)
    assert str(error.value).startswith(f"scans: there is nothing to see in the images of {split}, all pixels are nearly equal (mean 0.00")
    assert "\n" not in str(error.value) and not (tmp_path / "out" / "index.json").exists()
