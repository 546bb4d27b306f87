"""One shard of a build: its samples written as a tar, and a record of what the tar holds, from which the index is made."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tokenize
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vitssl.atomic import move, write_atomically
from vitssl.config import ConfigError
from vitssl.config.data import SHUFFLE_WINDOW
from vitssl.data.building import listing
from vitssl.data.building.near_duplicates import signatures, thumbnail
from vitssl.data.index import sha256_of
from vitssl.data.index_schema import UNFINISHED
from vitssl.data.pixels import decode, depth
from vitssl.data.sources.samples import InOrder, Sample, Source, Tars
from vitssl.files import hash_file
from vitssl.reader import MOST_IMAGE_BYTES, read_whole
from vitssl.words import note

if TYPE_CHECKING:
    from webdataset import TarWriter


@dataclass(frozen=True)
class Job:
    """One shard: samples ``start`` up to, but not including, ``stop`` of a split."""

    folder: Path
    split: str
    number: int
    start: int
    stop: int
    listing: str  # `listing.digest` of the shard's rows

    @property
    def tar(self) -> Path:
        return self.folder / f"{self.split}-{self.number:06d}.tar"

    @property
    def record_file(self) -> Path:
        return self.folder / UNFINISHED / f"{self.split}-{self.number:06d}.json"

    @property
    def signatures(self) -> Path:
        return self.record_file.with_suffix(".npy")

    def record(self) -> dict[str, Any]:
        """Return what was written: the shard as the index has it (None if no image was usable), a row for each image, and what was found.

        Raises:
            ValueError: the record, or the signatures of its images, are not as they were written.
        """
        record = json.loads(read_whole(self.record_file))
        intact = isinstance(record, dict) and record.pop("sha256", None) == sha256_of(record)
        if not intact or np.load(self.signatures, mmap_mode="r").shape[:1] != (len(record["rows"]),):
            raise ValueError("not as it was written")
        return record

    def is_finished(self, skip_bad: bool) -> bool:
        """Whether the shard was written from what is listed now, with every image unless ``skip_bad`` lets bad ones be left out."""
        if not (self.record_file.exists() and self.signatures.exists()):
            return False
        try:
            record = self.record()
        except (ValueError, EOFError, RecursionError, SyntaxError, TypeError, tokenize.TokenError) as error:
            reason = str(error).partition("\n")[0]
            note(f"{self.record_file.with_suffix('')}: the record of a shard is damaged ({reason}); it is written again")
            return False
        if record["listing"] != self.listing or (record["left_out"] and not skip_bad):
            return False
        shard = record["shard"]
        return shard is None or (self.tar.exists() and self.tar.stat().st_size == shard["bytes"])


def shuffled(source: Source, listed: list[listing.Row]) -> tuple[Source, list[listing.Row]]:
    """Return a source and its rows with the images of large splits in random order, which is always the same.

    Sources list their images class by class. Shards in that order could not be read one after the other in training (`loading.order`).
    """
    splits, rows, offset = dict(source.splits), [], 0
    for split, samples in source.splits.items():
        split_rows, offset = listed[offset : offset + len(samples)], offset + len(samples)
        if len(samples) > SHUFFLE_WINDOW and not isinstance(source, Tars):
            permutation = shard_order(len(samples))
            splits[split], split_rows = InOrder(samples, permutation), [split_rows[i] for i in permutation]
        rows += split_rows
    return replace(source, splits=splits), rows


def shard_order(num_images: int) -> np.ndarray:
    """Return the positions in the listing of a split with ``num_images`` images, in the order in which its shards hold them."""
    if num_images <= SHUFFLE_WINDOW:
        return np.arange(num_images)
    return np.random.default_rng([*b"shards"]).permutation(num_images)


def jobs(source: Source, listed: list[listing.Row], folder: Path, images_per_shard: int) -> Iterator[Job]:
    """Yield the shards of a source whose rows are ``listed``; each tar that stays where it is is one shard."""
    if isinstance(source, Tars):
        images_per_shard = 1
    offset = 0
    for split, samples in source.splits.items():
        for number, start in enumerate(range(0, len(samples), images_per_shard)):
            stop = min(start + images_per_shard, len(samples))
            yield Job(folder, split, number, start, stop, listing.digest(listed[offset + start : offset + stop], source))
        offset += len(samples)


def write(task: tuple[Job, list[Sample]]) -> int:
    """Write one tar and, when it is in place, the record of what it holds. Return the number of samples.

    Images that cannot be read or decoded are left out and recorded.
    """
    from webdataset import TarWriter  # imports torch, which commands that only list shards do without

    job, samples = task
    written = Written()
    temporary = job.record_file.with_suffix(".tar")
    with open(temporary, "wb") as stream:
        with TarWriter(stream, user="", group="", mode=0o644, mtime=0, encoder=False) as tar:
            for i, sample in enumerate(samples, job.start):
                written.add(tar, i, sample)
        stream.flush()
        os.fsync(stream.fileno())
    written.finish(job, temporary)
    return len(samples)


class Written:
    """The contents of a shard's tar so far."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.totals = np.zeros((3, 3), dtype=object)
        self.thumbnails: list[np.ndarray] = []
        self.scaled: Counter[str] = Counter()
        self.left_out: list[tuple[int, str]] = []  # number within the split, and the reason

    def add(self, tar: TarWriter, number: int, sample: Sample) -> None:
        """Write a sample into the tar and count it in, or leave it out if its image cannot be used."""
        try:
            image = stored(sample)
        except ConfigError as error:
            self.left_out.append((number, str(error)))
            return
        offset = tar.tarstream.offset + tarfile.BLOCKSIZE  # the image is the first member, behind its header
        tar.write({"__key__": f"{number:08d}", decode.extension(image.encoded): image.encoded})
        tar.write({"__key__": f"{number:08d}", "cls": str(sample.label).encode()})
        self.keep(offset, sample.label, image)

    def keep(self, offset: int, label: int, image: Stored) -> None:
        """Add an image that lies in the tar to the counts."""
        self.rows.append((offset, len(image.encoded), label, *image.pixels.shape[:2], zlib.crc32(image.encoded)))
        self.totals += _totals(image.pixels)
        self.thumbnails.append(thumbnail(image.pixels))
        self.scaled.update([image.scaled_from] if image.scaled_from else [])

    def finish(self, job: Job, temporary: Path, **more: Any) -> None:
        """Move the tar, or a link to it, into its place and then write the record of what it holds. Without any images there is no tar.

        The signatures come first: a tar whose name is not in the folder of the unfinished build counts as somebody else's.
        """
        job.record_file.unlink(missing_ok=True)  # it may be of other images
        thumbnails, shard = io.BytesIO(), None
        np.save(thumbnails, signatures(self.thumbnails))
        write_atomically(job.signatures, thumbnails.getbuffer())
        if self.rows:
            size, sha256 = temporary.stat().st_size, hash_file(temporary)
            shard = {"name": job.tar.name, "split": job.split, "images": len(self.rows), "bytes": size, "sha256": sha256}
            move(temporary, job.tar)
        record = {"shard": shard, "listing": job.listing} | self._record() | more
        write_atomically(job.record_file, json.dumps(record | {"sha256": sha256_of(record)}).encode())

    def _record(self) -> dict[str, Any]:
        return {"rows": self.rows, "totals": self.totals.tolist(), "scaled": self.scaled, "left_out": self.left_out}


