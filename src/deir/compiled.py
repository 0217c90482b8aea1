"""Functions compiled by Numba, for loops that NumPy and PyTorch would need a dozen passes over memory for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled when first called, and only once where a directory can be written that remembers it.

    It runs on the CPU, without Python's lock.
    """
    try:
        return njit(loop, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:
        return njit(loop, nogil=True, error_model="numpy")
