"""Convolutions of 2x2 and linear layers on maps with channels last, without patches.

Neighbours in a row of a map lie one after the other, so two cells side by side are one row of 2 C numbers, and the next
patch begins C numbers later: a convolution reads its maps as they are. Sums stay in registers (`micro_kernels`).

The factors of a product are numbers of single or double precision, or of 16 bits (bf16, in arrays of unsigned
integers), of which two that are multiplied at once make a word. Sums are never of 16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from deir.compiled import Array, compiled
from deir.config import Precision
from deir.fast.bf16 import rounded
from deir.fast.micro_kernels import NARROW_ROWS, OUTER, REGISTER, ROWS, SPREAD, VECTORS, outer, rows, spread

WIDEST = VECTORS[0]
BLOCK = 64  # observations whose rows `join_dense` reads again and again


def factors_of(precision: Precision, dtype: Any) -> Array:
    """An array of no length, of the type that factors have: the `like` of compiled loops."""
    return np.empty(0, np.uint16 if precision == "bf16" and dtype == np.float32 else dtype)


def multiple(count: int, of: int) -> int:
    """The least multiple that is not less."""
    return -(-count // of) * of


def padded_width(columns: int, dtype: Any) -> int:
    """So many columns that they fill registers."""
    return multiple(columns, REGISTER // np.dtype(dtype).itemsize)


@compiled
def as_factors(numbers: Array, like: Array) -> Array:
    """Rounded to what `like` holds."""
    out = np.empty(numbers.shape, like.dtype)
    given, found = numbers.reshape(-1), out.reshape(-1)
    for i in range(len(given)):
        found[i] = rounded(given[i], like)
    return out


@compiled
def _pairs(factors: Array) -> Array:
    """Words of one matrix and the next. [n, K, N] -> [(n+1)/2, K, N]"""
    out = np.empty(((len(factors) + 1) // 2, factors.shape[1], factors.shape[2]), np.uint32)
    for i in range(len(out)):
        one, last = factors[2 * i].reshape(-1), 2 * i + 1 == len(factors)
        other, found = one if last else factors[2 * i + 1].reshape(-1), out[i].reshape(-1)
        mask = np.uint32(0 if last else 0xFFFF)
        for k in range(len(found)):
            found[k] = np.uint32(one[k]) | ((np.uint32(other[k]) & mask) << np.uint32(16))
    return out


def in_pairs(factors: Array) -> Array:
    """Words for sums over the first axis [n, K, N]: numbers as they are, of 16 bits one and the next together."""
    raise NotImplementedError


@overload(in_pairs)
def _typed_in_pairs(factors: Any) -> Any:
    def pairs(factors: Any) -> Any:
        return _pairs(factors)

    def as_they_are(factors: Any) -> Any:
        return factors

    return pairs if factors.dtype == types.uint16 else as_they_are


@compiled
def kernel_words(kernel: Array, like: Array) -> Array:
    """For sums over rows, rounded to what `like` holds. [K, O] -> [K, O], or [K/2, 1, O] of words"""
    return in_pairs(as_factors(kernel, like).reshape(len(kernel), 1, -1))


@compiled
def turned_words(kernel: Array, channels: int, like: Array) -> Array:
    """For sums over columns: each C rows transposed. [G*C, O] -> [G, O, C], or [G, O/2, C] of words"""
    groups, columns = len(kernel) // channels, kernel.shape[1]
    turned = np.empty((groups * columns, 1, channels), kernel.dtype)
    for g in range(groups):
        for c in range(channels):
            for o in range(columns):
                turned[g * columns + o, 0, c] = kernel[g * channels + c, o]
    return in_pairs(as_factors(turned, like)).reshape(groups, -1, channels)


@compiled
def _words(factors: Array) -> int:
    """In a row of them."""
    return factors.shape[2] // 2 if factors.itemsize == 2 else factors.shape[2]


@compiled
def _vectors(columns: int, lanes: int) -> int:
    """Registers of sums beside each other, where so many columns are left."""
    count = columns // lanes
    return WIDEST if count >= WIDEST else 2 if count >= 2 else 1


@compiled
def _most_rows(vectors: int) -> int:
    return ROWS if vectors == WIDEST else NARROW_ROWS


@compiled
def convolve(maps: Array, height: int, width: int, kernel: Array, out: Array) -> None:
    """Of 2x2. maps: [n, (height+1)*(width+1), C], kernel: words of [4*C, O] -> out [n, height*width, O]"""
    convolve_any(maps, width + 1, 2, 1, height, width, kernel, out)


@compiled
def convolve_any(
    maps: Array, across: int, size: int, stride: int, height: int, width: int, kernel: Array, out: Array
) -> None:
    """Of size x size, every `stride` cells. maps: [n, down*across, C], kernel: words of [size*size*C, O] -> out"""
    channels, columns, lanes = _words(maps), out.shape[2], REGISTER // out.itemsize
    line, depth, step = across * channels, size * channels, stride * channels
    column = 0
    while column < columns:
        vectors = _vectors(columns - column, lanes)
        most = _most_rows(vectors)
        for v in range(len(maps)):
            for i in range(height):
                j = 0
                while j < width:
                    count = min(most, width - j)
                    begin = v * maps.shape[1] * channels + i * stride * line + j * step
                    target = ((v * height + i) * width + j) * columns + column
                    given = begin, step, size, line, depth, column, columns, target, columns
                    rows(maps, kernel, out, count, vectors, given)
                    j += count
        column += vectors * lanes


@compiled
def convolve_back(grad: Array, height: int, width: int, turned: Array, maps: Array) -> None:
    """The gradient of `convolve` by its maps.

    grad: [n, height*width, O], turned: [4, O, C] of the kernel -> maps [n, (height+1)*(width+1), C]
    """
    convolve_any_back(grad, 2, height, width, turned, maps)


@compiled
def convolve_any_back(grad: Array, size: int, height: int, width: int, turned: Array, maps: Array) -> None:
    """The gradient of `convolve_any` by its maps, for an even size and a stride of 1. turned: [size*size, O, C]"""
    depth, columns, lanes = _words(grad), maps.shape[2], REGISTER // maps.itemsize
    across = width + size - 1
    maps[:] = 0
    column = 0
    while column < columns:
        vectors = _vectors(columns - column, lanes)
        most = SPREAD - 2 if vectors == WIDEST else SPREAD
        for v in range(len(maps)):
            for i in range(height):
                for place in range(0, size * size, 2):  # and the one to its right
                    di, dj = place // size, place % size
                    j = 0
                    while j < width:
                        count = min(most, width - j)
                        begin = ((v * height + i) * width + j) * depth
                        target = (v * maps.shape[1] + (i + di) * across + j + dj) * columns + column
                        right = place * depth * columns + column
                        given = begin, depth, depth, right, columns, depth * columns, target
                        spread(grad, turned, maps, count, vectors, given)
                        j += count
        column += vectors * lanes


@compiled
def join_kernel(maps: Array, grad: Array, height: int, width: int, by_kernel: Array) -> None:
    """The gradient of `convolve` by its kernel, added.

    maps: [n, P, C], a multiple of OUTER channels, grad: [n, height*width, O], by_kernel: [4*C, O]
    """
    join_kernel_of_any(maps, width + 1, 2, 1, grad, 0, height, width, by_kernel)


@compiled
def join_kernel_of_any(
    maps: Array, across: int, size: int, stride: int, grad: Array, around: int, height: int, width: int,
    by_kernel: Array,
) -> None:  # fmt: skip
    """The gradient of `convolve_any` by its kernel, added.

    grad: [n, …, O] of height*width cells, with so many around them that do not count
    """
    words, by_words, lanes = in_pairs(maps), in_pairs(grad), REGISTER // by_kernel.itemsize
    count, places, channels = words.shape
    columns, line, step, depth = grad.shape[2], across * channels, stride * channels, size * channels
    by_line = (width + 2 * around) * columns
    shape = count, places * channels, height, stride * line, width, step
    for down in range(size):
        column = 0
        while column < columns:
            vectors = _vectors(columns - column, lanes)
            many = OUTER if vectors == WIDEST or depth % (2 * OUTER) else 2 * OUTER
            right = around * (by_line + columns) + column, grad.shape[1] * columns, by_line, columns
            for channel in range(0, depth, many):
                target = (down * depth + channel) * columns + column
                outer(words, by_words, by_kernel, many, vectors, (down * line + channel, *shape, *right, target))
            column += vectors * lanes


@compiled
def dense(maps: Array, kernel: Array, out: Array) -> None:
    """A linear layer. maps: [n, P, C], kernel: words of [P*C, O] -> out [n, 1, O]"""
    depth, columns, lanes = maps.shape[1] * _words(maps), out.shape[2], REGISTER // out.itemsize
    column = 0
    while column < columns:
        vectors = _vectors(columns - column, lanes)
        v = 0
        while v < len(maps):
            count = min(_most_rows(vectors), len(maps) - v)
            given = v * depth, depth, 1, 0, depth, column, columns, v * columns + column, columns
            rows(maps, kernel, out, count, vectors, given)
            v += count
        column += vectors * lanes


@compiled
def dense_back(grad: Array, turned: Array, maps: Array) -> None:
    """The gradient of `dense` by its maps. grad: [n, 1, O], turned: [P, O, C] of the kernel -> maps [n, P, C]"""
    depth, lanes = _words(grad), REGISTER // maps.itemsize
    places, columns = maps.shape[1:]
    for p in range(places):
        column = 0
        while column < columns:
            vectors = _vectors(columns - column, lanes)
            v = 0
            while v < len(maps):
                count = min(_most_rows(vectors), len(maps) - v)
                right, target = p * depth * columns + column, (v * places + p) * columns + column
                given = v * depth, depth, 1, 0, depth, right, columns, target, places * columns
                rows(grad, turned, maps, count, vectors, given)
                v += count
            column += vectors * lanes


@compiled
def join_dense(maps: Array, grad: Array, by_kernel: Array) -> None:
    """The gradient of `dense` by its kernel, added. maps: [n, P, C], grad: [n, 1, O], by_kernel: [P*C, O]"""
    words, by_words, lanes = in_pairs(maps), in_pairs(grad), REGISTER // by_kernel.itemsize
    depth, columns = words.shape[1] * words.shape[2], grad.shape[2]
    for first in range(0, len(words), BLOCK):
        count = min(BLOCK, len(words) - first)
        for row in range(0, depth, OUTER):
            column = 0
            while column < columns:
                vectors = _vectors(columns - column, lanes)
                begin, right, target = first * depth + row, first * columns + column, row * columns + column
                given = begin, count, depth, 1, 0, 1, 0, right, columns, 0, columns, target
                outer(words, by_words, by_kernel, OUTER, vectors, given)
                column += vectors * lanes
