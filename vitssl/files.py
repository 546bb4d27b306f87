"""Places to write to, locks, and the JSON records of run folders."""

from __future__ import annotations

import errno
import fcntl
import glob
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
    """sha256 of a file's content."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_new(path: Path) -> None:
    """Refuse, before a long computation, to write where something is or where nothing can be written.

    Raises:
        ConfigError: naming the file or folder.
    """
    if path.exists():
        raise ConfigError(f"{path} exists; delete it, or choose another name")
    check_place(path)


def check_place(path: Path) -> None:
    """Refuse, before a long computation, to write where nothing can be written.

    Raises:
        ConfigError: naming the folder.
    """
    folder = nearest(path.absolute().parent)
    if not is_writable(folder):
        raise ConfigError(f"{folder} is not a folder that can be written to; name another place for {path.name}")


def nearest(folder: Path) -> Path:
    """The folder, or what is there, and may be seen, of the path to it."""
    return next(there for there in (folder, *folder.parents) if os.path.exists(there))


def of_this_user() -> str:
    """The name of this user's own folder for caches, in one that several may share."""
    return f"vitssl-cache-{os.getuid()}"


def is_writable(folder: Path) -> bool:
    """Can files be made in it? One is: by its mode root may write everywhere, in /proc and on read-only disks too."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def open_lock(path: Path, field: str) -> IO:
    """A file for `flock`, its folder created where it is missing; what it holds stays, and a link is not followed.

    Raises:
        ConfigError: naming ``field``, where the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "r+", opener=lambda name, flags: os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, 0o666))
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{path.parent} is not a folder; name another", field) from None
    except OSError as error:
        raise ConfigError(f"cannot write in {path.parent} ({error.strerror}); name another folder", field) from None


def flock(stream: IO, operation: int) -> None:
    """`fcntl.flock`.

    Raises:
        BlockingIOError: another process holds it, where ``operation`` does not wait.
        ConfigError: the file system has no locks (Lustre that is mounted without them).
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
def held(path: Path, field: str) -> Iterator[bool]:
    """Hold a lock; False where another process holds it.

    Raises:
        ConfigError: naming ``field``, where its folder cannot be written.
    """
    with open_lock(path, field) as lock:
        try:
            flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def no_room(error: BaseException | None) -> OSError | None:
    """The full disk, or the used up quota, that an error comes from; None for others. torch.save raises another error from it."""
    while error is not None and not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        error = error.__cause__ or error.__context__
    return error


def busy_file(stop_file: Path) -> Path:
    """What training leaves next to its launcher's stop file where another process trains its run, whose folder must not change."""
    return stop_file.with_name("busy")


# ---------------------------------------------------------------------------------------------------------------- JSON


def write_json(path: Path, value: Any) -> None:
    """Write atomically: a reader or a kill sees the old file or the new one."""
    write_atomically(path, json.dumps(value, indent=1).encode())


def read_json(path: Path) -> dict[str, Any]:
    """The file's content; empty where there is no such file.

    Raises:
        ConfigError: it cannot be read, is damaged, or not as `vitssl.records` says of the files of its name.
    """
    text = _text(path)
    if text is None:
        return {}
    record = _parsed(text, path)
    records.check(record, path)
    return record


def read_events(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a last line that is being written, or that a kill cut off, is left out.

    Raises:
        ConfigError: it cannot be read, or another line is damaged, or not as `vitssl.records` says.
    """
    lines = (_text(path) or "").split("\n")[:-1]
    events = [_parsed(line, path) for line in lines if line]
    records.check_lines(events, path)
    return events


def read_intact(path: Path) -> bytes:
    """The content of an .npz file, of which every part has the checksum that was written with it.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        ConfigError: it cannot be read, or is damaged.
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
    """As `read_whole`, for a person.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        ConfigError: it cannot be read, is none, or is too large.
    """
    try:
        return read_whole(path)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror}); make it readable, or delete it", place=str(path)) from None


def _text(path: Path) -> str | None:
    """The text of a file; None where there is no such file."""
    try:
        return read_file(path).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise ConfigError("damaged, not text; restore it from a backup, or delete it", place=str(path)) from None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        raise ConfigError(f"damaged, not JSON ({error}); restore it from a backup, or delete it", place=str(path)) from None
    if not isinstance(record, dict):
        raise ConfigError("damaged, not a JSON object; restore it from a backup, or delete it", place=str(path))
    return record


def runs_that_begin(path: Path) -> list[Path]:
    """The run folders whose names begin like a path that is not there itself: with whole words (ssat-s1 is not ssat-s10), but for the
    hash at their ends, or where the path ends in a star. Where none does, those that have its words in this order: ssat-s1 is
    ssat-equal_epochs-s1-0123 too."""
    begin = path.name.rstrip("*")
    names = sorted(found.parent.name for found in path.parent.glob(f"{glob.escape(begin)}*/run.yaml"))
    ends = ((name, name.removeprefix(begin)) for name in names)
    starred = path.name.endswith(("*", "-"))
    begun = [path.parent / name for name, end in ends if starred or end.startswith("-") or "-" not in end]
    return begun or [
        run.parent for run in sorted(path.parent.glob("*/run.yaml")) if _has_words(run.parent.name, begin.strip("-").split("-"))
    ]


def _has_words(name: str, words: list[str]) -> bool:
    """Does a run's name begin with the first of these words, and has it the others in their order?"""
    of_name = iter(name.split("-"))
    return len(words) > 1 and next(of_name) == words[0] and all(word in of_name for word in words[1:])  # each is looked for behind the last
