"""Compiled loops of the pooling between IMPALA's stages, with the normalisation before it."""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled
from deir.fast.image_loops import moments_of, scale_map, standardise_map

LANES = 16  # every layer before pooling has a multiple of that many channels


@compiled
def normalise_and_pool(
    maps: Array, eps: float, moments: Array, gain: Array, shift: Array, normal: Array, sides: tuple[int, int, int],
    out: Array, places: Array,
) -> None:  # fmt: skip
    """The same for the largest γ ŷ + β of 3x3 cells around every second one, and which: 3 down + right, of equals the
    first. sides: H, W, C; out, places: [n, h*w*C], places of bytes"""
    for v in range(len(maps)):
        moments[0, v], moments[1, v] = moments_of(maps[v], eps)
        standardise_map(maps[v], moments[0, v], moments[1, v], normal[v])
        _pool(normal[v], gain, shift, sides, out[v], places[v])


@compiled
def _pool(normal: Array, gain: Array, shift: Array, sides: tuple[int, int, int], out: Array, places: Array) -> None:
    """Around every cell of a row, of which every second one is taken: long loops are faster than half as many."""
    height, width, channels = sides
    full, across = width * channels, (width + 1) // 2 * channels
    line = np.full(full + 2 * channels, -np.inf, out.dtype)  # one row of cells, with a cell around
    rows = np.full((3, full), -np.inf, out.dtype)  # the largest of three cells side by side, of three rows
    rights = np.zeros((3, full), np.int32)
    best, where = np.empty(full, out.dtype), np.empty(full, np.int32)
    for i in range((height + 1) // 2):
        rows[0], rights[0] = rows[2], rights[2]
        for turn in range(1, 3):
            row = 2 * i + turn - 1
            if row < height:
                cells = slice(row * full, row * full + full)
                scale_map(normal[cells], gain[cells], shift[cells], line[channels : channels + full])
                _largest(line, line[channels:], line[2 * channels :], rows[turn])
                _which(line, line[channels:], line[2 * channels :], rights[turn])
            else:
                rows[turn] = -np.inf
        _largest(rows[0], rows[1], rows[2], best)
        _which(rows[0], rows[1], rows[2], where)
        _code(where, rights[0], rights[1], rights[2])
        _every_second(best, channels, out[i * across : (i + 1) * across])
        _every_second(where, channels, places[i * across : (i + 1) * across])


@compiled
def _code(downs: Array, first: Array, second: Array, third: Array) -> None:
    """3 down + right, in the place of down"""
    for k in range(len(downs)):
        right = first[k] if downs[k] == 0 else second[k]
        right = third[k] if downs[k] == 2 else right
        downs[k] = np.int32(3) * downs[k] + right


@compiled
def _every_second(cells: Array, channels: int, out: Array) -> None:
    """cells: [W*C] -> out [(W+1)/2*C]"""
    number = out.dtype.type
    for j in range(0, len(out), LANES):
        begin = 2 * (j // channels) * channels + j % channels
        for c in range(LANES):  # of known length: one that is not would be too short to be vectorised
            out[j + c] = number(cells[begin + c])


@compiled
def _largest(first: Array, second: Array, third: Array, out: Array) -> None:
    for k in range(len(out)):
        value = second[k] if (second[k] > first[k]) | (second[k] != second[k]) else first[k]
        out[k] = third[k] if (third[k] > value) | (third[k] != third[k]) else value


@compiled
def _which(first: Array, second: Array, third: Array, out: Array) -> None:
    """0, 1 or 2: of equals the first"""
    for k in range(len(out)):
        later = (second[k] > first[k]) | (second[k] != second[k])
        value, place = second[k] if later else first[k], np.int32(1) if later else np.int32(0)
        out[k] = np.int32(2) if (third[k] > value) | (third[k] != third[k]) else place


@compiled
def out_of_pool(grad: Array, places: Array, sides: tuple[int, int, int], out: Array) -> None:
    """The gradient of `pool` by γ ŷ + β. grad, places: [n, h*w*C], out: [n, H*W*C]"""
    height, width, channels = sides
    offsets = np.empty(9, np.int64)
    for place in range(9):
        offsets[place] = ((place // 3 - 1) * width + place % 3 - 1) * channels
    across = (width + 1) // 2
    for v in range(len(grad)):
        target = out[v]
        target[:] = 0
        for i in range((height + 1) // 2):
            for j in range(across):
                begin, cell = (i * across + j) * channels, (2 * i * width + 2 * j) * channels
                for c in range(channels):
                    target[cell + c + offsets[places[v, begin + c]]] += grad[v, begin + c]
