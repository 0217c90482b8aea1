"""How the C library treats freed memory."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
KEEP_BYTES = 1 << 29


def keep_freed_memory() -> bool:
    """Lets glibc reuse freed blocks instead of returning them to the system after each operation. Says if it will.

    Feature maps and distance matrices of some megabytes are made and freed thousands of times in an iteration. By
    default each is mapped anew and its pages are zeroed by the kernel one fault at a time.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, KEEP_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, KEEP_BYTES))
