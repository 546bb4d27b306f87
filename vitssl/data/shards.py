"""Shards: a data set written once as WebDataset tar files and an index.

Each tar holds samples of one split as two members, ``00000017.jpg`` (the original bytes of a file, or a PNG of an array) and
``00000017.cls`` (the label in decimal, -1 where there is none). Nothing in a shard depends on the path, the time or the
number of workers.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from vitssl.config import ConfigError
from vitssl.data import decode, pool
from vitssl.data.index import (
    COLUMNS,
    INDEX_FILE,
    REBUILD,
    UNFINISHED,
    Index,
    fingerprint,
    load_index,
    read_image,
    read_index,
    size_problems,
    to_json,
)
from vitssl.data.paper_counts import comparison
from vitssl.data.sources import Sample, Source, open_source
from vitssl.files import flock, hash_file, move, open_lock, write_atomically

__all__ = ["Index", "build", "info", "listing", "load_index", "verify"]

IMAGES_PER_SHARD = 1000


def build(
    source: str, out: str | Path, *, workers: int | None = None, images_per_shard: int = IMAGES_PER_SHARD, progress: bool = True
) -> Index:
    """Write the shards and the index of a source into a folder.

    Every image is decoded once, so that what cannot be read is found here. Shards are written under a temporary name and
    renamed; `index.json` comes last and makes the folder complete. An interrupted build continues where it stopped; on a
    complete folder nothing is done. Two builds into one folder wait for each other.

    Args:
        source: see `vitssl.data.sources`.
        workers: processes; None takes every core.

    Raises:
        ConfigError: a source that cannot be opened or decoded, or a folder that holds another source; one line.
    """
    out = Path(out)
    opened = open_source(source)
    _refuse_own_images(out, opened)
    listing = _digest(opened.samples(), opened.classes)
    if index := _complete(out, source, listing):
        return index
    with open_lock(out / ".lock", "OUT") as lock:
        flock(lock, fcntl.LOCK_EX)
        if index := _complete(out, source, listing):  # another process built it while we waited
            return index
        try:
            _start(out, opened)
            return _build(opened, listing, out, images_per_shard, workers or pool.cpu_count(), progress)
        except OSError as error:
            raise ConfigError(f"{out}: writing failed ({error.strerror}); fix that and build again, what is done is kept") from None


def _refuse_own_images(out: Path, source: Source) -> None:
    first = next((image for _, (_, _, image) in source.samples() if isinstance(image, str)), None)
    if first is not None and Path(first).resolve().is_relative_to(out.resolve()):
        raise ConfigError(f"{out}: holds the images themselves; choose another folder for their shards")


def _digest(samples: Iterable[tuple[str, Sample]], classes: list[str]) -> str:
    """Fingerprint of what a source lists, without reading files: names, labels, and sizes of files or pixels of arrays."""
    digest = hashlib.sha256(json.dumps(classes).encode())
    for split, (name, label, image) in samples:
        size = os.path.getsize(image) if isinstance(image, str) else f"{image.shape} {zlib.crc32(np.ascontiguousarray(image))}"
        digest.update(f"{split}\0{name}\0{label}\0{size}\n".encode())
    return digest.hexdigest()


def listing(source: str) -> str:
    """Fingerprint of what a source lists now: `Index.source` of the shards that are built from it.

    Raises:
        ConfigError: a source that cannot be opened; one line.
    """
    opened = open_source(source)
    return _digest(opened.samples(), opened.classes)


def _complete(out: Path, source: str, listing: str) -> Index | None:
    """The index of a folder that is complete."""
    if not (out / INDEX_FILE).exists():
        return None
    index = load_index(out)
    if index.source != listing:
        raise ConfigError(f"{out}: holds the shards of {index.name}, which differ from {source}; choose another folder")
    print(f"{out}: already holds all shards of {source}, nothing to do", file=sys.stderr)
    return index


def _start(out: Path, source: Source) -> None:
    """Begin or continue the build of a source in ``out``."""
    path = out / UNFINISHED / "plan.json"
    plan = {"name": source.name, "classes": source.classes}
    if path.exists():
        if json.loads(path.read_text()) != plan:
            raise ConfigError(f"{out}: holds an unfinished build of other data than {source.name}; choose another folder or delete it")
        return
    if strangers := sorted(p.name for p in out.glob("*.tar")):
        raise ConfigError(f"{out}: already holds {strangers[0]}, which is not of this build; choose another folder")
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, json.dumps(plan).encode())


@dataclass(frozen=True)
class _Job:
    """One shard: samples ``start`` to ``stop`` of a split."""

    folder: Path
    split: str
    number: int
    start: int
    stop: int
    listing: str  # `_digest` of its samples

    @property
    def tar(self) -> Path:
        return self.folder / f"{self.split}-{self.number:06d}.tar"

    @property
    def record(self) -> Path:
        return self.folder / UNFINISHED / f"{self.split}-{self.number:06d}.json"

    def finished(self) -> bool:
        if not (self.record.exists() and self.tar.exists()):
            return False
        record = json.loads(self.record.read_text())
        return record["listing"] == self.listing and record["bytes"] == self.tar.stat().st_size


def _jobs(source: Source, out: Path, images_per_shard: int) -> Iterator[_Job]:
    for split, samples in source.splits.items():
        for number, start in enumerate(range(0, len(samples), images_per_shard)):
            stop = min(start + images_per_shard, len(samples))
            listing = _digest(((split, samples[i]) for i in range(start, stop)), source.classes)
            yield _Job(out, split, number, start, stop, listing)


def _build(source: Source, listing: str, out: Path, images_per_shard: int, workers: int, progress: bool) -> Index:
    jobs = list(_jobs(source, out, images_per_shard))
    missing = [job for job in jobs if not job.finished()]
    tasks = ((job, [source.splits[job.split][i] for i in range(job.start, job.stop)]) for job in missing)
    with pool.progress_bar(f"shards of {source.name}", sum(job.stop - job.start for job in jobs), progress) as advance:
        advance(sum(job.stop - job.start for job in jobs if job not in missing))
        pool.run(_write_shard, tasks, workers=min(workers, len(missing)), advance=advance)
    for stranger in set(out.glob("*.tar")) - {job.tar for job in jobs}:  # the source has shrunk since the build began
        stranger.unlink()
    index = _collect(source, listing, out, jobs)
    write_atomically(out / INDEX_FILE, json.dumps(to_json(index), separators=(",", ":")).encode())
    shutil.rmtree(out / UNFINISHED)
    return index


def _write_shard(task: tuple[_Job, list[Sample]]) -> int:
    """Write one tar and, when it is in place, the record of what it holds. Returns the number of images."""
    job, samples = task
    rows, totals = [], np.zeros((3, 3), dtype=object)
    temporary = job.record.with_suffix(".tar")
    with open(temporary, "wb") as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for i, sample in enumerate(samples, job.start):
                encoded, pixels = _read(sample)
                offset = _add(tar, f"{i:08d}.{decode.extension(encoded)}", encoded)
                _add(tar, f"{i:08d}.cls", str(sample.label).encode())
                rows.append((offset, len(encoded), sample.label, *pixels.shape[:2], zlib.crc32(encoded)))
                totals += _totals(pixels)
        stream.flush()
        os.fsync(stream.fileno())
    size, sha256 = temporary.stat().st_size, hash_file(temporary)
    shard = {"name": job.tar.name, "split": job.split, "images": len(rows), "bytes": size, "sha256": sha256}
    move(temporary, job.tar)
    record = {"shard": shard, "bytes": size, "listing": job.listing, "rows": rows, "totals": totals.tolist()}
    write_atomically(job.record, json.dumps(record).encode())
    return len(rows)


def _read(sample: Sample) -> tuple[bytes, np.ndarray]:
    """Encoded bytes to be stored, and RGB pixels, of a sample."""
    if isinstance(sample.image, str):
        try:
            encoded = Path(sample.image).read_bytes()
        except OSError as error:
            raise ConfigError(f"{sample.image}: cannot be read ({error.strerror})") from None
        return encoded, decode.decode(encoded, sample.image)
    return decode.encode_png(sample.image), decode.rgb_array(sample.image, sample.name)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> int:
    """Append a member; returns the offset of its content in the tar."""
    member = tarfile.TarInfo(name)  # its owner and time are 0
    member.size = len(content)
    offset = tar.offset + tarfile.BLOCKSIZE
    tar.addfile(member, io.BytesIO(content))
    return offset


def _totals(pixels: np.ndarray) -> np.ndarray:
    """(number, sum, sum of squares) x RGB, in exact integers, so that the order of adding does not matter."""
    flat = pixels.reshape(-1, 3)
    levels = np.arange(256, dtype=np.int64)
    counts = np.stack([np.bincount(flat[:, c], minlength=256) for c in range(3)], axis=1)
    return np.array([counts.sum(0).tolist(), (levels @ counts).tolist(), (levels**2 @ counts).tolist()], dtype=object)


def _collect(source: Source, listing: str, out: Path, jobs: list[_Job]) -> Index:
    records = [json.loads(job.record.read_text()) for job in jobs]
    shards = [record["shard"] for record in records]
    rows = np.array([row for record in records for row in record["rows"]], dtype=np.int64)
    totals = sum(np.array(record["totals"], dtype=object) for record in records if record["shard"]["split"] == "train")
    mean, std = [], []
    for number, first, second in totals.T.tolist():
        mean.append(first / (255 * number))
        std.append((number * second - first**2) ** 0.5 / (255 * number))
    columns = dict(zip(COLUMNS, rows.T.copy(), strict=True))
    index = Index(out, source.name, listing, "", source.classes, mean, std, shards, **columns)
    index.sha256 = fingerprint(to_json(index))
    return index


# ------------------------------------------------------------------------------------------------------ verify and info


def verify(folder: str | Path, *, workers: int | None = None, progress: bool = True) -> list[str]:
    """Read every shard again; one line for each that is missing, truncated or altered, and each image that is undecodable.

    Raises:
        ConfigError: there is no index, or it is damaged.
    """
    index = read_index(folder)
    problems: list[str] = size_problems(index)
    with pool.progress_bar(f"verifying {index.name}", len(index.shards), progress) as advance:

        def add(shard_problems: list[str]) -> None:
            problems.extend(shard_problems)
            advance(1)

        workers = min(workers or pool.cpu_count(), len(index.shards))
        pool.run(partial(_verify_shard, index), range(len(index.shards)), workers=workers, advance=add)
    return sorted(set(problems))


def _verify_shard(index: Index, number: int) -> list[str]:
    shard = index.shards[number]
    path = index.folder / shard["name"]
    if not path.is_file() or path.stat().st_size != shard["bytes"]:
        return []  # already reported
    problems = []
    if hash_file(path) != shard["sha256"]:
        problems.append(f"{path}: altered, its sha256 is not the index's; {REBUILD}")
    with open(path, "rb") as stream:
        for position in np.flatnonzero(index.shard == number):
            try:
                read_image(stream.fileno(), index, position)
            except ConfigError as error:
                problems.append(str(error))
    return problems


def info(folder: str | Path) -> str:
    """A table of what a folder of shards holds, for people."""
    index = load_index(folder)
    counts = comparison(index)
    lines = [
        f"{index.name}: {len(index):,} images, {len(index.classes)} classes, {len(index.shards)} shards",
        f"folder   {index.folder}",
        f"sha256   {index.sha256}",
        f"mean     {' '.join(f'{m:.4f}' for m in index.mean)}   (train, RGB in [0, 1])",
        f"std      {' '.join(f'{s:.4f}' for s in index.std)}",
        *([f"counts   {counts}"] if counts else []),
        *([] if "test" in index.splits else ["warning: there is no split called test; a Run needs data.test_split for its accuracy"]),
        "",
        f"{'split':<12}{'images':>10}{'labelled':>10}{'per class':>14}{'pixels (h x w)':>24}{'MB':>10}",
    ]
    return "\n".join(lines + [_info_row(index, split) for split in index.splits])


def _info_row(index: Index, split: str) -> str:
    positions = index.where(split)
    labels = index.label[positions]
    counts = np.bincount(labels[labels >= 0], minlength=len(index.classes))
    low, high = index.sizes_N2[positions].min(0), index.sizes_N2[positions].max(0)
    pixels = f"{low[0]} x {low[1]}" if (low == high).all() else f"{low[0]}-{high[0]} x {low[1]}-{high[1]}"
    per_class = "-".join(dict.fromkeys([f"{counts.min()}", f"{counts.max()}"])) if len(counts) else "no classes"
    megabytes = sum(shard["bytes"] for shard in index.shards if shard["split"] == split) / 1e6
    return f"{split:<12}{len(positions):>10,}{(labels >= 0).sum():>10,}{per_class:>14}{pixels:>24}{megabytes:>10.1f}"
