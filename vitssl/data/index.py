"""The index of a folder of shards: what is where, so that one permutation serves cached and streamed data.

`index.json` lists the shards in the order of the samples; a shard holds samples of one split. `samples.npy` has a row for each sample:
ImageNet's are read in 0.07 s, where JSON took 1.5 s.

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
    """The index: `index.json`'s fields and `samples.npy`'s columns. Arrays have one entry per sample, in the order of the shards."""

    folder: Path
    name: str
    source: str  # fingerprint of the listing that the shards were built from
    sha256: str  # of the content: independent of the name, the path and the time
    classes: list[str]
    mean: list[float]  # of the train split's pixels, RGB in [0, 1]
    std: list[float]
    shards: list[dict[str, Any]]  # name, split, images, bytes, sha256
    offset: np.ndarray  # of the encoded image within the shard, bytes
    size: np.ndarray  # of the encoded image, bytes
    label: np.ndarray  # -1 where there is none
    height: np.ndarray  # pixels
    width: np.ndarray
    crc32: np.ndarray  # of the encoded image
    group: np.ndarray | None = None  # number of the patient, scene and so on that it belongs to; None where nothing says so

    def __len__(self) -> int:
        return len(self.label)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in (*COLUMNS, *([] if self.group is None else [GROUP]))}

    @cached_property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(shard["split"] for shard in self.shards))

    @cached_property
    def shard(self) -> np.ndarray:
        """Position in `shards` of each sample's shard."""
        return np.repeat(np.arange(len(self.shards)), [shard["images"] for shard in self.shards])

    @cached_property
    def split(self) -> np.ndarray:
        """Position in `splits` of each sample's split."""
        return np.array([self.splits.index(shard["split"]) for shard in self.shards])[self.shard]

    @property
    def sizes_N2(self) -> np.ndarray:
        """(height, width) of each sample."""
        return np.stack([self.height, self.width], axis=1)

    def where(self, splits: str) -> np.ndarray:
        """Positions of the samples of splits joined by "+" (see `named`), in rising order.

        Raises:
            ConfigError: a split that the shards do not have.
        """
        codes = []
        for split in named(splits, self.splits):
            if split not in self.splits:
                raise ConfigError(f"{self.folder}: there is no split {split!r}; it has {', '.join(self.splits)}")
            codes.append(self.splits.index(split))
        return np.flatnonzero(np.isin(self.split, codes))

    def describe(self, position: int) -> str:
        """Where a sample lies, for messages: shard file, offset and number in the index."""
        shard = self.folder / self.shards[self.shard[position]]["name"]
        return f"{shard}: image {position} at byte {self.offset[position]}"


def named(splits: str, there: Collection[str]) -> list[str]:
    """The splits that are joined by "+", as the shards spell them; one that ends in "?" only if it is there, as in train+unlabeled?."""
    wanted = [(split.removesuffix("?"), split.endswith("?")) for split in splits.split("+")]
    written = [(split if split in there else spelled(split), perhaps) for split, perhaps in wanted]
    return [split for split, perhaps in written if not perhaps or split in there]


def unwritten(folder: str | Path, name: str, classes: list[str], labels: dict[str, np.ndarray], group: np.ndarray | None = None) -> Index:
    """The index of shards that are not written yet: its splits with the labels of their images, their groups, and nothing of the images
    themselves."""
    shards = [{"name": "", "split": split, "images": len(of_split)} for split, of_split in labels.items()]
    label = np.concatenate(list(labels.values()))
    columns = {column: np.zeros(len(label), np.int64) for column in COLUMNS} | {"label": label}
    return Index(Path(folder), name, source="", sha256="", classes=classes, mean=[], std=[], shards=shards, **columns, group=group)


def write_index(index: Index) -> None:
    """Write the samples, and then `index.json`, which makes a folder of shards whole."""
    rows, stream = np.empty(len(index), [(name, FORMATS[name]) for name in index.columns]), io.BytesIO()
    for name, column in index.columns.items():
        rows[name] = column
    np.save(stream, rows)
    write_atomically(index.folder / SAMPLES_FILE, stream.getbuffer())
    content = {"format": FORMAT} | {name: getattr(index, name) for name in FIELDS}
    content["samples_sha256"] = hashlib.sha256(stream.getbuffer()).hexdigest()
    content["index_sha256"] = _own_sha256(content)
    write_atomically(index.folder / INDEX_FILE, json.dumps(content, separators=(",", ":")).encode())


def _own_sha256(content: dict[str, Any]) -> str:
    """sha256 over `index.json` itself, which states it."""
    return sha256_of({key: value for key, value in content.items() if key != "index_sha256"})


def fingerprint(index: Index) -> str:
    """sha256 over everything in an index that is content: not the name, nor the listing it was built from."""
    content = {name: getattr(index, name) for name in FIELDS if name not in ("name", "source", "sha256")}
    columns = {name: column.tolist() for name, column in index.columns.items()}
    # format: of this mapping, not of index.json; another would give every data set another fingerprint, and Runs state theirs
    return sha256_of({"format": 1, **content, "samples": columns})


