"""Every image of a data set decoded once, into one file on the node that all its jobs of a user map into memory.

The file is named by what its pixels follow from (`mark_of`), and holds the pixels of all images one after the other,
channels first; shapes and offsets follow from the index. Behind them is a mark of what they are of, written last: it tells a whole file
from a build that was killed and from another set's. It is no checksum of the pixels, which would be read whole at each start of each job,
tens of seconds for a large set: what they are made of is checked by its sha256 as they are written, and nobody else can change them then.
Next to it is a lock file: the process that builds holds it exclusively, those that read share it, and a cache whose lock nobody holds
may be evicted.

It is all in a folder of this user alone: others of the node, who may write in the same temporary folder, can neither read nor plant
anything. A file is opened only if it is this user's, whatever folder lies there by then.

Shapes: N images of the index.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import random
import shutil
import stat
import tempfile
import time
import weakref
from functools import cached_property, partial
from pathlib import Path
from typing import IO

import numpy as np

from vitssl import pool
from vitssl.atomic import move
from vitssl.config import ConfigError, Data
from vitssl.data.index import REBUILD, Index, read_image
from vitssl.data.pixels.decode import resize, resized_sizes
from vitssl.data.pixels.layout import clear_padding, offsets, places, shape_of
from vitssl.files import flock, hash_file, of_this_user, open_lock

FOLDER_BUDGET = 4  # times data.cache_gb: what the caches of a folder may take together before old ones are evicted
POOL_FROM = 4000  # images; fewer are decoded faster than processes start


MARK_BYTES = 32


class Cache:
    """Decoded images, read-only; in use, and so safe from eviction, until it is closed or garbage-collected."""

    def __init__(self, stream: IO, lock: IO, sizes_N2: np.ndarray):
        self.sizes_N2 = sizes_N2
        self.offsets_N = offsets(sizes_N2)[:-1]
        self.close = weakref.finalize(self, lock.close)
        with stream:
            self._bytes = np.memmap(stream, np.uint8, mode="r")[:-MARK_BYTES]

    @cached_property
    def images_NCHW(self) -> np.ndarray | None:
        """All images as one array, where they have one size."""
        if (self.sizes_N2 != self.sizes_N2[0]).any():
            return None
        return self._bytes.reshape(len(self.sizes_N2), 3, *self.sizes_N2[0])

    def read(self, positions: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Images uint8 in the shape of `layout.shape_of`, zero on the right and below where they are padded, and their sizes (B, 2).

        Args:
            out: flat uint8 memory to write into, large enough for that shape.
        """
        sizes_B2 = self.sizes_N2[positions]
        shape = shape_of(sizes_B2)
        pixels = np.empty(shape, np.uint8) if out is None else out[: math.prod(shape)].reshape(shape)
        if self.images_NCHW is not None:
            # "clip" because "raise" goes through a second buffer; the positions are from the index.
            np.take(self.images_NCHW, positions, axis=0, out=pixels, mode="clip")
            return pixels, sizes_B2
        clear_padding(pixels, sizes_B2)
        for image_CHW, offset in zip(places(pixels, sizes_B2), self.offsets_N[positions], strict=True):
            image_CHW[:] = self._bytes[offset : offset + image_CHW.size].reshape(image_CHW.shape)
        return pixels, sizes_B2


def decoded_bytes(index: Index, data: Data) -> int:
    """Size of the decoded data set, all splits, after resizing to `data.cache_px`."""
    return int(offsets(resized_sizes(index.sizes_N2, data.cache_px))[-1])


def folder_of(data: Data) -> Path:
    """A folder of this user in `data.cache_dir`, else $VITSSL_CACHE_DIR, else $TMPDIR."""
    named = data.cache_dir or os.environ.get("VITSSL_CACHE_DIR") or tempfile.gettempdir()
    return Path(named) / of_this_user()


def private_folder(data: Data) -> Path:
    """`folder_of`, made where it is missing, for files that are trusted because this user wrote them.

    Raises:
        ConfigError: it cannot be made, or others may write to it.
    """
    folder = folder_of(data)
    _make_private(folder)
    return folder


def _make_private(folder: Path) -> None:
    """Create the folder; one that is there must be this user's, and nobody else's to write. From then on nobody else can enter it: who can
    read a lock can also hold it.

    Raises:
        ConfigError: it is not.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"cannot write in {folder} ({error.strerror}); name another folder", "data.cache_dir") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"{folder} is not a folder that this user alone can write to, so what is in it is not trusted"
        raise ConfigError(f"{reason}; delete it, or name another place", "data.cache_dir")
    folder.chmod(0o700)


def _open_own(path: Path, flags: int, mode: str) -> IO:
    """A file of this user's. Where others may rename the folder around it, this holds for what is opened, whatever was looked at before.

    Raises:
        ConfigError: it is somebody else's, or none.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if not stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            return open(descriptor, mode)
        os.close(descriptor)
        why = "a folder" if stat.S_ISDIR(found.st_mode) else "another user's"
    except FileNotFoundError:
        raise
    except OSError as error:  # a link
        why = str(error.strerror)
    raise ConfigError(f"{path} is not a file of the cache ({why}); delete it", "data.cache_dir")


