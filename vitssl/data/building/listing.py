"""The listing of a source, made without reading its images: whether shards still hold what is listed, and what differs."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitssl.config import ConfigError
from vitssl.data.index import Index
from vitssl.data.sources.opening import open_source
from vitssl.data.sources.samples import Sample, Source, Tars
from vitssl.reader import open_regular
from vitssl.words import counted, first_few

FILE = "listing.csv.gz"  # beside index.json: the images that were listed when the shards were built, one a line
SHOWN = 3  # names in a message

Images = dict[tuple[str, str], tuple[str, str]]  # (split, name) -> (class, size)


class Row(NamedTuple):
    """One image as a source listed it."""

    split: str
    name: str
    label: int  # position of its class, or -1
    size: str  # of a file: its bytes; of a tar: also its time; of an array: its shape and checksum
    group: str = ""


def rows(source: Source) -> list[Row]:
    """Return what a source lists, in its order."""
    size = _size_and_time if isinstance(source, Tars) else _size
    return [Row(split, sample.name, sample.label, size(sample), sample.group) for split, sample in source.samples()]


def _size(sample: Sample) -> str:
    """Return what tells, without decoding, whether an image has changed."""
    if isinstance(sample.image, str):
        return str(os.path.getsize(sample.image)) if os.path.exists(sample.image) else "missing"
    return f"{sample.image.shape} {zlib.crc32(np.ascontiguousarray(sample.image).data)}"


def _size_and_time(tar: Sample) -> str:
    """Return the size and time of a tar. Sizes are multiples of 10 kB, so that a tar with other labels often has the same size."""
    return f"{_size(tar)} {os.path.getmtime(str(tar.image)):.0f}"


def digest(listed: Iterable[Row], source: Source) -> str:
    """Return a fingerprint of rows of a source: of splits, names, labels, sizes and, if there are some, groups."""
    sha256 = hashlib.sha256(json.dumps(source.head).encode())
    for row in listed:
        sha256.update(os.fsencode("\0".join(map(str, row if row.group else row[:-1])) + "\n"))
    return sha256.hexdigest()


def fingerprint(source: str) -> str:
    """Return the fingerprint of what a source lists now; shards that are built from it have it as `Index.source`.

    Raises:
        ConfigError: the source cannot be opened; the message is one line.
    """
    opened = open_source(source)
    return digest(rows(opened), opened)


def write(path: Path, listed: Iterable[Row], classes: list[str]) -> None:
    """Write rows with the names of their classes, so that the same rows make the same bytes."""
    with (
        open(path, "wb") as stream,
        gzip.GzipFile("", "wb", compresslevel=3, fileobj=stream, mtime=0) as zipped,
        io.TextIOWrapper(zipped, "utf-8", "surrogateescape", newline="") as text,
    ):
        table = csv.writer(text, lineterminator="\n")
        table.writerow(("split", "name", "class", "size"))
        table.writerows((row.split, row.name, _class(row, classes), row.size) for row in listed)


def _class(row: Row, classes: list[str]) -> str:
    return classes[row.label] if row.label >= 0 else ""


def of_images(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the name and class of each image by split, in the order of the source; nothing if there is no listing, or one of tars.

    Raises:
        ConfigError: the file is damaged.
    """
    images: dict[str, list[tuple[str, str]]] = {}
    for split, name, class_name, _ in _read(folder / FILE) if (folder / FILE).exists() else ():
        if not name.endswith(".tar"):
            images.setdefault(split, []).append((name, class_name))
    return images


def _read(path: Path) -> list[list[str]]:
    """Read a listing: split, name, class and size of each image.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        with (
            open_regular(path) as stream,
            gzip.open(stream, "rt", encoding="utf-8", errors="surrogateescape", newline="") as text,
        ):
            table = csv.reader(text)
            if next(table, None) is None:
                raise EOFError("it is empty")
            return [[split, name, label, size] for split, name, label, size in table]
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        detail = getattr(error, "strerror", None) or error
        reason = f"damaged ({detail}), so that what differs from the source cannot be named; delete it, and the images are only counted"
        raise ConfigError(reason, place=str(path)) from None


# -------------------------------------------------------------------------------------------------------- what differs


def difference(index: Index, listed: list[Row], source: Source) -> str:
    """Say how what is listed differs from what the shards were built from, in counts and first names."""
    unit, classes = ("tar", source.classes or index.classes) if isinstance(source, Tars) else ("image", source.classes)
    old_classes = index.classes
    added, gone = [name for name in classes if name not in old_classes], [name for name in old_classes if name not in classes]
    parts = [f"classes {change}: {first_few(names)}" for change, names in (("added", added), ("gone", gone)) if names]
    path = index.folder / FILE
    now = {(row.split, row.name): (_class(row, classes), row.size) for row in listed}
    parts += _files(unit, _read(path), now) if path.exists() else _counts(index, listed)
    grouped = " or in other groups" * any(row.group for row in listed)
    fallback = f"the same {unit}s in another order" + grouped + " or read with other options" * (unit == "tar")
    return "; ".join(filter(None, parts)) or fallback


def _files(what: str, built: list[list[str]], now: Images) -> list[str]:
    before = {(split, name): (label, size) for split, name, label, size in built}
    added = [name for split, name in now if (split, name) not in before]
    gone = [name for split, name in before if (split, name) not in now]
    moved = set(added) & set(gone)
    kept = [key for key in now if key in before]
    return [
        _some(what, "more", [name for name in added if name not in moved]),
        _some(what, "fewer", [name for name in gone if name not in moved]),
        _some(what, "in another split", [name for name in added if name in moved]),
        _some(what, "in another class", [key[1] for key in kept if now[key][0] != before[key][0]]),
        _some(what, "with other content", [key[1] for key in kept if now[key][1] != before[key][1]]),
    ]


def _some(what: str, how: str, names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)
    return f"{counted(len(names), what)} {how} ({shown})" if names else ""


def _counts(index: Index, listed: list[Row]) -> list[str]:
    """Return how many images the splits have instead of before, for shards without a listing of names."""
    before = {split: len(index.where(split)) for split in index.splits}
    now = Counter(row.split for row in listed)
    differing = [split for split in dict.fromkeys([*before, *now]) if before.get(split, 0) != now[split]]
    counts = [f"{counted(now[split], 'image')} in {split} instead of {before.get(split, 0):,}" for split in differing]
    return counts or ["as many images in each split, but others, or in another order"]
