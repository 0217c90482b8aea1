"""Small matrix products whose sums stay in registers, written in LLVM's language for `convolution`.

Everything is counted in words. A word is one number, or two of 16 bits (bf16, held as unsigned integers): those are
multiplied in pairs, and both products join one sum in single precision. A CPU that cannot do so by itself multiplies
them as numbers of single precision.

    rows:     out[r] = Σ_s Σ_k left[s, r, k] right[s, k]              a convolution; r: neighbours in one row of a map
    spread:   out[j] += Σ_k left[j, k] right[0, k],  out[j+1] += Σ_k left[j, k] right[1, k]     its maps' gradient
    outer:    out[c] += Σ_p left[p, c] right[p]                       its kernel's gradient; p: places of all maps
    largest:  out[j] = max_{r, k} lines[r, 2 j + k],  r, k < 3        a row of maxima of 3x3 cells, every second one

`out` and `right` are rows of numbers, as many at once as `VECTORS` registers hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import cgutils, types
from numba.extending import intrinsic

from deir.fast.bf16 import HAS_BF16, BFloat

WIDE = bool(get_host_cpu_features().get("avx512f", False))
REGISTER = 64 if WIDE else 32  # bytes
VECTORS = (4, 2, 1) if WIDE else (2, 1)  # registers of a row of sums
ROWS = 6 if WIDE else 5  # of sums, at most, where each has the most registers
NARROW_ROWS = 8  # of sums, at most, elsewhere
SPREAD = 6 if WIDE else 4  # neighbours that `spread` takes, at most; with the most registers each, two less
OUTER = 4  # channels that `outer` takes, or twice as many where rows have fewer than the most registers

_INT = ir.IntType(64)


class _Kernel:
    """One kernel while it is written: its registers, and how numbers get there and back."""

    def __init__(self, builder: Any, left: Any, right: Any, out: Any, number: types.Type) -> None:
        self.builder = builder
        self.in_pairs = isinstance(number, types.Integer)
        self.number: Any = ir.DoubleType() if number == types.float64 else ir.FloatType()
        self.word: Any = ir.IntType(32) if self.in_pairs else self.number
        self.size = 8 if number == types.float64 else 4  # of a word, in bytes
        self.lanes = REGISTER // self.size
        self.left, self.right = (builder.bitcast(data, self.word.as_pointer()) for data in (left, right))
        self.out = out
        self.sums_type, self.words_type = (ir.VectorType(kind, self.lanes) for kind in (self.number, self.word))

    def at(self, offset: int) -> Any:
        return ir.Constant(_INT, offset)

    def product(self, *factors: Any) -> Any:
        total = factors[0]
        for factor in factors[1:]:
            total = self.builder.mul(total, factor)
        return total

    def sum(self, *terms: Any) -> Any:
        total = terms[0]
        for term in terms[1:]:
            total = self.builder.add(total, term)
        return total

    def pointer(self, data: Any, offset: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(data, [offset]), kind.as_pointer())

    def wide(self, data: Any, offset: Any, kind: Any) -> Any:
        """As many words as a register holds."""
        return self.builder.load(self.pointer(data, offset, kind), align=self.size)

    def columns(self, begin: Any, width: int) -> list[Any]:
        """A row of `right`, in registers."""
        offsets = [self.sum(begin, self.at(v * self.lanes)) for v in range(width)]
        return [self.wide(self.right, offset, self.words_type) for offset in offsets]

    def everywhere(self, offset: Any) -> Any:
        """One word of `left` in all places of a register."""
        word = self.builder.load(self.builder.gep(self.left, [offset]))
        none = ir.Constant(self.words_type, ir.Undefined)
        one = self.builder.insert_element(none, word, ir.Constant(ir.IntType(32), 0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(one, none, places)

    def registers(self, count: int) -> list[Any]:
        return [cgutils.alloca_once(self.builder, self.sums_type) for _ in range(count)]

    def clear(self, sums: Sequence[Any]) -> None:
        for register in sums:
            self.builder.store(ir.Constant(self.sums_type, [0.0] * self.lanes), register)

    def load(self, sums: Sequence[Any], offsets: Sequence[Any]) -> None:
        for register, offset in zip(sums, offsets, strict=True):
            self.builder.store(self.wide(self.out, offset, self.sums_type), register)

    def save(self, sums: Sequence[Any], offsets: Sequence[Any]) -> None:
        for register, offset in zip(sums, offsets, strict=True):
            target = self.pointer(self.out, offset, self.sums_type)
            self.builder.store(self.builder.load(register), target, align=self.size)

    def join(self, register: Any, left: Any, right: Any) -> None:
        """register += left right"""
        if self.in_pairs and HAS_BF16:
            pairs = ir.VectorType(BFloat(), 2 * self.lanes)
            kind = ir.FunctionType(self.sums_type, [self.sums_type, pairs, pairs])
            name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}"
            factors = [self.builder.bitcast(factor, pairs) for factor in (left, right)]
            function = cgutils.get_or_insert_function(self.builder.module, kind, name)
            self.builder.store(self.builder.call(function, [self.builder.load(register), *factors]), register)
        elif self.in_pairs:
            for one, other in zip(self.halves(left), self.halves(right), strict=True):
                self.add_product(register, one, other)
        else:
            self.add_product(register, left, right)

    def add_product(self, register: Any, left: Any, right: Any) -> None:
        kind = ir.FunctionType(self.sums_type, [self.sums_type] * 3)
        name = f"llvm.fma.v{self.lanes}f{8 * self.size}"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        self.builder.store(self.builder.call(function, [left, right, self.builder.load(register)]), register)

    def halves(self, words: Any) -> list[Any]:
        """The second and the first number of each word; a bf16 is the upper half of a number of single precision."""
        upper, half = (ir.Constant(self.words_type, [value] * self.lanes) for value in (0xFFFF0000, 16))
        found = self.builder.and_(words, upper), self.builder.shl(words, half)
        return [self.builder.bitcast(numbers, self.sums_type) for numbers in found]


def _kernel(write: Callable[..., None], sizes: Sequence[int], narrow: Sequence[int]) -> Any:
    """An intrinsic (left, right, out, how many, registers, numbers) whose body is written once for each size.

    narrow: sizes of rows that have fewer than the most registers
    """

    def typed(typing_context: Any, left: Any, right: Any, out: Any, size: Any, vectors: Any, given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            *arrays, size_, vectors_, given_ = arguments
            data = [
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip((left, right, out), arrays, strict=True)
            ]
            numbers = [builder.extract_value(given_, i) for i in range(len(given))]
            kernel = _Kernel(builder, data[0], data[1], data[2], left.dtype)
            which = builder.add(builder.mul(size_, kernel.at(8)), vectors_)
            after = builder.append_basic_block("after")
            choice = builder.switch(which, after)
            for width in VECTORS:
                for rows in sizes if width == VECTORS[0] else narrow:
                    block = builder.append_basic_block("size")
                    choice.add_case(kernel.at(8 * rows + width), block)
                    with builder.goto_block(block):
                        write(kernel, rows, width, *numbers)
                        builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        return types.void(left, right, out, types.int64, types.int64, given), generate

    return intrinsic(typed)


def _write_rows(
    kernel: _Kernel, rows: int, width: int, left: Any, stride: Any, segments: Any, segment: Any, depth: Any,
    right: Any, across: Any, out: Any, out_stride: Any,
) -> None:  # fmt: skip
    """left, right, out: where they begin; stride: from row to row of left, likewise segment and out_stride"""
    sums = kernel.registers(rows * width)
    kernel.clear(sums)
    with cgutils.for_range(kernel.builder, segments) as outer, cgutils.for_range(kernel.builder, depth) as inner:
        step = kernel.sum(kernel.product(outer.index, depth), inner.index)
        begin = kernel.sum(right, kernel.product(step, across))
        columns = kernel.columns(begin, width)
        first = kernel.sum(left, kernel.product(outer.index, segment), inner.index)
        for r in range(rows):
            factor = kernel.everywhere(kernel.sum(first, kernel.product(stride, kernel.at(r))))
            for v in range(width):
                kernel.join(sums[r * width + v], factor, columns[v])
    kernel.save(sums, _targets(kernel, rows, width, out, out_stride))


def _targets(kernel: _Kernel, rows: int, width: int, out: Any, stride: Any) -> list[Any]:
    return [
        kernel.sum(out, kernel.product(stride, kernel.at(r)), kernel.at(v * kernel.lanes))
        for r in range(rows)
        for v in range(width)
    ]


def _write_spread(
    kernel: _Kernel, rows: int, width: int, left: Any, stride: Any, depth: Any, right: Any, across: Any, second: Any,
    out: Any,
) -> None:  # fmt: skip
    """second: from right[0] to right[1]; rows of out are `across` apart"""
    sums = kernel.registers((rows + 1) * width)
    targets = _targets(kernel, rows + 1, width, out, across)
    kernel.load(sums, targets)
    with cgutils.for_range(kernel.builder, depth) as loop:
        begin = kernel.sum(right, kernel.product(loop.index, across))
        halves = [kernel.columns(start, width) for start in (begin, kernel.sum(begin, second))]
        for r in range(rows):
            factor = kernel.everywhere(kernel.sum(left, loop.index, kernel.product(stride, kernel.at(r))))
            for half in range(2):
                for v in range(width):
                    kernel.join(sums[(r + half) * width + v], factor, halves[half][v])
    kernel.save(sums, targets)


def _write_outer(
    kernel: _Kernel, rows: int, width: int, left: Any, maps: Any, left_map: Any, lines: Any, left_line: Any,
    places: Any, stride: Any, right: Any, right_map: Any, right_line: Any, across: Any, out: Any,
) -> None:  # fmt: skip
    """maps of lines of places: left_map, left_line and stride lead from one to the next in left, right_map, right_line
    and across in right"""
    sums = kernel.registers(rows * width)
    targets = _targets(kernel, rows, width, out, across)
    kernel.load(sums, targets)
    builder = kernel.builder
    loops = (cgutils.for_range(builder, count) for count in (maps, lines, places))
    with next(loops) as m, next(loops) as i, next(loops) as j:
        begin, first = (
            kernel.sum(start, *(kernel.product(loop.index, step) for loop, step in zip((m, i, j), steps, strict=True)))
            for start, *steps in ((right, right_map, right_line, across), (left, left_map, left_line, stride))
        )
        columns = kernel.columns(begin, width)
        for r in range(rows):
            factor = kernel.everywhere(kernel.sum(first, kernel.at(r)))
            for v in range(width):
                kernel.join(sums[r * width + v], factor, columns[v])
    kernel.save(sums, targets)


rows: Any = _kernel(_write_rows, range(1, ROWS + 1), range(1, NARROW_ROWS + 1))
spread: Any = _kernel(_write_spread, range(1, SPREAD + 1), range(1, SPREAD + 1))
outer: Any = _kernel(_write_outer, [OUTER], [OUTER, 2 * OUTER])


def _typed_largest(typing_context: Any, lines: Any, begins: Any, channels: Any, out: Any, places: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip((lines, out, places), (arguments[0], *arguments[3:]), strict=True)
        ]
        kernel = _Kernel(builder, arrays[0].data, arrays[0].data, arrays[1].data, lines.dtype)
        starts, step = [builder.extract_value(arguments[1], r) for r in range(3)], arguments[2]
        wide, count = (ir.VectorType(kind, kernel.lanes) for kind in (ir.IntType(8), ir.IntType(32)))
        groups = builder.sdiv(step, kernel.at(kernel.lanes))
        cells = builder.sdiv(builder.extract_value(arrays[1].shape, 0), step)
        with cgutils.for_range(builder, cells) as j, cgutils.for_range(builder, groups) as group:
            lane = kernel.product(group.index, kernel.at(kernel.lanes))
            cell = kernel.sum(kernel.product(j.index, kernel.at(2), step), lane)
            best, where = None, ir.Constant(count, [0] * kernel.lanes)
            for place in range(9):
                offset = kernel.sum(starts[place // 3], cell, kernel.product(step, kernel.at(place % 3)))
                value = kernel.wide(kernel.left, offset, kernel.sums_type)
                if best is None:
                    best = value
                    continue
                unknown = builder.fcmp_unordered("uno", value, value)
                later = builder.or_(builder.fcmp_ordered(">", value, best), unknown)
                best = builder.select(later, value, best)
                where = builder.select(later, ir.Constant(count, [place] * kernel.lanes), where)
            target = kernel.sum(kernel.product(j.index, step), lane)
            builder.store(best, kernel.pointer(kernel.out, target, kernel.sums_type), align=kernel.size)
            place_at = kernel.pointer(arrays[2].data, target, wide)
            builder.store(builder.trunc(where, wide), place_at, align=1)
        return context.get_dummy_value()

    return types.void(lines, begins, types.int64, out, places), generate


largest: Any = intrinsic(_typed_largest)
"""(lines, where three of them begin, channels, out, places) -> nothing; places: 3 r + k, of equals the first."""
