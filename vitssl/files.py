"""Checks of places to write to, locks, and reading and writing the JSON records of run folders."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from vitssl import records
from vitssl.atomic import write_atomically
from vitssl.config import ConfigError
from vitssl.reader import open_regular, read_whole


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_new(path: Path) -> None:
    """Refuse, before a long computation, a path that exists or that cannot be written.

    Raises:
        ConfigError: names the file or folder.
    """
    if path.exists():
        raise ConfigError(f"{path} exists; delete it, or choose another name")
    check_place(path)


def check_place(path: Path) -> None:
    """Refuse, before a long computation, a path in a folder that cannot be written.

    Raises:
        ConfigError: names the folder.
    """
    folder = nearest_existing(path.absolute().parent)
    if not is_writable(folder):
        raise ConfigError(f"{folder} is not a folder that can be written to; name another place for {path.name}")


def nearest_existing(folder: Path) -> Path:
    """Return ``folder``, or its nearest parent that exists and that this user may see."""
    return next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))


def user_cache_name() -> str:
    """Return the name of this user's own cache folder, which lies in a folder that several users may share."""
    return f"vitssl-cache-{os.getuid()}"


def is_writable(folder: Path) -> bool:
    """Whether files can be made in ``folder``, found out by making one.

    By file modes, root may write everywhere, even in /proc and on read-only disks.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def open_lock(path: Path, field: str) -> IO:
    """Open a file for `flock`, and create its folder if it is missing. Existing content stays, and links are not followed.

    Raises:
        ConfigError: the folder cannot be written; the error names ``field``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "r+", opener=lambda name, flags: os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, 0o666))
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{path.parent} is not a folder; name another", field) from None
    except OSError as error:
        raise ConfigError(f"cannot write in {path.parent} ({error.strerror}); name another folder", field) from None


def flock(stream: IO, operation: int) -> None:
    """Call `fcntl.flock`.

    Raises:
        BlockingIOError: another process holds the lock, and ``operation`` does not wait.
        ConfigError: the file system has no locks (such as Lustre mounted without them).
    """
    try:
        fcntl.flock(stream, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        folder = Path(stream.name).parent
        reason = f"files cannot be locked there ({error.strerror}); name a folder of another file system"
        raise ConfigError(reason, place=str(folder)) from None


@contextmanager
def try_lock(path: Path, field: str) -> Iterator[bool]:
    """Hold a lock; yield False if another process holds it.

    Raises:
        ConfigError: the lock's folder cannot be written; the error names ``field``.
    """
    with open_lock(path, field) as lock:
        try:
            flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def full_disk_error(error: BaseException | None) -> OSError | None:
    """Return the error of a full disk or a used-up quota that ``error`` comes from; None if it comes from something else.

    torch.save raises an error of its own after such an error.
    """
    while error is not None and not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        error = error.__cause__ or error.__context__
    return error


def busy_file(stop_file: Path) -> Path:
    """Return the file that training leaves beside its launcher's stop file if another process trains the run already.

    The run's folder must not change then.
    """
    return stop_file.with_name("busy")


# ---------------------------------------------------------------------------------------------------------------- JSON


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, atomically: a reader, or a kill, finds the old file or the new one."""
    write_atomically(path, json.dumps(value, indent=1).encode())


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty if there is no such file.

    Raises:
        ConfigError: the file cannot be read, is damaged, or does not match the schema for its name in `vitssl.records`.
    """
    text = _text(path)
    if text is None:
        return {}
    record = _parsed(text, path)
    records.check(record, path)
    return record


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics.jsonl or errors.jsonl. A last line that is being written, or was cut off by a kill, is left out.

    Raises:
        ConfigError: the file cannot be read, or another line is damaged or does not match its schema in `vitssl.records`.
    """
    lines = (_text(path) or "").split("\n")[:-1]
    events = [_parsed(line, path) for line in lines if line]
    records.check_lines(events, path)
    return events


def read_intact(path: Path) -> bytes:
    """Return the content of an .npz file whose parts all have the checksums that were written with them.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        ConfigError: the file cannot be read, or is damaged.
    """
    content = read_file(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            intact = archive.testzip() is None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError):
        intact = False
    if not intact:
        raise ConfigError("damaged, not as it was written; restore it from a backup, or delete it", place=str(path))
    return content


def read_file(path: Path) -> bytes:
    """Return a file's content as `read_whole` does, with errors for the user.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        ConfigError: it cannot be read, is not a regular file, or is too large.
    """
    try:
        return read_whole(path)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror}); make it readable, or delete it", place=str(path)) from None


def _text(path: Path) -> str | None:
    """Return the text of a file; None if there is no such file."""
    try:
        return read_file(path).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise ConfigError("damaged, not text; restore it from a backup, or delete it", place=str(path)) from None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits raises ValueError
        raise ConfigError(f"damaged, not JSON ({error}); restore it from a backup, or delete it", place=str(path)) from None
    if not isinstance(record, dict):
        raise ConfigError("damaged, not a JSON object; restore it from a backup, or delete it", place=str(path))
    return record
