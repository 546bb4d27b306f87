"""Files that are written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, former: Path | None = None) -> Iterator[Path]:
    """Yield a temporary name beside ``path``. At the end, the file of that name replaces ``path``, unless there was an error.

    After a crash or on a full disk ``path``, or ``former``, holds either the old content or the new one.

    Args:
        path: the path of the file.
        former: where to move the old file once the new one is complete.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        if former is not None and path.exists():
            path.replace(former)
        move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text_atomically(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, whatever the locale; the names of files in it that are not UTF-8 keep their bytes."""
    write_atomically(path, text.encode("utf-8", "surrogateescape"))


def move(temporary: Path, path: Path) -> None:
    """Rename a file whose content is on the disk, and make sure that its new name is on the disk too."""
    os.rename(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
