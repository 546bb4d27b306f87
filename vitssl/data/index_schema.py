"""The fields of an index's files, and the check that their content is one that this project could have written.

An index may come from elsewhere. So everything in it is checked once, before any number of it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vitssl import records
from vitssl.config import ConfigError
from vitssl.data.pixels.decode import MOST_PIXELS
from vitssl.records import Number, Text

INDEX_FILE, SAMPLES_FILE = "index.json", "samples.npy"
UNFINISHED = ".build"  # subfolder with what an unfinished build has done so far
COUNT = Number(int, high=10**12)
FILE = Text(pattern=r"[\w-][\w.-]*", what="the name of a file")  # in the folder itself, not a path
SHARD = {"name": FILE, "split": str, "sha256": str, "images": COUNT, "bytes": COUNT}
CONTENT = {
    "name": str, "source": str, "sha256": str, "classes": [str], "mean": [records.SHARE], "std": [records.SHARE], "shards": [SHARD],
    "built_from?": str,
}  # fmt: skip
COLUMNS = ("offset", "size", "label", "height", "width", "crc32")
GROUP = "group"  # an optional column: the group (patient, scene, ...) of each image


def holds_shards(folder: Path) -> bool:
    """Whether ``folder`` holds the shards of a build, which may still be unfinished."""
    return any((folder / name).exists() for name in (INDEX_FILE, UNFINISHED))


def columns_of(content: dict[str, Any], samples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Check everything in an index and return the columns of its samples, int64 (N,), by name.

    Args:
        content: what `index.json` holds.
        samples: {name: column} of any kind.

    Raises:
        ConfigError: something is wrong; the message says what, but does not name the file.
    """
    for problem in _field_problems(content):
        raise ConfigError(problem)
    if not samples.keys() >= set(COLUMNS):
        raise ConfigError(f"samples lacks one of {', '.join(COLUMNS)}")
    columns = {name: _column(name, samples[name]) for name in (*COLUMNS, GROUP) if name in samples}
    for problem in _column_problems(content, columns):
        raise ConfigError(problem)
    return columns


def _field_problems(content: dict[str, Any]) -> Iterator[str]:
    yield from (f"{field}: {problem}" for field, problem in records.problems(CONTENT, content))
    yield from (f"{name} is not three numbers" for name in ("mean", "std") if len(content[name]) != 3)


def _column(name: str, values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind != "i":
        raise ConfigError(f"samples.{name} is not a list of whole numbers")
    return np.asarray(values).astype(np.int64, copy=False)


def _column_problems(content: dict[str, Any], columns: dict[str, np.ndarray]) -> Iterator[str]:
    """Yield what is wrong with columns that do not fit the shards, or that hold a value that no shard could have."""
    images = [shard["images"] for shard in content["shards"]]
    for name, column in columns.items():
        if len(column) != sum(images):
            yield f"samples.{name} has {len(column):,} values, the shards hold {sum(images):,} images"
            return
    ends = np.repeat(np.array([shard["bytes"] for shard in content["shards"]], np.int64), images)
    offset, size, label, height, width, crc32 = (columns[name] for name in COLUMNS)
    valid = {
        **({GROUP: columns[GROUP] >= 0} if GROUP in columns else {}),
        "label": (label >= -1) & (label < len(content["classes"])),
        "offset": (offset >= 0) & (offset <= ends),
        "size": (size > 0) & (size <= ends - offset),
        "height": (height > 0) & (height <= MOST_PIXELS),
        "width": (width > 0) & (width <= MOST_PIXELS // height.clip(1)),
        "crc32": (crc32 >= 0) & (crc32 < 2**32),
    }
    for name, fits in valid.items():
        if not fits.all():
            yield f"samples.{name}[{fits.argmin()}] is {columns[name][fits.argmin()]:,}, which cannot be"
