"""Compiled loops of the pooling between IMPALA's stages, with the normalisation before it."""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled
from deir.fast.image_loops import moments_of, scale_map, standardise_map
from deir.fast.micro_kernels import largest


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
    height, width, channels = sides
    full, across = width * channels, (width + 1) // 2 * channels
    lines = np.full((3, full + 3 * channels), -np.inf, out.dtype)  # of γ ŷ + β, with cells around
    begins = np.arange(3) * lines.shape[1]
    for i in range((height + 1) // 2):
        # the third line of before is the first
        first, second, third = 2 * i % 3, (2 * i + 1) % 3, (2 * i + 2) % 3
        for row, line in ((2 * i, second), (2 * i + 1, third)):
            cells = slice(row * full, row * full + full)
            if row < height:
                scale_map(normal[cells], gain[cells], shift[cells], lines[line, channels : channels + full])
            else:
                lines[line] = -np.inf
        row_of = slice(i * across, (i + 1) * across)
        largest(lines, (begins[first], begins[second], begins[third]), channels, out[row_of], places[row_of])


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
