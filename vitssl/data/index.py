"""The index of a folder of shards: where each image lies, so that one permutation serves cached and streamed data.

`index.json` lists the shards in the order of their samples; a shard holds samples of one split. `samples.npy` has a row for each sample.
It takes 0.07 s to read for ImageNet, where JSON took 1.5 s.

Shapes: N samples of all splits.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tokenize
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitssl.atomic import write_atomically
from vitssl.config import ConfigError
from vitssl.config.base import closest, did_you_mean
from vitssl.data.index_schema import COLUMNS, GROUP, INDEX_FILE, SAMPLES_FILE, UNFINISHED, columns_of
from vitssl.data.pixels.decode import decode
from vitssl.data.sources.build_line import build_line, holds_runs
from vitssl.data.sources.splits import spelled
from vitssl.files import hash_file
from vitssl.reader import read_whole

FORMATS = dict(zip((*COLUMNS, GROUP), ("<i8", "<i8", "<i4", "<i4", "<i4", "<i8", "<i8"), strict=True))
FORMAT = 2
FIELDS = ("name", "source", "sha256", "classes", "mean", "std", "shards")
OF_RUNS = "this is a folder of runs, and holds no shards; name a folder that `vitssl shards build SOURCE FOLDER` wrote"
REBUILD = "delete the folder and build the shards again"


@dataclass
class Index:
    """The fields of `index.json` and the columns of `samples.npy`. Arrays have one entry per sample, in the order of the shards."""

    folder: Path
    name: str
    source: str  # fingerprint of the listing that the shards were built from
    sha256: str  # of the content; independent of the name, the path and the time
    classes: list[str]
    mean: list[float]  # of the train split's pixels, RGB in [0, 1]
    std: list[float]
    shards: list[dict[str, Any]]  # name, split, images, bytes, sha256
    offset: np.ndarray  # of the encoded image within the shard, bytes
    size: np.ndarray  # of the encoded image, bytes
    label: np.ndarray  # -1 if the image has none
    height: np.ndarray  # pixels
    width: np.ndarray
    crc32: np.ndarray  # of the encoded image
    group: np.ndarray | None = None  # number of the patient, scene or the like of the image; None if the source names no groups
    built_from: str = ""  # the source string (`vitssl.data.sources.opening`); empty if a path in it is no text

    def __len__(self) -> int:
        return len(self.label)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns of `samples.npy`, by name."""
        return {name: getattr(self, name) for name in (*COLUMNS, *([] if self.group is None else [GROUP]))}

    @cached_property
    def splits(self) -> list[str]:
        """The names of the splits, in the order of the shards."""
        return list(dict.fromkeys(shard["split"] for shard in self.shards))

    @cached_property
    def shard(self) -> np.ndarray:
        """The position in `shards` of each sample's shard."""
        return np.repeat(np.arange(len(self.shards)), [shard["images"] for shard in self.shards])

    @cached_property
    def split(self) -> np.ndarray:
        """The position in `splits` of each sample's split."""
        return np.array([self.splits.index(shard["split"]) for shard in self.shards])[self.shard]

    @property
    def sizes_N2(self) -> np.ndarray:
        """The (height, width) of each sample."""
        return np.stack([self.height, self.width], axis=1)

    def where(self, splits: str) -> np.ndarray:
        """Return the positions of the samples of ``splits``, names joined by "+" (see `parse_splits`), in rising order.

        Raises:
            ConfigError: the shards do not have one of the splits.
        """
        codes = []
        for split in parse_splits(splits, self.splits):
            if split not in self.splits:
                raise ConfigError(f"{self.folder}: there is no split {split!r}; it has {', '.join(self.splits)}")
            codes.append(self.splits.index(split))
        return np.flatnonzero(np.isin(self.split, codes))

    def describe(self, position: int) -> str:
        """Say where the sample at ``position`` lies, for messages: shard file, number in the index and offset."""
        shard = self.folder / self.shards[self.shard[position]]["name"]
        return f"{shard}: image {position} at byte {self.offset[position]}"


