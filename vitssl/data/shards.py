"""Shards: a data set written once as WebDataset tar files and an index.

Each tar holds samples of one split, each as two members: ``00000017.jpg`` (the original bytes of a file, or a PNG of an array or of an
image that had to be scaled to 8 bits) and ``00000017.cls`` (the label in decimal, -1 if there is none). Nothing in a shard depends on
the path, the time or the number of workers. The images of large splits are in random order. Tars that somebody else wrote can serve as
shards where they are (`vitssl.data.building.in_place`).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import IO, Any

from vitssl import pool
from vitssl.atomic import write_atomically
from vitssl.config import ConfigError
from vitssl.data.building import findings, finishing, in_place, listing, writing
from vitssl.data.building.inspecting import info, verify
from vitssl.data.index import Index, load_index, read_index, write_index
from vitssl.data.index_schema import INDEX_FILE, SAMPLES_FILE, UNFINISHED
from vitssl.data.sources import folders
from vitssl.data.sources.build_line import build_command
from vitssl.data.sources.opening import open_source
from vitssl.data.sources.samples import Source, Tars
from vitssl.files import flock, open_lock
from vitssl.reader import read_whole
from vitssl.records import LINE

__all__ = ["Index", "build", "info", "load_index", "rebuild", "verify"]

IMAGES_PER_SHARD = 1000
# files that a build leaves in a folder besides shards, and that a rebuild may delete
OURS = rf"{INDEX_FILE}|{SAMPLES_FILE}|{findings.FILE}|{listing.FILE}|{finishing.BAD_IMAGES}|{UNFINISHED}|\.lock|\..+\.\d+\.tmp"


def build(
    source: str,
    out: str | Path,
    *,
    workers: int | None = None,
    images_per_shard: int = IMAGES_PER_SHARD,
    skip_bad: bool = False,
    progress: bool = True,
) -> Index:
    """Write the shards and the index of a source into a folder, and return the index.

    Every image is decoded once, so that unreadable ones are found here. Shards are written under a temporary name and renamed;
    `index.json` comes last and makes the folder complete. An interrupted build continues where it stopped, and a complete folder
    is left as it is. Two builds into one folder wait for each other.

    Args:
        source: see `vitssl.data.sources.opening`.
        workers: number of processes; None takes every core.
        skip_bad: leave out images that cannot be read or decoded; `found.json` names them.

    Raises:
        ConfigError: the source cannot be opened, images cannot be used (all of them are listed on stderr and in a file) or show nothing,
            or the folder holds another source; the message is one line.
    """
    out = Path(out)
    _finish_exchange(out.resolve())
    opened = _open(source, out)
    listed = listing.rows(opened)
    if index := _complete(out, source, opened, listed):
        return index
    if out.is_dir() and not (out / UNFINISHED).is_dir():
        _refuse_strangers(out)  # before a lock file is left in a folder of photos
    with _locked(out):
        if index := _complete(out, source, opened, listed):  # another process built it while we waited
            return index
        try:
            _start(out, opened)
            shuffled, rows = writing.shuffled(opened, listed)
            records = _written(shuffled, rows, out, images_per_shard, workers, skip_bad, progress)
            if not skip_bad:
                finishing.refuse_bad_images(out, records)
            return _finished(shuffled, listed, out, records, progress, source)
        except OSError as error:
            raise ConfigError(f"{out}: writing failed ({error.strerror}); fix that and build again, what is done is kept") from None


def rebuild(source: str, out: str | Path, **options: Any) -> Index:
    """Write the shards of a source in place of those in a folder, which stay as they are until the new ones are complete.

    The new shards are built in a hidden folder beside the old one, where an interrupted build continues. Then the two are exchanged.

    Args:
        options: those of `build`.

    Raises:
        ConfigError: as in `build`, or the folder holds files that no build wrote.
    """
    target = Path(out).resolve()
    _finish_exchange(target)
    if not (target / INDEX_FILE).exists():
        return build(source, out, **options)
    _refuse_strangers(target)
    opened, staging = _open(source, target), _staging(target)
    with _locked(target):
        if (staging / INDEX_FILE).exists() or not _continues(staging, opened):
            _delete(staging)
        build(source, staging, **options)
        _exchange(staging, target)
    return load_index(out)


def _staging(target: Path) -> Path:
    return target.with_name(f".{target.name}.rebuild")


def _exchange(staging: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.replaced")
    _delete(old)
    os.rename(target, old)
    os.rename(staging, target)
    _delete(old)


def _finish_exchange(target: Path) -> None:
    """Move new shards into place after a rebuild that was killed between its two renamings."""
    if not target.exists() and (_staging(target) / INDEX_FILE).exists():
        os.rename(_staging(target), target)


def _refuse_strangers(folder: Path) -> None:
    """Raise a ConfigError if the folder holds a file that no build wrote."""
    shard_names = _shards_of(folder)
    if strangers := sorted(path.name for path in folder.iterdir() if path.name not in shard_names and not re.fullmatch(OURS, path.name)):
        raise ConfigError(f"{folder}: holds {strangers[0]}, which is not of its shards; move it, or choose another folder")


def _shards_of(folder: Path) -> set[str]:
    """Return the names of the tars that a build wrote into the folder: those of the index and those of an unfinished build."""
    indexed = {shard["name"] for shard in read_index(folder).shards} if (folder / INDEX_FILE).exists() else set()
    return indexed | _begun(folder)


def _begun(folder: Path) -> set[str]:
    """Return the names of the tars that an unfinished build has at least begun."""
    return {f"{path.stem}.tar" for path in (folder / UNFINISHED).glob("*")}


def _delete(folder: Path) -> None:
    """Delete a folder of shards, if it exists. The index goes after the shards, since it says which files are shards."""
    if folder.exists():
        _refuse_strangers(folder)
        for name in _shards_of(folder):
            (folder / name).unlink(missing_ok=True)
        (folder / INDEX_FILE).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _locked(out: Path) -> IO:
    """Return the lock file of a folder, which stays locked until it is closed."""
    while True:
        lock = open_lock(out / ".lock", "OUT")
        flock(lock, fcntl.LOCK_EX)
        if (out / ".lock").exists() and os.path.samestat(os.fstat(lock.fileno()), os.stat(out / ".lock")):
            return lock
        lock.close()  # a rebuild replaced the folder while we waited


def _open(source: str, out: Path) -> Source:
    try:
        opened = open_source(source)
    except folders.NoTestSplit as error:
        line = build_command(error.source, out)
        raise ConfigError(f"{error.found}; to hold out a fifth of each class for testing, type `{line}`") from None
    first_images = [Path(image) for samples in opened.splits.values() if isinstance(image := samples[0].image, str)]
    if any(path.is_relative_to(out.resolve()) for image in first_images for path in (image.resolve(), image.parent.resolve())):
        raise ConfigError(f"{out}: holds the images themselves; choose another folder for their shards")
    return opened


def _complete(out: Path, source: str, opened: Source, listed: list[listing.Row]) -> Index | None:
    """Return the index of a folder that is complete, or None for other folders.

    Raises:
        ConfigError: the folder holds the shards of another source.
    """
    if not (out / INDEX_FILE).exists():
        return None
    index = load_index(out)
    if index.source != listing.digest(listed, opened):
        differing = f"differ from {source}: {listing.difference(index, listed, opened)}"
        replace = f"`{build_command(source, out)} --rebuild` replaces them"
        raise ConfigError(f"{out}: holds the shards of {index.name}, which {differing}; {replace}, or choose another folder")
    print(f"{out}: already holds all shards of {source}, nothing to do", file=sys.stderr)
    return index


def _plan(source: Source) -> dict[str, Any]:
    classes = [] if isinstance(source, Tars) else source.classes  # tars are read again if their classes are named anew
    return {"name": source.name, "classes": classes}


def _continues(out: Path, source: Source) -> bool:
    """Whether the unfinished build in a folder is a build of ``source``.

    Raises:
        ConfigError: the plan of that build is damaged, so that this cannot be told.
    """
    path = out / UNFINISHED / "plan.json"
    try:
        return path.exists() and json.loads(read_whole(path)) == _plan(source)
    except (ValueError, RecursionError) as error:
        reason = f"damaged ({error}), so that the unfinished build in {out} cannot go on; delete that folder and build again"
        raise ConfigError(reason, place=str(path)) from None


def _start(out: Path, source: Source) -> None:
    """Begin or continue the build of a source in ``out``.

    Raises:
        ConfigError: the folder holds an unfinished build of other data, or files that no build wrote.
    """
    path = out / UNFINISHED / "plan.json"
    if path.exists() and not _continues(out, source):
        raise ConfigError(f"{out}: holds an unfinished build of other data than {source.name}; choose another folder or delete it")
    _refuse_strangers(out)
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(_plan(source)).encode())


def _written(
    source: Source, listed: list[listing.Row], out: Path, images_per_shard: int, workers: int | None, skip_bad: bool, progress: bool
) -> finishing.Records:
    """Write the shards that are missing, and return the records of all shards."""
    jobs = list(writing.jobs(source, listed, out, images_per_shard))
    missing = [job for job in jobs if not job.is_finished(skip_bad)]
    tasks = ((job, [source.splits[job.split][i] for i in range(job.start, job.stop)]) for job in missing)
    with pool.progress_bar(f"shards of {source.name}", len(listed), progress) as advance:
        advance(len(listed) - sum(job.stop - job.start for job in missing))
        pool.run(in_place.writer(source), tasks, workers=pool.processes(workers, missing), advance=advance)
    return [(job, job.record()) for job in jobs]


def _finished(source: Source, listed: list[listing.Row], out: Path, records: finishing.Records, progress: bool, typed: str) -> Index:
    """Write the findings and the listing and then, when everything else is in place, the index, which is returned."""
    images, records = in_place.images(source, records)
    index = finishing.index_of(images, listing.digest(listed, source), out, records)
    for stale in _begun(out) - {shard["name"] for shard in index.shards}:
        (out / stale).unlink(missing_ok=True)  # the source has shrunk since the build began
    index.built_from = "" if LINE.problem(typed) else typed  # a path may be no text
    findings.write(out, finishing.find(images, records, progress))
    listing.write(out / listing.FILE, listed, source.classes)
    write_index(index)
    (out / finishing.BAD_IMAGES).unlink(missing_ok=True)
    shutil.rmtree(out / UNFINISHED)
    return index
