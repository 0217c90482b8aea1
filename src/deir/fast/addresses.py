"""What compiled code needs to work on memory by its address: arrays, counters that threads share, products."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray  # type: ignore[attr-defined]
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from deir.compiled import Array, compiled_part

SPINS = 2000  # looks at a counter before the core is offered to others


def _typed_pointer(typing_context: Any, address: Any, like: Any) -> tuple[Any, Any]:
    kind = types.CPointer(like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, like), generate


def _typed_add(typing_context: Any, counters: Any, place: Any, by: Any) -> tuple[Any, Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(counters)(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [arguments[1]]), arguments[2], "seq_cst")

    return types.int64(counters, types.int64, types.int64), generate


def _typed_look(typing_context: Any, counters: Any, place: Any) -> tuple[Any, Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(counters)(context, builder, arguments[0]).data
        return builder.load_atomic(builder.gep(data, [arguments[1]]), "acquire", 8)

    return types.int64(counters, types.int64), generate


def _typed_lent(typing_context: Any, given: Any) -> tuple[Any, Any]:
    tuples: Any = types.BaseTuple

    def bare(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        if isinstance(kind, tuples):
            parts = cgutils.unpack_tuple(builder, value, len(kind))
            items = [bare(context, builder, *pair) for pair in zip(kind.types, parts, strict=True)]
            return context.make_tuple(builder, kind, items)
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value)
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            return array._getvalue()
        return value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return bare(context, builder, given, arguments[0])

    return given(given), generate


def _typed_call(typing_context: Any, address: Any) -> tuple[Any, Any]:
    """A function of the C library without arguments."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _typed_gemm(typing_context: Any, address: Any, flips: Any, sizes: Any, places: Any, beta: Any) -> tuple[Any, Any]:
    """Fortran's gemm: everything is passed by reference, matrices by columns. beta gives the type of the numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, flips_, sizes_, places_, beta_ = arguments
        flags = [builder.trunc(builder.extract_value(flips_, i), ir.IntType(8)) for i in range(2)]
        m, n, k, lda, ldb, ldc = (builder.trunc(builder.extract_value(sizes_, i), ir.IntType(32)) for i in range(6))
        pointer = context.get_value_type(types.CPointer(beta))
        a, b, c = (builder.inttoptr(builder.extract_value(places_, i), pointer) for i in range(3))
        one = context.get_constant(beta, 1)

        def reference(value: Any) -> Any:
            return cgutils.alloca_once_value(builder, value)

        references = [
            *map(reference, flags), *map(reference, (m, n, k)), reference(one), a, reference(lda), b, reference(ldb),
            reference(beta_), c, reference(ldc),
        ]  # fmt: skip
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in references])
        builder.call(builder.inttoptr(at, kind.as_pointer()), references)
        return context.get_dummy_value()

    return types.void(types.int64, flips, sizes, places, beta), generate


_pointer: Any = intrinsic(_typed_pointer)
_gemm: Any = intrinsic(_typed_gemm)
_call: Any = intrinsic(_typed_call)
# lent(arrays): the same arrays, also in tuples, of which no uses are counted. Threads that read the same arrays would
# wait for each other's counting. Whoever lends them keeps them until the call is over.
lent: Any = intrinsic(_typed_lent)
add: Any = intrinsic(_typed_add)  # add(counters, place, by): one step for all threads; gives the number before
look: Any = intrinsic(_typed_look)  # look(counters, place): the number there, and all that was written before it


@compiled_part
def vector(address: int, size: int, like: float) -> Array:
    """The numbers at an address, of the type of `like`. [size]"""
    return carray(_pointer(address, like), (size,))


@compiled_part
def matrix(address: int, rows: int, columns: int, like: float) -> Array:
    """[rows, columns]"""
    return carray(_pointer(address, like), (rows, columns))


@compiled_part
def part(size: int, job: int, jobs: int) -> tuple[int, int]:
    """Where a job's part of `size` rows or columns begins and ends."""
    return size * job // jobs, size * (job + 1) // jobs


@compiled_part
def await_count(counters: Array, place: int, count: int, rest: int) -> None:
    """Waits for other threads of the team. `rest`: the address of what offers the core to others"""
    looks = 0
    while look(counters, place) < count:
        looks += 1
        if looks > SPINS:
            _call(rest)


@compiled_part
def multiply_at(
    gemm: int, a: int, lda: int, flip_a: bool, b: int, ldb: int, flip_b: bool, c: int, ldc: int, m: int, n: int, k: int,
    beta: float,
) -> None:  # fmt: skip
    """c [m, n] = beta c + a b, at addresses; rows are lda, ldb and ldc numbers apart; flip: of the transposed"""
    # by columns the transposed product is b' a'
    flips = (np.int64(84) if flip_b else np.int64(78), np.int64(84) if flip_a else np.int64(78))  # T, N
    if m > 0 and n > 0 and k > 0:
        _gemm(gemm, flips, (n, m, k, ldb, lda, ldc), (b, a, c), beta)


def exponential(x: float) -> float:
    """e^x, without a call where x is in single precision: loops over it become vector code."""
    return math.exp(x)


@overload(exponential)
def _exponential(x: Any) -> Any:
    def double(x: Any) -> Any:
        return math.exp(x)

    def single(x: Any) -> Any:
        x = min(max(x, np.float32(-87)), np.float32(88))
        twos = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
        rest = x - twos * np.float32(0.693359375) + twos * np.float32(2.12194440e-4)  # ln 2 in two parts
        result = np.float32(1 / 5040) * rest + np.float32(1 / 720)
        result = result * rest + np.float32(1 / 120)
        result = result * rest + np.float32(1 / 24)
        result = result * rest + np.float32(1 / 6)
        result = result * rest + np.float32(0.5)
        result = (result * rest + np.float32(1)) * rest + np.float32(1)
        return result * np.int32((np.int32(twos) + np.int32(127)) << np.int32(23)).view(np.float32)

    return single if x == types.float32 else double


@cache
def address_of_yield() -> int:
    """Of the C library's `sched_yield`; of a function that does as little where there is none."""
    library = ctypes.CDLL(None)
    function = getattr(library, "sched_yield", None) or library.rand
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