def parse_splits(splits: str, available: Collection[str]) -> list[str]:
    """Return the splits that ``splits`` joins by "+", as the shards (with the splits ``available``) spell them.

    A name that ends in "?", such as the second one in train+unlabeled?, is left out if the shards do not have that split.
    """
    wanted = [(split.removesuffix("?"), split.endswith("?")) for split in splits.split("+")]
    resolved = [(split if split in available else spelled(split), optional) for split, optional in wanted]
    return [split for split, optional in resolved if not optional or split in available]


def planned_index(
    folder: str | Path, name: str, classes: list[str], labels: dict[str, np.ndarray], group: np.ndarray | None = None
) -> Index:
    """Return the index of shards that are not written yet: splits, labels and groups of its images, and zeros for all else about them."""
    shards = [{"name": "", "split": split, "images": len(split_labels)} for split, split_labels in labels.items()]
    label = np.concatenate(list(labels.values()))
    columns = {column: np.zeros(len(label), np.int64) for column in COLUMNS} | {"label": label}
    return Index(Path(folder), name, source="", sha256="", classes=classes, mean=[], std=[], shards=shards, **columns, group=group)


def write_index(index: Index) -> None:
    """Write `samples.npy` and then `index.json`, which makes a folder of shards complete."""
    rows, stream = np.empty(len(index), [(name, FORMATS[name]) for name in index.columns]), io.BytesIO()
    for name, column in index.columns.items():
        rows[name] = column
    np.save(stream, rows)
    write_atomically(index.folder / SAMPLES_FILE, stream.getbuffer())
    content = {"format": FORMAT} | {name: getattr(index, name) for name in FIELDS} | {"built_from": index.built_from}
    content["samples_sha256"] = hashlib.sha256(stream.getbuffer()).hexdigest()
    content["index_sha256"] = _own_sha256(content)
    write_atomically(index.folder / INDEX_FILE, json.dumps(content, separators=(",", ":")).encode())


def _own_sha256(content: dict[str, Any]) -> str:
    """Return the sha256 of `index.json` without the field that states it."""
    return sha256_of({key: value for key, value in content.items() if key != "index_sha256"})


def fingerprint(index: Index) -> str:
    """Return a sha256 over everything in an index that is content: not the name, nor the listing it was built from."""
    content = {name: getattr(index, name) for name in FIELDS if name not in ("name", "source", "sha256")}
    columns = {name: column.tolist() for name, column in index.columns.items()}
    # the version of this mapping, not of index.json; another number would change every data set's fingerprint, which Runs state
    return sha256_of({"format": 1, **content, "samples": columns})


