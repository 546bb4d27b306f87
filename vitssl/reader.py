"""Reading files that anybody may have written.

Only regular files of bounded size are read: a pipe would be waited for, a device may have no end, and a file may not fit into memory.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_BYTES = 2 << 30  # of a file, unless its reader sets another bound: a list of 14 million images takes 1.4 GB
MOST_IMAGE_BYTES = 1 << 30  # three times what the largest image that is decoded takes as RGB (`vitssl.data.pixels.decode`)


@contextmanager
def open_regular(path: str | Path) -> Iterator[io.BufferedReader]:
    """Open a regular file for reading.

    Raises:
        OSError: there is no such file, or it cannot be read or is not a regular file.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))
        yield stream


def read_whole(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: as for `open_regular`, or the file is larger than ``most_bytes``.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than {most_bytes:,}", str(path))
        return stream.read()
