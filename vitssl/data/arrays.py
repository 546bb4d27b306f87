"""Images and labels that are published as arrays: MNIST's idx files, MedMNIST's npz.

Shapes: N images of a split.
"""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitssl.config import ConfigError

MOST_DIMENSIONS = 4  # of an idx file: images, rows, columns, colours


class Arrays(NamedTuple):
    """The images of one split."""

    name: str  # of the images, for messages
    images: np.ndarray  # numbers (N, H, W) or (N, H, W, 3); `vitssl.data.depth` scales what is not uint8
    labels: np.ndarray  # integers from 0 (N,)


def read_idx_folder(root: Path) -> dict[str, Arrays]:
    """The splits "train" and "test" of a folder with MNIST's four files, gzipped or not.

    Raises:
        ConfigError: a file is missing, damaged, or does not fit its partner; one line.
    """
    splits = {}
    for split, prefixes in (("train", ("train",)), ("test", ("t10k", "test"))):
        images, labels = _idx_file(root, prefixes, "images"), _idx_file(root, prefixes, "labels")
        splits[split] = _checked(f"{labels}: ", Arrays(images.name, read_idx(images), read_idx(labels)))
    return splits


def _idx_file(root: Path, prefixes: tuple[str, ...], what: str) -> Path:
    for file in sorted(root.iterdir()):
        stem = file.name.removesuffix(".gz").replace(".", "-")
        if f"{what}-idx" in stem and any(f"{prefix}-{what}" in stem for prefix in prefixes):
            return file
    raise ConfigError(f"idx:{root}: there is no {prefixes[0]}-{what}-idx?-ubyte[.gz]")


def read_idx(file: Path) -> np.ndarray:
    """The uint8 array of an idx file: two zero bytes, type 0x08, number of dimensions, big-endian sizes, data.

    Raises:
        ConfigError: naming the file, when it is something else or cut short.
    """
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ConfigError(f"{file}: not an idx file of unsigned bytes")
    start = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    if len(shape) > MOST_DIMENSIONS or len(content) != start + math.prod(shape):
        raise ConfigError(
            f"{file}: {len(content)} bytes do not hold an array of shape {shape[:MOST_DIMENSIONS]}; the file is truncated or damaged"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_npz(file: Path) -> dict[str, Arrays]:
    """The splits of MedMNIST's layout: arrays <split>_images and <split>_labels, (N,) or (N, 1), for train, val and test.

    Raises:
        ConfigError: another file, a damaged one, or arrays that do not fit; one line.
    """
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file")
    splits = {}
    try:
        with np.load(file) as content:
            keys = list(content.files)
            for key in (key for key in content.files if key.endswith("_images")):
                split = key.removesuffix("_images")
                splits[split] = Arrays(key, content[key], content[f"{split}_labels"])
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file}: not MedMNIST's npz of train_images, train_labels, test_images, ... ({reason})") from None
    if "train" not in splits:
        raise ConfigError(f"{file}: not MedMNIST's npz of train_images, train_labels, test_images, ...; it holds {', '.join(keys)}")
    return {split: _checked(f"{file}: {split}_labels: ", arrays) for split, arrays in splits.items()}


def _checked(where: str, arrays: Arrays) -> Arrays:
    name, images, labels = arrays
    if labels.shape == (len(images), 1):
        labels = labels[:, 0]
    fitting = labels.shape == images.shape[:1] and labels.dtype.kind in "iu"
    if images.ndim not in (3, 4) or images.dtype.kind not in "buif" or not fitting:
        raise ConfigError(
            f"{where}labels of shape {labels.shape} ({labels.dtype}) do not fit {name}, of shape {images.shape} ({images.dtype})"
        )
    if labels.min(initial=0) < 0:
        raise ConfigError(f"{where}{labels.min()} is no label; expected 0, 1, 2, ...")
    return Arrays(name, images, labels)
