"""Where images come from: a source string names a data set, `open_source` lists its samples.

    digits                         scikit-learn's 8x8 grey digits
    folder:PATH  or just PATH      PATH/train/<class>/..., PATH/test|val/<class>/... and perhaps PATH/unlabeled/...
    torchvision:NAME[?root=PATH]   downloaded where the network allows
    idx:PATH                       a folder of MNIST-format files (train-images-idx3-ubyte[.gz], ...)
    csv:FILE                       columns path, label and, optionally, split

A sample's image is a path of a file, or its pixels; files are listed here and read by whoever writes the shards.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitssl.data import torchvision_sets
from vitssl.data.index import UNLABELLED

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
HELD_OUT = ("test", "val", "valid")  # the first folder that exists is the test split, the next one the split "val"


class Sample(NamedTuple):
    """One image of a source."""

    name: str  # for messages: a path relative to the source, or a number
    label: int  # position of the class in `Source.classes`, or -1
    image: str | np.ndarray  # path of an image file, or uint8 pixels (H, W) or (H, W, 3)


@dataclass
class Source:
    """The samples of a data set, by split; the splits hold their samples in an order that is part of the data set."""

    name: str
    classes: list[str]
    splits: dict[str, Sequence[Sample]]

    def samples(self) -> Iterator[tuple[str, Sample]]:
        for split, samples in self.splits.items():
            yield from ((split, sample) for sample in samples)


def open_source(source: str) -> Source:
    """The data set that a source string names.

    Raises:
        ValueError: no such source, a missing split, a class without images, labels that do not fit; one line.
    """
    kind, colon, rest = source.partition(":")
    if colon and kind in _KINDS:
        opened = _KINDS[kind](rest)
    elif source == "digits":
        opened = _digits()
    elif Path(source).is_dir():
        opened = _folder(source)
    else:
        kinds = ", ".join(["digits", *(f"{kind}:..." for kind in _KINDS)])
        raise ValueError(f"source {source!r} is neither an existing folder nor one of {kinds}")
    _check(opened, source)
    return opened


def _check(opened: Source, source: str) -> None:
    if not opened.splits.get("train"):
        raise ValueError(f"{source}: no images in split 'train'; it has {', '.join(opened.splits) or 'no images'}")
    for split in opened.splits:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
            raise ValueError(f"{source}: {split!r} is no name for a split; use letters, digits, _ and -")


# -------------------------------------------------------------------------------------------------------------- digits


def _digits() -> Source:
    """scikit-learn's digits, 17 grey levels scaled to 0..255; 1,347 for training, 450 for testing, stratified, fixed."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    positions = train_test_split(np.arange(len(images)), test_size=450, stratify=data.target, random_state=0)
    parts = (("train", sorted(positions[0])), ("test", sorted(positions[1])))
    splits = {split: [Sample(f"digits {i}", int(data.target[i]), images[i]) for i in chosen] for split, chosen in parts}
    return Source("digits", [str(name) for name in data.target_names], splits)


# -------------------------------------------------------------------------------------------------------------- folder


def _folder(path: str) -> Source:
    root = Path(path)
    if not root.is_dir():
        raise ValueError(f"folder:{path}: there is no such folder")
    if not (root / "train").is_dir():
        raise ValueError(f"folder:{path}: there is no {root / 'train'}; expected {path}/train/<class>/<image>")
    held_out = [name for name in HELD_OUT if (root / name).is_dir()]
    if not held_out:
        raise ValueError(f"folder:{path}: no test split; expected {path}/test/<class>/<image> or {path}/val/<class>/<image>")
    classes = _subfolders(root / "train")
    if not classes:
        raise ValueError(f"folder:{path}: {root / 'train'} holds no class folders")
    splits = {"train": _class_folders(root, "train", classes)}
    for split, name in zip(("test", "val"), held_out, strict=False):
        splits[split] = _class_folders(root, name, classes)
    if (root / "unlabeled").is_dir():
        splits["unlabeled"] = [Sample(name, UNLABELLED, str(root / name)) for name in _images(root, "unlabeled")]
    return Source(root.resolve().name, classes, splits)


def _subfolders(path: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))


def _class_folders(root: Path, split: str, classes: list[str]) -> list[Sample]:
    if unknown := sorted(set(_subfolders(root / split)) - set(classes)):
        raise ValueError(f"{root / split / unknown[0]}: a class that {root / 'train'} does not have")
    samples = []
    for label, name in enumerate(classes):
        images = _images(root, f"{split}/{name}")
        if not images:
            raise ValueError(f"{root / split / name}: no images for class {name!r}; expected files ending in {' '.join(IMAGE_ENDINGS)}")
        samples += [Sample(image, label, str(root / image)) for image in images]
    return samples


