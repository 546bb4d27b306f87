"""The cache: every image of a data set decoded once, into one file on the node that all jobs of a user map into memory.

The file is named after what determines its pixels (`mark_of`). It holds the pixels of all images one after the other, channels first;
shapes and offsets follow from the index. Behind them is the mark, written last, which tells a complete file from one that a killed build
left and from one of another set. The mark is no checksum of the pixels: that would mean to read the whole file at each start of each job,
tens of seconds for a large set. Instead, the sha256 of the shards is checked as the pixels are written, and nobody else can change them
afterwards. Next to the file is a lock file. The process that builds holds it exclusively and those that read share it. A cache whose lock
nobody holds may be evicted.

All this is in a folder of this user alone. Other users of the node, who may be able to write to the same temporary folder, can neither read
nor plant anything. A file is opened only if it belongs to this user, whatever folder is at that path by then.

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
from vitssl.data.pixels.layout import clear_padding, offsets, shape_of, unbind_images
from vitssl.files import flock, hash_file, open_lock, user_cache_name
from vitssl.variables import CACHE_DIR

FOLDER_BUDGET = 4  # times data.cache_gb: what the caches of a folder may take up together before old ones are evicted
POOL_FROM = 4000  # images; fewer are decoded in less time than processes take to start


MARK_BYTES = 32


class Cache:
    """Decoded images, read-only. A cache is in use, and so safe from eviction, until it is closed or garbage-collected."""

    def __init__(self, stream: IO, lock: IO, sizes_N2: np.ndarray):
        self.sizes_N2 = sizes_N2
        self.offsets_N = offsets(sizes_N2)[:-1]
        self.close = weakref.finalize(self, lock.close)
        with stream:
            self._bytes = np.memmap(stream, np.uint8, mode="r")[:-MARK_BYTES]

    @cached_property
    def images_NCHW(self) -> np.ndarray | None:
        """All images as one array, or None if they differ in size."""
        if (self.sizes_N2 != self.sizes_N2[0]).any():
            return None
        return self._bytes.reshape(len(self.sizes_N2), 3, *self.sizes_N2[0])

    def read(self, positions: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images uint8 in the shape of `layout.shape_of`, zero on the right and below if they are padded, and their sizes (B, 2).

        Args:
            out: flat uint8 memory to write into, large enough for that shape.
        """
        sizes_B2 = self.sizes_N2[positions]
        shape = shape_of(sizes_B2)
        pixels = np.empty(shape, np.uint8) if out is None else out[: math.prod(shape)].reshape(shape)
        if self.images_NCHW is not None:
            # "clip", since "raise" goes through a second buffer; positions from the index are never out of range.
            np.take(self.images_NCHW, positions, axis=0, out=pixels, mode="clip")
            return pixels, sizes_B2
        clear_padding(pixels, sizes_B2)
        for image_CHW, offset in zip(unbind_images(pixels, sizes_B2), self.offsets_N[positions], strict=True):
            image_CHW[:] = self._bytes[offset : offset + image_CHW.size].reshape(image_CHW.shape)
        return pixels, sizes_B2


def decoded_bytes(index: Index, data: Data) -> int:
    """Return the size of the decoded data set, all splits, after resizing to `data.cache_px`."""
    return int(offsets(resized_sizes(index.sizes_N2, data.cache_px))[-1])


def folder_of(data: Data) -> Path:
    """Return this user's folder in `data.cache_dir`, else in $VITSSL_CACHE_DIR, else in $TMPDIR."""
    named = data.cache_dir or os.environ.get(CACHE_DIR) or tempfile.gettempdir()
    return Path(named) / user_cache_name()


def private_folder(data: Data) -> Path:
    """Return `folder_of`, made if it is missing, for files that are trusted because this user wrote them.

    Raises:
        ConfigError: it cannot be made, or others may write to it.
    """
    folder = folder_of(data)
    _make_private(folder)
    return folder


def _make_private(folder: Path) -> None:
    """Create the folder, or check that it is this user's and that nobody else may write to it. From then on nobody else can enter it.

    Others must not even read it, since whoever can read a lock file can also hold the lock.

    Raises:
        ConfigError: the folder cannot be created, or others may write to it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ConfigError(f"cannot write in {folder} ({error.strerror}); name another folder", "data.cache_dir") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"{folder} is not a folder that this user alone can write to, so what is in it is not trusted"
        raise ConfigError(f"{reason}; delete it, or name another place", "data.cache_dir")
    folder.chmod(0o700)


def _open_own(path: Path, flags: int, mode: str) -> IO:
    """Open a file of this user. The opened file itself is checked, in case others rename the folder around it.

    Raises:
        ConfigError: the file is somebody else's, a folder or a link.
        FileNotFoundError: there is none.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            return open(descriptor, mode)
        os.close(descriptor)
        reason = "a folder" if stat.S_ISDIR(status.st_mode) else "another user's"
    except FileNotFoundError:
        raise
    except OSError as error:  # a link
        reason = str(error.strerror)
    raise ConfigError(f"{path} is not a file of the cache ({reason}); delete it", "data.cache_dir")


