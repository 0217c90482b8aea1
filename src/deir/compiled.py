"""Functions compiled by Numba, for loops that NumPy and PyTorch would need a dozen passes over memory for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from llvmlite import binding as llvm
from numba import njit
from numba.core import event
from numpy.typing import NDArray

Array = NDArray[Any]
FOLDERS = ("fast", "envs/minigrid")  # of compiled functions


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled when first called, and only once where a directory can be written that remembers it.

    It runs on the CPU, without Python's lock.
    """
    return _compiled(loop, frozenset())


def compiled_sums(loop: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with sums in whatever order is fast; it is the same order in every call."""
    return _compiled(loop, frozenset({"reassoc", "contract"}))


def compiled_part(loop: Callable[..., Any]) -> Callable[..., Any]:
    """For calls from compiled functions alone: without what Python would call it by, which takes time to compile."""
    return _compiled(loop, frozenset(), no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compiled(loop: Callable[..., Any], liberties: frozenset[str], **options: bool) -> Callable[..., Any]:
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(liberties) or False, **options}
    try:
        function = njit(loop, cache=True, **settings)
    except RuntimeError:
        return njit(loop, **settings)  # type: ignore[no-any-return]
    cache: Any = getattr(function, "_cache", None)
    file: Any = getattr(cache, "_cache_file", None)
    if hasattr(file, "_source_stamp"):
        file._source_stamp = sources()
    found: Any = getattr(cache, "_impl", None)
    if hasattr(found, "rebuild"):
        rebuild = found.rebuild
        found.rebuild = lambda target, payload: _without_module(rebuild(target, payload), payload)
    return function  # type: ignore[no-any-return]


def _without_module(function: Any, payload: Any) -> Any:
    """Of a function that was found on disk, LLVM's own picture of it is kept as it was read, a tenth of its size.

    The machine code runs without it; only a function that is compiled later and calls this one asks for it again.
    """
    library, (_, kind, data) = function.library, payload[0]
    if kind == "object" and hasattr(library, "_shared_module"):
        bitcode = data[1]
        library._shared_module = None
        library._get_module_for_linking = lambda: llvm.parse_bitcode(bitcode)
    return function


@cache
def sources() -> bytes:
    """What all compiled functions were written in. Numba looks at a function's own file alone, not at those that it
    calls: what it remembers would outlive a change of them."""
    home, digest = Path(__file__).parent, blake2b()
    for folder in FOLDERS:
        for path in sorted((home / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.digest()


class _CompilationNotice(event.Listener):  # type: ignore[misc]
    """Says why nothing seems to happen the first time. Loops that are found on disk are not compiled."""

    def __init__(self) -> None:
        self.given = False

    def on_start(self, event: Any) -> None:
        if not self.given:
            logging.getLogger("deir").info("compiling the inner loops, once: about half a minute")
        self.given = True

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


_NOTICE = _CompilationNotice()
event.register("numba:compile", _NOTICE)


def has_compiled() -> bool:
    """Whether this process has compiled anything, which takes more memory than training."""
    return _NOTICE.given