def open_cache(index: Index, data: Data, *, progress: bool = True) -> Cache:
    """The cache of a data set, built first where it is missing or not of these images.

    Of several processes one builds and the others wait. Old caches of the folder are evicted to make room.

    Raises:
        ConfigError: a shard whose bytes are not those that were written, naming it; no room or no permission to write; a folder that
            others may write to.
    """
    folder = private_folder(data)
    sizes_N2, mark = resized_sizes(index.sizes_N2, data.cache_px), mark_of(index, data)
    path = folder / f"{mark.hex()[:20]}-{data.cache_px or 'full'}.u8"
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(_open_lock(path))
        while True:
            flock(lock, fcntl.LOCK_SH)
            if stream := _valid(path, sizes_N2, mark):
                os.utime(stream.fileno())
                stack.pop_all()  # the lock is the cache's from here on
                return Cache(stream, lock, sizes_N2)
            if not _promoted(lock):
                continue
            # Another process may have built it between the two locks, or evict it before the next.
            if stream := _valid(path, sizes_N2, mark):
                stream.close()
            else:
                _make_room(folder, path, data, int(offsets(sizes_N2)[-1]))
                _build(index, path, sizes_N2, mark, progress)


def mark_of(index: Index, data: Data) -> bytes:
    """sha256 of what the pixels follow from: the shards' own sha256, which the build checks, and where the images lie in them. Not
    `index.sha256`, which an index that somebody wrote anew may take from another set."""
    digest = hashlib.sha256(f"{[shard['sha256'] for shard in index.shards]} {data.cache_px}".encode())
    for column in (index.shard, index.offset, index.size, index.height, index.width):
        digest.update(np.ascontiguousarray(column, np.int64))
    return digest.digest()


def _promoted(lock: IO) -> bool:
    """Turn a shared lock into an exclusive one if no other process has any; else release it and wait for a short random time.

    It does not wait for the lock: a process that has the finished cache open keeps a shared lock for as long as it trains.
    """
    try:
        flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        flock(lock, fcntl.LOCK_UN)
        time.sleep(random.uniform(0.01, 0.1))
        return False


def _open_lock(path: Path) -> IO:
    return open_lock(path.with_suffix(".lock"), "data.cache_dir")


def _valid(path: Path, sizes_N2: np.ndarray, mark: bytes) -> IO | None:
    """The cache, opened, if it is one of these images."""
    try:
        stream = _open_own(path, os.O_RDONLY, "rb")
    except FileNotFoundError:
        return None
    found = os.fstat(stream.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_size == offsets(sizes_N2)[-1] + MARK_BYTES:
        stream.seek(-MARK_BYTES, os.SEEK_END)
        if stream.read() == mark:
            return stream
    stream.close()
    return None


def _make_room(folder: Path, path: Path, data: Data, needed: int) -> None:
    """Evict the caches that were opened longest ago, except those in use, until ``needed`` bytes fit."""
    others = []  # time of last opening, bytes and path of the caches and of what killed builds left
    for other in (*folder.glob("*.u8"), *folder.glob("*.tmp")):
        with contextlib.suppress(FileNotFoundError):  # another job may evict it meanwhile
            if other.stem != path.stem and not stat.S_ISDIR(other.lstat().st_mode):
                others.append((other.stat().st_mtime, other.stat().st_size, other))
    total = sum(size for _, size, _ in others)
    for _, size, other in sorted(others):
        if total + needed <= FOLDER_BUDGET * data.cache_gb * 1e9 and needed <= shutil.disk_usage(folder).free:
            return
        if _evict(other):
            total -= size


def _evict(path: Path) -> bool:
    with _open_lock(path) as lock:
        try:
            flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        path.unlink(missing_ok=True)
        return True


def _build(index: Index, path: Path, sizes_N2: np.ndarray, mark: bytes, progress: bool) -> None:
    temporary = path.with_suffix(".tmp")
    _remove(temporary)  # of a killed build
    try:
        _reserve(temporary, int(offsets(sizes_N2)[-1]))
        with pool.progress_bar(f"decoding {index.name}", len(index), progress) as advance:
            workers = min(pool.cpu_count(), len(index.shards)) if len(index) >= POOL_FROM else 1
            work = partial(_decode_shard, index, temporary, sizes_N2, offsets(sizes_N2))
            pool.run(work, range(len(index.shards)), workers=workers, advance=advance)
        with _open_own(temporary, os.O_WRONLY | os.O_APPEND, "ab") as stream:
            stream.write(mark)
            stream.flush()
            os.fsync(stream.fileno())
        move(temporary, path)
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    """Remove a file of the cache, where there is one.

    Raises:
        ConfigError: it is a folder.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} is not a file of the cache ({error.strerror}); delete it", "data.cache_dir") from None


def _reserve(path: Path, size: int) -> None:
    """Make a file of that size; a full disk fails here, not in the middle of decoding."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)
    except OSError as error:
        advice = "name another data.cache_dir, or lower data.cache_gb to stream the images"
        raise ConfigError(f"no room for {size / 1e9:.1f} GB in {path.parent} ({error.strerror}); {advice}", "data.cache_dir") from None


def _decode_shard(index: Index, out: Path, sizes_N2: np.ndarray, starts: np.ndarray, number: int) -> int:
    """Check one shard and write its images, decoded, to their places; returns how many."""
    shard = index.shards[number]
    path = index.folder / shard["name"]
    if hash_file(path) != shard["sha256"]:
        raise ConfigError(f"{path}: altered, its sha256 is not the index's; {REBUILD}")
    positions = np.flatnonzero(index.shard == number)
    with open(path, "rb") as source, _open_own(out, os.O_RDWR, "r+b") as target:
        target.seek(int(starts[positions[0]]))
        for position in positions:
            image = resize(read_image(source.fileno(), index, position), *sizes_N2[position])
            target.write(np.ascontiguousarray(image.transpose(2, 0, 1)))
    return len(positions)
