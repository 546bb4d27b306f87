"""Images and labels that are published as arrays: MNIST's idx files, MedMNIST's npz, scikit-learn's digits.

Shapes: N images of a split.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from vitssl.config import ConfigError
from vitssl.data.sources.folders import existing
from vitssl.data.sources.samples import Options, Sample, Source
from vitssl.data.sources.splits import is_hidden
from vitssl.reader import read_whole

MOST_DIMENSIONS = 4  # dimensions of an idx file: images, rows, columns, colours
MOST_CLASSES = 1_000_000
MOST_BYTES = psutil.virtual_memory().total  # bytes of an array
# what numpy and zipfile raise about a file that is damaged or not an npz
UNREADABLE = (
    OSError, EOFError, KeyError, TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError, SyntaxError, struct.error,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class Arrays(NamedTuple):
    """The images of one split."""

    name: str  # of the images, for messages
    images: np.ndarray  # numbers (N, H, W) or (N, H, W, 3); `vitssl.data.pixels.depth` scales other types than uint8
    labels: np.ndarray  # integers from 0 (N,)


def read_idx_folder(root: Path) -> dict[str, Arrays]:
    """Read the splits "train" and "test" from a folder with MNIST's four files, gzipped or not.

    Raises:
        ConfigError: a file is missing, damaged, or does not fit its partner; the message is one line.
    """
    splits = {}
    for split, prefixes in (("train", ("train",)), ("test", ("t10k", "test"))):
        images, labels = _idx_file(root, prefixes, "images"), _idx_file(root, prefixes, "labels")
        splits[split] = _checked(f"{labels}: ", Arrays(images.name, read_idx(images), read_idx(labels)))
    return splits


def _idx_file(root: Path, prefixes: tuple[str, ...], what: str) -> Path:
    """Return the file of ``root`` that holds the images or the labels (``what``) of the split that one of ``prefixes`` names."""
    for file in sorted(root.iterdir()):
        stem = file.name.removesuffix(".gz").replace(".", "-")
        named = f"{what}-idx" in stem and any(f"{prefix}-{what}" in stem for prefix in prefixes)
        if named and not is_hidden(file.name) and not file.is_dir():  # Kaggle's archive has folders of these names, too
            return file
    raise ConfigError(f"idx:{root}: there is no {prefixes[0]}-{what}-idx?-ubyte[.gz]")


def read_idx(file: Path) -> np.ndarray:
    """Read the uint8 array of an idx file: two zero bytes, type 0x08, number of dimensions, big-endian sizes, data.

    Raises:
        ConfigError: the file is something else or cut short; the message names it.
    """
    try:
        packed = io.BytesIO(read_whole(file, MOST_BYTES))
        with gzip.open(packed) if file.suffix == ".gz" else packed as stream:
            if stream.read(3) != b"\0\0\x08":
                raise ConfigError(f"{file}: not an idx file of unsigned bytes")
            dimensions = min(int.from_bytes(stream.read(1), "big"), MOST_DIMENSIONS + 1)
            head = stream.read(4 * dimensions)
            shape = tuple(int.from_bytes(head[i : i + 4], "big") for i in range(0, len(head), 4))
            size = math.prod(shape)
            content = stream.read(min(size, MOST_BYTES) + 1)  # no more: unpacked, the rest may be a thousand times as large as the file
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    if len(head) != 4 * dimensions or dimensions > MOST_DIMENSIONS or len(content) != size:
        raise ConfigError(f"{file}: its bytes do not hold an array of shape {shape[:MOST_DIMENSIONS]}; the file is truncated or damaged")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_npz(file: Path) -> dict[str, Arrays]:
    """Read the splits of MedMNIST's layout: arrays <split>_images and <split>_labels, (N,) or (N, 1), for train, val and test.

    Raises:
        ConfigError: the file has another layout or is damaged, or its arrays do not fit each other; the message is one line.
    """
    if not os.path.isfile(file):  # also False for a name that is too long to be one
        raise ConfigError(f"{file}: there is no such file")
    splits = {}
    try:
        if not zipfile.is_zipfile(file):  # numpy would advise to allow pickles, which run code
            raise ValueError("it is no zip archive")
        with np.load(file) as content:
            keys = list(content.files)
            for key in (key for key in content.files if key.endswith("_images")):
                split = key.removesuffix("_images")
                splits[split] = Arrays(key, _array(content, key), _array(content, f"{split}_labels"))
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file}: not MedMNIST's npz of train_images, train_labels, test_images, ... ({reason})") from None
    if "train" not in splits:
        raise ConfigError(f"{file}: not MedMNIST's npz of train_images, train_labels, test_images, ...; it holds {', '.join(keys)}")
    return {split: _checked(f"{file}: {split}_labels: ", arrays) for split, arrays in splits.items()}


def _array(content: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    """Return one array of an npz file if its size is plausible: numpy allocates what the array's header says before it reads anything."""
    assert content.zip is not None  # as long as the file is open
    part = content.zip.getinfo(f"{key}.npy")
    with content.zip.open(part) as stream:
        version = np.lib.format.read_magic(stream)
        read_head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_head(stream)
    if dtype.hasobject:
        raise ValueError(f"{key} holds Python objects, not numbers")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > part.file_size:
        raise ValueError(f"{key} of shape {shape} is cut short")
    if size > MOST_BYTES:
        raise ValueError(f"{key} has {size / 1e9:.0f} GB, more than the {MOST_BYTES / 1e9:.0f} GB of this machine's memory")
    return content[key]


