"""Matrix products within compiled loops: PyTorch's own BLAS, called without Python.

A network that is one compiled loop from its first layer to its last holds Python's lock for no product, and what a
product reads is still in the cache. Where PyTorch's library does not offer its products by name, `product` says so and
whole networks run in PyTorch.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from deir.compiled import Array, compiled

NAMES = {torch.float32: "sgemm_", torch.float64: "dgemm_"}
LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")


@cache
def _library() -> Any:
    home = Path(torch.__file__).parent / "lib"
    found = [home / name for name in LIBRARIES if (home / name).exists()]
    return ctypes.CDLL(str(found[0])) if found else None


@cache
def product(dtype: torch.dtype) -> int | None:
    """The address of the matrix product of this type, for `multiply`; None where there is none."""
    function = getattr(_library(), NAMES.get(dtype, ""), None) if dtype in NAMES else None
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def limit_threads(threads: int) -> int:
    """How many threads the products of the calling thread use from now on; gives the number before, 0 if not known."""
    setter = getattr(_library(), "MKL_Set_Num_Threads_Local", None)
    return 0 if setter is None else int(setter(threads))


def _typed_gemm(
    typing_context: Any, address: Any, flips: Any, sizes: Any, a: Any, b: Any, c: Any, beta: Any
) -> tuple[Any, Any]:
    """Fortran's gemm at an address: everything is passed by reference, matrices by columns."""
    number = c.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, flips_, sizes_, *matrices, beta_ = arguments
        flags = [builder.trunc(builder.extract_value(flips_, i), ir.IntType(8)) for i in range(2)]
        m, n, k, lda, ldb, ldc = (
            builder.trunc(builder.extract_value(sizes_, i), ir.IntType(32)) for i in range(6)
        )  # fmt: skip
        data_a, data_b, data_c = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip((a, b, c), matrices, strict=True)
        )

        def reference(value: Any) -> Any:
            return cgutils.alloca_once_value(builder, value)

        one = context.get_constant(number, 1)
        references = [
            *map(reference, flags), *map(reference, (m, n, k)), reference(one), data_a, reference(lda), data_b,
            reference(ldb), reference(beta_), data_c, reference(ldc),
        ]  # fmt: skip
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in references])
        builder.call(builder.inttoptr(at, kind.as_pointer()), references)
        return context.get_dummy_value()

    return types.void(types.int64, flips, sizes, a, b, c, number), generate


_gemm: Any = intrinsic(_typed_gemm)


@compiled
def multiply(address: int, a: Array, flip_a: bool, b: Array, flip_b: bool, c: Array, beta: float) -> None:
    """c = beta c + a b, of rows that lie one after the other; flip: of the transposed. beta: 0 or 1, of c's type"""
    m, n = c.shape
    k = a.shape[0] if flip_a else a.shape[1]
    # by columns the transposed product is b' a'
    flips = (np.int64(84) if flip_b else np.int64(78), np.int64(84) if flip_a else np.int64(78))  # T, N
    sizes = (np.int64(n), np.int64(m), np.int64(k), np.int64(b.shape[1]), np.int64(a.shape[1]), np.int64(n))
    if m > 0 and n > 0 and k > 0:
        _gemm(address, flips, sizes, b, a, c, c.dtype.type(beta))
