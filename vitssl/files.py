"""Files that are whole or not there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO


def hash_file(path: Path) -> str:
    """sha256 of a file's content."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and move it into place; both survive a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    move(temporary, path)


def move(temporary: Path, path: Path) -> None:
    """Rename a file whose content is on the disk, and put the new name there too."""
    os.rename(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def open_lock(path: Path, field: str) -> IO:
    """A file for `fcntl.flock`, its folder made where it is missing.

    Raises:
        ValueError: naming ``field``, where the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "w")
    except OSError as error:
        raise ValueError(f"{field}: cannot write in {path.parent} ({error.strerror}); name another folder") from None
