"""Layers of the image encoders that are convolutions with as many cells around their maps as a kernel needs.

Maps that a convolution reads get cells of 0 around them, so their borders need no care. The gradient of its input is
then the same convolution of the products' gradient, with the kernel turned around.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn import functional

from deir.compiled import Array, compiled
from deir.fast.convolution import convolve_any, join_kernel_of_any, multiple
from deir.fast.micro_kernels import OUTER, rounded

SIZE = 3  # of kernels


def by_place(kernel: Tensor) -> Tensor:
    """[O, C, 3, 3] -> [9*depth, O]: down, right, channel; with rows of 0 up to a depth that products can take"""
    channels = kernel.shape[1]
    places = functional.pad(kernel.permute(2, 3, 1, 0), (0, 0, 0, multiple(channels, OUTER) - channels))
    return places.reshape(-1, len(kernel))


def turned_around(kernel: Array) -> Array:
    """The kernel that leads from the products' gradient to that of the input. [9*C, O] -> [9*O, C]"""
    places = kernel.reshape(SIZE**2, -1, kernel.shape[1])[::-1].transpose(0, 2, 1)
    return np.ascontiguousarray(places).reshape(-1, places.shape[2])


@compiled
def surround(maps: Array, height: int, width: int, out: Array) -> None:
    """A cell of 0 around maps, and channels of 0 up to those of out.

    maps: [n, H*W*C] -> out [n, (H+2)*(W+2), C or more] factors
    """
    depth, channels = out.shape[2], maps.shape[1] // (height * width)
    across, line = width * depth, (width + 2) * depth
    for v in range(len(maps)):
        target = out[v].reshape(-1)
        target[: line + depth] = 0
        for i in range(height):
            begin = (i + 1) * line + depth
            x, result = maps[v, i * width * channels : (i + 1) * width * channels], target[begin : begin + across]
            if depth == channels:
                for k in range(across):
                    result[k] = rounded(x[k], out)
            else:
                result[:] = 0
                for j in range(width):
                    for c in range(channels):
                        result[j * depth + c] = rounded(x[j * channels + c], out)
            target[begin + across : begin + across + 2 * depth] = 0
        target[(height + 1) * line + depth :] = 0


@compiled
def _add_bias(products: Array, bias: Array, width: int) -> None:
    """products: [n, H*W*C], bias: [C]"""
    line = np.empty(width * len(bias), bias.dtype)
    for j in range(width):
        line[j * len(bias) : (j + 1) * len(bias)] = bias
    for v in range(len(products)):
        for begin in range(0, products.shape[1], len(line)):
            y = products[v, begin : begin + len(line)]
            for k in range(len(line)):
                y[k] += line[k]


@compiled
def _join_bias(grad: Array, width: int, by_bias: Array) -> None:
    """grad: [n, H*W*C], by_bias: [C]"""
    channels = len(by_bias)
    line = np.zeros(width * channels, grad.dtype)
    for v in range(len(grad)):
        for begin in range(0, grad.shape[1], len(line)):
            g = grad[v, begin : begin + len(line)]
            for k in range(len(line)):
                line[k] += g[k]
    for j in range(width):
        by_bias += line[j * channels : (j + 1) * channels]


@compiled
def _cells(like: Array, count: int, height: int, width: int, channels: int) -> Array:
    return np.empty((count, (height + 2) * (width + 2), channels), like.dtype)


@compiled
def convolved(like: Array, x: Array, sides: tuple[int, int], depth: int, words: Array, bias: Array) -> Array:
    """The products of a layer, with its bias. [n, H*W*C] -> [n, H*W*O]

    like: of the type of factors; sides: H, W; depth: channels of the kernel, of which words are given
    """
    (height, width), count = sides, len(x)
    cells, out = _cells(like, count, height, width, depth), np.empty((count, height * width, len(bias)), x.dtype)
    surround(x, height, width, cells)
    convolve_any(cells, width + 2, SIZE, 1, height, width, words, out)
    flat = out.reshape(count, -1)
    _add_bias(flat, bias, width)
    return flat


@compiled
def layer_gradient(
    like: Array, grad: Array, x: Array, sides: tuple[int, int], turned: Array, by_kernel: Array, by_bias: Array,
    by_x: Array,
) -> None:  # fmt: skip
    """Adds the gradients of a layer's kernel and bias, and makes that of its input, unless it has room for no rows.

    grad: [n, H*W*O] of the products; x, by_x: [n, H*W*C]; turned: words of `turned_around`; by_kernel: [9*depth, O]
    """
    (height, width), count = sides, len(x)
    cells = _cells(like, count, height, width, len(by_kernel) // SIZE**2)
    by_cells = _cells(like, count, height, width, len(by_bias))
    surround(x, height, width, cells)
    surround(grad, height, width, by_cells)
    _join_bias(grad, width, by_bias)
    join_kernel_of_any(cells, width + 2, SIZE, 1, by_cells, 1, height, width, by_kernel)
    if len(by_x):
        convolve_any(by_cells, width + 2, SIZE, 1, height, width, turned, by_x.reshape(count, height * width, -1))
