"""The grid encoder on few views at a time while parameters are frozen: one compiled loop."""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled
from deir.fast.blas import multiply

Layer = tuple[Array, Array]  # weight [in, out], bias [out]


@compiled
def layer(gemm: int, x: Array, weight: Array, bias: Array) -> Array:
    """ReLU(x weight + bias). [B, out]"""
    out = np.empty((len(x), len(bias)), x.dtype)
    out[:] = bias
    multiply(gemm, x, False, weight, False, out, 1.0)
    return np.maximum(out, x.dtype.type(0))


@compiled
def encode_grids(
    gemm: int,
    grids: Array,  # [B, H, W, C]
    padding: int,
    scale: Array,  # [C] of the inputs
    shift: Array,  # [C]
    convolutions: tuple[Layer, ...],  # of 2x2 cells, [4*in, out]
    linear: Layer,  # [positions*channels, features]
    inputs: Layer,  # of the GRU: [features, 3H]
    out: Array,  # [B, 3H]
) -> None:
    """What a GRU takes of each grid."""
    count, height, width, channels = grids.shape
    height, width = height + 2 * padding, width + 2 * padding
    x = np.zeros((count, height, width, channels), scale.dtype)
    for b in range(count):
        for i in range(padding, height - padding):
            for j in range(padding, width - padding):
                for c in range(channels):
                    x[b, i, j, c] = scale.dtype.type(grids[b, i - padding, j - padding, c]) * scale[c] + shift[c]
    for weight, bias in convolutions:
        patches = np.empty((count, height - 1, width - 1, 4, channels), scale.dtype)
        for b in range(count):
            for i in range(height - 1):
                for j in range(width - 1):
                    to = patches[b, i, j]
                    for k in range(4):
                        cell = x[b, i + k // 2, j + k % 2]
                        for c in range(channels):
                            to[k, c] = cell[c]
        height, width, channels = height - 1, width - 1, len(bias)
        products = layer(gemm, patches.reshape((count * height * width, weight.shape[0])), weight, bias)
        x = products.reshape((count, height, width, channels))
    embedded = layer(gemm, x.reshape((count, height * width * channels)), linear[0], linear[1])
    out[:] = inputs[1]
    multiply(gemm, embedded, False, inputs[0], False, out, 1.0)