def sha256_of(content: dict[str, Any]) -> str:
    """Return the sha256 of ``content`` as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def unfinished_note(folder: str | Path) -> str:
    """Return what to do with a folder whose build was interrupted, or an empty string for other folders."""
    if not (Path(folder) / UNFINISHED).is_dir():
        return ""
    return f"{folder}: holds an unfinished build; the same `vitssl shards build SOURCE {folder}` goes on with it"


def read_index(folder: str | Path) -> Index:
    """Read the index of a folder and check it in itself, but not against the shard files; see `load_index`.

    Raises:
        ConfigError: there is no index, or it is damaged or altered; the message says what to do.
    """
    path = Path(folder) / INDEX_FILE
    try:
        content = json.loads(read_whole(path).decode("utf-8"))
    except FileNotFoundError:
        if advice := unfinished_note(folder):
            raise ConfigError(advice) from None
        if holds_runs(folder):
            raise ConfigError(f"{folder}: {OF_RUNS}") from None
        if not path.with_name(SAMPLES_FILE).exists() and (line := build_line(folder)):
            raise ConfigError(f"{folder}: holds images and not their shards, which `{line}` writes") from None
        raise ConfigError(_without_index(Path(folder))) from None
    except (ValueError, RecursionError) as error:  # not text, not JSON, or a number of 5,000 digits
        raise ConfigError(f"{path}: damaged ({error}); {REBUILD}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{path}: not an index of format {FORMAT}; {REBUILD}")
    if content.get("index_sha256") != _own_sha256(content):
        raise ConfigError(f"{path}: altered, its content does not have the sha256 that it states; {REBUILD}")
    samples = _read_samples(path.with_name(SAMPLES_FILE), content.get("samples_sha256"))
    try:
        columns = columns_of(content, samples)
    except ConfigError as error:
        raise ConfigError(f"{error.reason}; {REBUILD}", place=str(path)) from None
    facts: dict[str, Any] = {name: content[name] for name in FIELDS}
    return Index(folder=Path(folder), **(facts | columns), built_from=content.get("built_from", ""))


def _read_samples(path: Path, sha256: Any) -> dict[str, np.ndarray]:
    """Return the columns of `samples.npy`, memory-mapped, after a check of the file's ``sha256``."""
    try:
        actual = hash_file(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: missing; copy it too, it is a part of {INDEX_FILE}, or {REBUILD}") from None
    if actual != sha256:
        raise ConfigError(f"{path}: altered, its sha256 is not the one that {INDEX_FILE} states; {REBUILD}")
    try:
        rows = np.lib.format.open_memmap(path, mode="r")  # refuses pickles
    except (ValueError, TypeError, OverflowError, EOFError, SyntaxError, tokenize.TokenError) as error:  # numpy parses the header as Python
        raise ConfigError(f"{path}: damaged ({str(error).partition(chr(10))[0]}); {REBUILD}") from None
    return {name: rows[name] for name in rows.dtype.names or ()}


def load_index(folder: str | Path, rank: int = 0, world_size: int = 1) -> Index:
    """Read the index of a folder of shards and check that every shard is there in its full length.

    This is fast, since shards are not read: `shards.verify` reads them, and so does building the cache. The ranks of a node share the
    check, because 512 ranks that each asked for 14,000 files would keep a file system busy for minutes.

    Raises:
        ConfigError: a file is missing, truncated or damaged; the message names it.
    """
    index = read_index(folder)
    for problem in size_problems(index, slice(rank, None, world_size)):
        raise ConfigError(problem)
    return index


def size_problems(index: Index, shards: slice = slice(None)) -> Iterator[str]:
    """Yield a line for each of ``shards`` that is missing or has another length than the index says."""
    for shard in index.shards[shards]:
        path = index.folder / shard["name"]
        try:
            status = path.stat()
        except OSError:
            status = None
        if status is None or not stat.S_ISREG(status.st_mode):
            yield _gone(path) if path.is_symlink() else f"{path}: missing; {REBUILD}"
        elif status.st_size != shard["bytes"]:
            yield f"{path}: truncated or altered, {status.st_size:,} bytes instead of {shard['bytes']:,}; {REBUILD}"


def _gone(link: Path) -> str:
    """Return the message about a shard whose tar, which is read in place through a link, is gone."""
    return f"{link}: what it links to is gone, {os.readlink(link)}; put that back, or build from where it is now with --rebuild"


def read_image(descriptor: int, index: Index, position: int) -> np.ndarray:
    """Return the RGB pixels (H, W, 3) of the sample at ``position``, read from its open shard.

    Raises:
        ConfigError: its bytes are not those that were written, or not an image; the message names shard, position and offset.
    """
    encoded = os.pread(descriptor, int(index.size[position]), int(index.offset[position]))
    if zlib.crc32(encoded) != index.crc32[position]:
        raise ConfigError(f"{index.describe(position)}: altered, its bytes are not those that were written; {REBUILD}")
    return decode(encoded, index.describe(position))


def _without_index(folder: Path) -> str:
    """Return what to do with a folder that has no index; if it holds other files, no shards should be written into it."""
    if folder.is_dir() and any(folder.iterdir()):
        return f"{folder / 'index.json'} does not exist: name a folder that `vitssl shards build SOURCE FOLDER` wrote"
    similar = closest(folder.name, [path.parent.name for path in folder.parent.glob("*/index.json")])
    suggestion = did_you_mean([str(folder.with_name(name)) for name in similar])
    return f"{folder / 'index.json'} does not exist{suggestion}: write the shards with `vitssl shards build SOURCE {folder}`"