def _checked(where: str, arrays: Arrays) -> Arrays:
    """Return the arrays with labels (N,).

    Raises:
        ConfigError: the images and labels do not fit each other, or are not images and labels; the message starts with ``where``.
    """
    name, images, labels = arrays
    if labels.shape == (*images.shape[:1], 1):
        labels = labels[:, 0]
    fitting = labels.shape == images.shape[:1] and labels.dtype.kind in "iu"
    if images.ndim not in (3, 4) or images.dtype.kind not in "buif" or not fitting:
        raise ConfigError(
            f"{where}labels of shape {labels.shape} ({labels.dtype}) do not fit {name}, of shape {images.shape} ({images.dtype})"
        )
    if labels.min(initial=0) < 0:
        raise ConfigError(f"{where}{labels.min()} is not a label; expected 0, 1, 2, ...")
    if labels.max(initial=0) >= MOST_CLASSES:
        raise ConfigError(f"{where}{labels.max()} is not a label; {MOST_CLASSES:,} classes are more than anybody has")
    return Arrays(name, images, labels)


# ------------------------------------------------------------------------------------------------------------- sources


def open_digits() -> Source:
    """Return scikit-learn's digits, 17 grey levels scaled to 0..255: 1,347 for training and 450 for testing, stratified, fixed."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    positions = train_test_split(np.arange(len(images)), test_size=450, stratify=data.target, random_state=0)
    parts = (("train", sorted(positions[0])), ("test", sorted(positions[1])))
    splits = {split: [Sample(f"digits {i}", int(data.target[i]), images[i]) for i in chosen] for split, chosen in parts}
    return Source("digits", [str(name) for name in data.target_names], splits)


def open_idx(path: str, options: Options) -> Source:
    root = existing("idx", path)
    return _from_arrays(root.resolve().name, f"idx:{path}", read_idx_folder(root))


def open_npz(path: str, options: Options) -> Source:
    file = Path(path).expanduser()
    return _from_arrays(file.stem, f"npz:{path}", read_npz(file))


def _from_arrays(name: str, where: str, read: dict[str, Arrays]) -> Source:
    """Make a source whose classes are the numbers up to the highest label of the train split."""
    if "train" not in read:
        raise ConfigError(f"{where}: there is no train split; it has {', '.join(read) or 'no images'}")
    highest = int(read["train"].labels.max(initial=0))
    splits = {}
    for split, (title, images, labels) in read.items():
        if labels.max(initial=0) > highest:
            raise ConfigError(f"{where}: class {labels.max()} of split {split!r} does not occur in the train split")
        splits[split] = [Sample(f"{title} {i}", int(k), image) for i, (k, image) in enumerate(zip(labels, images, strict=True))]
    return Source(name, [str(k) for k in range(highest + 1)], splits)
