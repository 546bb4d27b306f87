"""Files that are written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, former: Path | None = None) -> Iterator[Path]:
    """Gives a temporary name beside ``path``: what is written there takes its place at the end, unless an error came before.

    After a crash or on a full disk ``path``, or ``former``, holds the old content or the new one.

    Args:
        path: of the file.
        former: where the old one is moved to, once the new one is whole.
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


def move(temporary: Path, path: Path) -> None:
    """Rename a file whose content is on the disk, and put the new name there too."""
    os.rename(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