def sha256_of(content: dict[str, Any]) -> str:
    """Of what becomes JSON, in whichever order its keys stand."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def unfinished(folder: str | Path) -> str:
    """What to do with a folder whose build was interrupted; empty for others."""
    if not (Path(folder) / UNFINISHED).is_dir():
        return ""
    return f"{folder}: holds an unfinished build; the same `vitssl shards build SOURCE {folder}` goes on with it"


def read_index(folder: str | Path) -> Index:
    """The index of a folder, checked in itself but not against the shard files; see `load_index`."""
    path = Path(folder) / INDEX_FILE
    try:
        content = json.loads(read_whole(path).decode("utf-8"))
    except FileNotFoundError:
        if told := unfinished(folder):
            raise ConfigError(told) from None
        if holds_runs(folder):
            raise ConfigError(f"{folder}: {OF_RUNS}") from None
        if not path.with_name(SAMPLES_FILE).exists() and (line := build_line(folder)):
            raise ConfigError(f"{folder}: holds images and not their shards, which `{line}` writes") from None
        raise ConfigError(_without_index(Path(folder))) from None
    except (ValueError, RecursionError) as error:  # no text, no JSON, a number of 5,000 digits
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
    return Index(folder=Path(folder), **{name: content[name] for name in FIELDS}, **columns)


def _read_samples(path: Path, sha256: Any) -> dict[str, np.ndarray]:
    """The columns of `samples.npy`, still on the disk."""
    try:
        found = hash_file(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: missing; copy it too, it is a part of {INDEX_FILE}, or {REBUILD}") from None
    if found != sha256:
        raise ConfigError(f"{path}: altered, its sha256 is not the one that {INDEX_FILE} states; {REBUILD}")
    try:
        rows = np.lib.format.open_memmap(path, mode="r")  # never a pickle
    except (ValueError, TypeError, OverflowError, EOFError, SyntaxError, tokenize.TokenError) as error:  # its header is Python
        raise ConfigError(f"{path}: damaged ({str(error).partition(chr(10))[0]}); {REBUILD}") from None
    return {name: rows[name] for name in rows.dtype.names or ()}


def load_index(folder: str | Path, rank: int = 0, world_size: int = 1) -> Index:
    """The index of a folder of shards, after a check that every shard is there in its full length.

    Fast: shards are not read. `shards.verify` reads them, and so does building the cache. The ranks of a node share the check: 512
    that asked for 14,000 files each would keep a file system busy for minutes.

    Raises:
        ConfigError: naming the file that is missing, truncated or damaged.
    """
    index = read_index(folder)
    for problem in size_problems(index, slice(rank, None, world_size)):
        raise ConfigError(problem)
    return index


def size_problems(index: Index, shards: slice = slice(None)) -> Iterator[str]:
    """A line for each of these shards that is missing or has another length than the index says."""
    for shard in index.shards[shards]:
        path = index.folder / shard["name"]
        try:
            found = path.stat()
        except OSError:
            found = None
        if found is None or not stat.S_ISREG(found.st_mode):
            yield _gone(path) if path.is_symlink() else f"{path}: missing; {REBUILD}"
        elif found.st_size != shard["bytes"]:
            yield f"{path}: truncated or altered, {found.st_size:,} bytes instead of {shard['bytes']:,}; {REBUILD}"


def _gone(link: Path) -> str:
    """What to say of a shard that is another's tar, read in place."""
    return f"{link}: what it links to is gone, {os.readlink(link)}; put that back, or build from where it is now with --rebuild"


def read_image(descriptor: int, index: Index, position: int) -> np.ndarray:
    """RGB pixels (H, W, 3) of a sample, read at random from its open shard.

    Raises:
        ConfigError: naming shard, position and offset, when its bytes are not those that were written, or not an image.
    """
    encoded = os.pread(descriptor, int(index.size[position]), int(index.offset[position]))
    if zlib.crc32(encoded) != index.crc32[position]:
        raise ConfigError(f"{index.describe(position)}: altered, its bytes are not those that were written; {REBUILD}")
    return decode(encoded, index.describe(position))


def _without_index(folder: Path) -> str:
    """What to do where there are no shards: in a folder that holds something else, none are to be written."""
    if folder.is_dir() and any(folder.iterdir()):
        return f"{folder / 'index.json'} does not exist: name a folder that `vitssl shards build SOURCE FOLDER` wrote"
    near = closest(folder.name, [path.parent.name for path in folder.parent.glob("*/index.json")])
    meant = did_you_mean([str(folder.with_name(name)) for name in near])
    return f"{folder / 'index.json'} does not exist{meant}: write the shards with `vitssl shards build SOURCE {folder}`"
