"""Files that anybody may have written: a pipe would be waited for, a device may have no end, and a file may be beyond all memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 2 << 30  # of a list or a record, unless its reader says otherwise: a list of 14 million images takes 1.4 GB
MOST_IMAGE_BYTES = 1 << 30  # three times what the largest image that is decoded takes as RGB (`vitssl.data.pixels.decode`)


@contextmanager
def open_regular(path: str | Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading.

    Raises:
        OSError: there is no such file, it cannot be read, or is not a regular file.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))
        yield stream


def read_whole(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """A regular file's content.

    Raises:
        OSError: as `open_regular`; or it is larger than ``most_bytes``.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most_bytes:,}", str(path))
        return stream.read()