class Stored(NamedTuple):
    """An image as a shard holds it."""

    encoded: bytes
    pixels: np.ndarray  # RGB (H, W, 3) uint8
    scaled_from: str | None  # what it was scaled from, in words, or None


def stored(sample: Sample) -> Stored:
    """Return what a shard holds of a sample: a file's own bytes, or a PNG of an array or of a file that `decode` would read differently.

    Raises:
        ConfigError: the image cannot be read or used; the message names it.
    """
    if not isinstance(sample.image, str):
        levels = depth.to_levels(sample.image, sample.name)
        pixels = decode.rgb_array(levels.pixels, sample.name)
        return Stored(decode.encode_png(levels.pixels), pixels, levels.scaled_from)
    try:
        encoded = read_whole(sample.image, MOST_IMAGE_BYTES)
    except OSError as error:
        raise ConfigError(f"{sample.image}: cannot be read ({error.strerror})") from None
    pixels, scaled_from = decode.decode_file(encoded, sample.image)
    if scaled_from and not np.array_equal(decode.decode(encoded, sample.image), pixels):
        encoded = decode.encode_png(pixels[:, :, 0])
    return Stored(encoded, pixels, scaled_from)


def _totals(pixels: np.ndarray) -> np.ndarray:
    """Return (number, sum, sum of squares) x RGB, in exact integers, so that the order of adding does not matter."""
    flat = pixels.reshape(-1, 3)
    levels = np.arange(256, dtype=np.int64)
    counts = np.stack([np.bincount(flat[:, c], minlength=256) for c in range(3)], axis=1)
    return np.array([counts.sum(0).tolist(), (levels @ counts).tolist(), (levels**2 @ counts).tolist()], dtype=object)
