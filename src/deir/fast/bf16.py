"""Numbers of 16 bits (bf16): those of single precision without the lower half. Arrays hold them as whole numbers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import types
from numba.extending import intrinsic

HAS_BF16 = bool(get_host_cpu_features().get("avx512bf16", False))  # the CPU rounds and multiplies them by itself


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's type of 16 bits, which llvmlite has no name for."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def _upper_half(builder: Any, number: Any) -> Any:
    """The nearest number of 16 bits, of two as near the even one; of none, none."""
    word = ir.IntType(32)
    bits = builder.bitcast(number, word)
    odd = builder.and_(builder.lshr(bits, ir.Constant(word, 16)), ir.Constant(word, 1))
    nearest = builder.add(bits, builder.add(odd, ir.Constant(word, 0x7FFF)))
    none = builder.or_(bits, ir.Constant(word, 1 << 22))  # a quiet one, whose lower half may go
    kept = builder.select(builder.fcmp_unordered("uno", number, number), none, nearest)
    return builder.trunc(builder.lshr(kept, ir.Constant(word, 16)), ir.IntType(16))


def _typed_rounded(typing_context: Any, value: Any, like: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if like.dtype != types.uint16:
            return arguments[0]
        if HAS_BF16:
            return builder.bitcast(builder.fptrunc(arguments[0], BFloat()), ir.IntType(16))
        return _upper_half(builder, arguments[0])

    return like.dtype(value, like), generate


rounded: Any = intrinsic(_typed_rounded)
"""(number, array) -> the number as the array holds it: as it is, or of 16 bits in an array of unsigned integers."""
