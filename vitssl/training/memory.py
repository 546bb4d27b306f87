"""How this process keeps the memory that it has freed."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
LARGEST_INT = 2**31 - 1


def keep_freed() -> bool:
    """Keep what is freed for the next allocation, instead of giving it back to the system.

    For training on a CPU: each step asks for tensors of the same sizes again, and glibc hands the large ones back every time, so that
    the system clears and maps each of their pages again. A GPU's allocator keeps its memory anyway.

    Returns:
        False where the C library is not glibc (or cannot do that), and nothing has changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, LARGEST_INT)])