def _images(root: Path, folder: str) -> list[str]:
    """Paths of the images in ``root/folder`` at any depth, relative to ``root``, sorted."""
    found = []
    for parent, subfolders, files in os.walk(root / folder, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        relative = Path(parent).relative_to(root).as_posix()
        found += [f"{relative}/{name}" for name in files if name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")]
    return sorted(found)


# ----------------------------------------------------------------------------------------------------------- idx files


def _idx(path: str) -> Source:
    root = Path(path)
    if not root.is_dir():
        raise ValueError(f"idx:{path}: there is no such folder")
    splits, highest = {}, 0
    for split, prefixes in (("train", ("train",)), ("test", ("t10k", "test"))):
        images_file, images = _idx_pair(root, prefixes, "images")
        labels_file, labels = _idx_pair(root, prefixes, "labels")
        if images.ndim not in (3, 4) or labels.shape != images.shape[:1]:
            raise ValueError(f"{labels_file}: labels of shape {labels.shape} do not fit {images_file}, of shape {images.shape}")
        splits[split] = [Sample(f"{images_file.name} {i}", int(k), image) for i, (k, image) in enumerate(zip(labels, images, strict=True))]
        if split == "train":
            highest = int(labels.max(initial=0))
        elif labels.max(initial=0) > highest:
            raise ValueError(f"{labels_file}: class {labels.max()} does not occur in the train split")
    return Source(root.resolve().name, [str(k) for k in range(highest + 1)], splits)


def _idx_pair(root: Path, prefixes: tuple[str, ...], what: str) -> tuple[Path, np.ndarray]:
    for file in sorted(root.iterdir()):
        stem = file.name.removesuffix(".gz").replace(".", "-")
        if f"{what}-idx" in stem and any(f"{prefix}-{what}" in stem for prefix in prefixes):
            return file, read_idx(file)
    raise ValueError(f"idx:{root}: there is no {prefixes[0]}-{what}-idx?-ubyte[.gz]")


def read_idx(file: Path) -> np.ndarray:
    """The uint8 array of an idx file: two zero bytes, type 0x08, number of dimensions, big-endian sizes, data.

    Raises:
        ValueError: naming the file, when it is something else or cut short.
    """
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError) as error:
        raise ValueError(f"{file}: cannot be read ({error})") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{file}: not an idx file of unsigned bytes")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    if len(shape) != content[3] or len(content) != start + int(np.prod(shape)):
        raise ValueError(f"{file}: {len(content)} bytes do not hold an array of shape {shape}; the file is truncated or damaged")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# ----------------------------------------------------------------------------------------------------------------- csv


def _csv(path: str) -> Source:
    """Labels are class names, in sorted order (numbers by value); an empty label is unlabelled; no split means train."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"csv:{path}: there is no such file")
    with open(file, newline="", encoding="utf-8-sig") as stream:
        reader = csv.DictReader(stream)
        if missing := {"path", "label"} - set(reader.fieldnames or ()):
            raise ValueError(f"{file}: no column {sorted(missing)[0]!r}; expected path,label[,split]")
        rows = [(line, row["path"], (row["label"] or "").strip(), row.get("split") or "train") for line, row in enumerate(reader, 2)]
    classes = sorted({label for _, _, label, split in rows if split == "train" and label}, key=_natural)
    labels = {"": UNLABELLED} | {name: k for k, name in enumerate(classes)}
    splits: dict[str, list[Sample]] = {}
    for line, name, label, split in rows:
        if not (file.parent / name).is_file():
            raise ValueError(f"{file}:{line}: there is no image {file.parent / name}")
        if label not in labels:
            raise ValueError(f"{file}:{line}: class {label!r} of split {split!r} does not occur in the train split")
        splits.setdefault(split, []).append(Sample(name, labels[label], str(file.parent / name)))
    return Source(file.stem, classes, splits)


def _natural(label: str) -> tuple:
    return (0, int(label), "") if label.isdecimal() else (1, 0, label)


def _torchvision(spec: str) -> Source:
    name, classes, splits = torchvision_sets.open_set(spec)
    return Source(name, classes, {split: _Parts(split, parts) for split, parts in splits.items()})


class _Parts(Sequence):
    """The samples of one or more torchvision data sets, one after the other."""

    def __init__(self, split: str, parts: list):
        self.split, self.parts = split, parts

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, i):
        name = f"{self.split} {i}"
        for part in self.parts:
            if i < len(part):
                image, label = part[i]
                return Sample(name, int(label), image if isinstance(image, str) else np.asarray(image))
            i -= len(part)
        raise IndexError(i)


_KINDS: dict[str, Callable[[str], Source]] = {"folder": _folder, "torchvision": _torchvision, "idx": _idx, "csv": _csv}
