"""How this process keeps memory that it has freed."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
LARGEST_INT = 2**31 - 1


def keep_freed() -> bool:
    """Keep freed memory for the next allocation, instead of returning it to the system.

    For training on a CPU: each step allocates tensors of the same sizes again, and glibc returns the large ones every time, so that the
    system clears and maps each of their pages again. A GPU's allocator keeps its memory anyway.

    Returns:
        False if the C library is not glibc (or cannot do that); nothing has changed then.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, LARGEST_INT)])
