"""What becomes of memory that is no longer needed: the C library's part, and that of Python's garbage collector."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # <malloc.h>
KEEP_BYTES = 1 << 29


def keep_freed_memory() -> bool:
    """Lets glibc reuse freed blocks instead of returning them to the system after each operation. Says if it will.

    Feature maps and distance matrices of some megabytes are made and freed thousands of times in an iteration. By
    default each is mapped anew and its pages are zeroed by the kernel one fault at a time. Threads share one arena, so
    that a block one of them has freed serves the others too.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (M_MMAP_THRESHOLD, KEEP_BYTES), (M_TRIM_THRESHOLD, KEEP_BYTES), (M_ARENA_MAX, 1)
    return all(mallopt(*setting) for setting in settings)


@contextmanager
def collecting_later() -> Iterator[None]:
    """Puts Python's search for cyclic garbage off: every few hundred objects it would look through all recent ones."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