def open_cache(index: Index, data: Data, *, progress: bool = True) -> Cache:
    """Open the cache of a data set; build it first if it is missing or not of these images.

    Of several processes one builds and the others wait. Old caches of the folder are evicted to make room.

    Raises:
        ConfigError: a shard's bytes are not those that were written (the message names it), there is no room or no permission to write, or
            others may write to the folder.
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
                stack.pop_all()  # from here on the cache closes the lock
                return Cache(stream, lock, sizes_N2)
            if not _promoted(lock):
                continue
            # Another process may have built it between the two locks, or may evict it before the next one.
            if stream := _valid(path, sizes_N2, mark):
                stream.close()
            else:
                _make_room(folder, path, data, int(offsets(sizes_N2)[-1]))
                _build(index, path, sizes_N2, mark, progress)


def mark_of(index: Index, data: Data) -> bytes:
    """Return the sha256 of what determines the pixels: the shards' own sha256, which the build checks, and where their images lie.

    It is not made from `index.sha256`, which an index that somebody wrote anew may take from another set.
    """
    digest = hashlib.sha256(f"{[shard['sha256'] for shard in index.shards]} {data.cache_px}".encode())
    for column in (index.shard, index.offset, index.size, index.height, index.width):
        digest.update(np.ascontiguousarray(column, np.int64).data)
    return digest.digest()


def _promoted(lock: IO) -> bool:
    """Turn a shared lock into an exclusive one if no other process holds any. Otherwise release it and wait for a short random time.

    The function does not wait for the lock: a process that has the finished cache open keeps a shared lock for as long as it trains.
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
    """Return the cache, opened, if it is one of these images; otherwise None."""
    try:
        stream = _open_own(path, os.O_RDONLY, "rb")
    except FileNotFoundError:
        return None
    status = os.fstat(stream.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size == offsets(sizes_N2)[-1] + MARK_BYTES:
        stream.seek(-MARK_BYTES, os.SEEK_END)
        if stream.read() == mark:
            return stream
    stream.close()
    return None


def _make_room(folder: Path, path: Path, data: Data, needed: int) -> None:
    """Evict the caches that were opened longest ago, except those in use, until ``needed`` bytes fit."""
    others = []  # (time of last opening, bytes, path) of other caches and of what killed builds left
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
    """Delete a cache unless it is in use, and return whether it was deleted."""
    with _open_lock(path) as lock:
        try:
            flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        path.unlink(missing_ok=True)
        return True


def _build(index: Index, path: Path, sizes_N2: np.ndarray, mark: bytes, progress: bool) -> None:
    temporary = path.with_suffix(".tmp")
    _remove(temporary)  # left by a killed build
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
    """Remove a file of the cache, if it exists.

    Raises:
        ConfigError: it cannot be removed, for example because it is a folder.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} is not a file of the cache ({error.strerror}); delete it", "data.cache_dir") from None


def _reserve(path: Path, size: int) -> None:
    """Make a file of ``size`` bytes, so that a full disk fails here and not in the middle of decoding."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)
    except OSError as error:
        advice = "name another data.cache_dir, or lower data.cache_gb to stream the images"
        raise ConfigError(f"no room for {size / 1e9:.1f} GB in {path.parent} ({error.strerror}); {advice}", "data.cache_dir") from None


def _decode_shard(index: Index, out: Path, sizes_N2: np.ndarray, starts: np.ndarray, number: int) -> int:
    """Check one shard and write its decoded images to their places in ``out``. Return how many there are."""
    shard = index.shards[number]
    path = index.folder / shard["name"]
    if hash_file(path) != shard["sha256"]:
        raise ConfigError(f"{path}: altered, its sha256 is not the index's; {REBUILD}")
    positions = np.flatnonzero(index.shard == number).tolist()
    with open(path, "rb") as source, _open_own(out, os.O_RDWR, "r+b") as target:
        target.seek(int(starts[positions[0]]))
        for position in positions:
            image = resize(read_image(source.fileno(), index, position), *sizes_N2[position])
            target.write(np.ascontiguousarray(image.transpose(2, 0, 1)))
    return len(positions)
