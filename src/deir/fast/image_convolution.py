"""Convolutions of the image encoders, with what is around their products: padding, rounding, biases.

Where a layer pads its maps they get cells of 0 around them, so borders need no care, and the gradient of its input is
the same convolution of the products' gradient, with the kernel turned around. Layers with a stride run on blocks of so
many cells, with a stride of 1.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn import functional

from deir.compiled import Array, compiled
from deir.fast.bf16 import rounded
from deir.fast.convolution import (
    convolve_any,
    convolve_any_back,
    join_kernel_of_any,
    kernel_words,
    multiple,
    turned_words,
)
from deir.fast.micro_kernels import OUTER


def by_place(kernel: Tensor, block: int = 1) -> Tensor:
    """[O, C, k, k] -> [K, O]: down, right, channel; with rows of 0 up to as many channels as products can take.

    block: of so many cells down and right, whose channels lie one after the other; k is a multiple
    """
    out, channels, size, _ = kernel.shape
    cells = kernel.view(out, channels, size // block, block, size // block, block).permute(2, 4, 3, 5, 1, 0)
    places = cells.reshape((size // block) ** 2, -1, out)
    depth = places.shape[1]
    return functional.pad(places, (0, 0, 0, multiple(depth, OUTER) - depth)).reshape(-1, out)


def turned_around(kernel: Array, size: int) -> Array:
    """The kernel that leads from the products' gradient to that of the input. [K, O] -> [size*size*O, C]"""
    places = kernel.reshape(size**2, -1, kernel.shape[1])[::-1].transpose(0, 2, 1)
    return np.ascontiguousarray(places).reshape(-1, places.shape[2])


def words_back(kernel: Array, size: int, padding: int, like: Array) -> Array:
    """What `layer_gradient` takes of a kernel [K, O]."""
    if padding:
        return np.asarray(kernel_words(turned_around(kernel, size), like))
    return np.asarray(turned_words(kernel, len(kernel) // size**2, like))


@compiled
def in_blocks(maps: Array, sides: tuple[int, int, int], block: int, back: bool, blocks: Array) -> None:
    """Blocks of cells become cells with their channels one after the other; or `back`, with 0 where no block was.

    maps: [n, H*W*C], sides: H, W, C; blocks: [n, (H/block)*(W/block)*block*block*C]
    """
    height, width, channels = sides
    along = block * channels
    for v in range(len(maps)):
        target = 0
        if back:
            maps[v] = 0
        for i in range(height // block):
            for j in range(width // block):
                for down in range(block):
                    begin = ((i * block + down) * width + j * block) * channels
                    cells, part = maps[v, begin : begin + along], blocks[v, target : target + along]
                    if back:
                        cells[:] = part
                    else:
                        part[:] = cells
                    target += along


@compiled
def surround(maps: Array, height: int, width: int, around: int, out: Array) -> None:
    """Cells of 0 around maps, so many at each side, and channels of 0 up to those of out.

    maps: [n, H*W*C] -> out [n, …, C or more] factors
    """
    depth, channels = out.shape[2], maps.shape[1] // (height * width)
    across, line = width * depth, (width + 2 * around) * depth
    for v in range(len(maps)):
        target = out[v].reshape(-1)
        if around or depth > channels:
            target[:] = 0
        for i in range(height):
            begin = (i + around) * line + around * depth
            x, result = maps[v, i * width * channels : (i + 1) * width * channels], target[begin : begin + across]
            if depth == channels:
                for k in range(across):
                    result[k] = rounded(x[k], out)
            else:
                for j in range(width):
                    for c in range(channels):
                        result[j * depth + c] = rounded(x[j * channels + c], out)


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
def _cells(like: Array, maps: Array, height: int, width: int, around: int, channels: int) -> Array:
    """What `surround` makes of maps."""
    out = np.empty((len(maps), (height + 2 * around) * (width + 2 * around), channels), like.dtype)
    surround(maps, height, width, around, out)
    return out


@compiled
def convolved(like: Array, x: Array, shape: tuple[int, int, int, int], words: Array, depth: int, bias: Array) -> Array:
    """The products of a layer, with its bias. [n, H*W*C] -> [n, h*w*O]

    like: of the type of factors; shape: H, W, size, padding; depth: channels of the kernel, whose words are given
    """
    height, width, size, padding = shape
    cells, across = _cells(like, x, height, width, padding, depth), width + 2 * padding
    down, right = height + 2 * padding - size + 1, across - size + 1
    out = np.empty((len(x), down * right, len(bias)), x.dtype)
    convolve_any(cells, across, size, 1, down, right, words, out)
    flat = out.reshape(len(x), -1)
    _add_bias(flat, bias, right)
    return flat


@compiled
def layer_gradient(
    like: Array, grad: Array, x: Array, shape: tuple[int, int, int, int], words: Array, by_kernel: Array,
    by_bias: Array, by_x: Array,
) -> None:  # fmt: skip
    """Adds the gradients of a layer's kernel and bias, and makes that of its input, unless it has room for no rows.

    grad: [n, h*w*O] of the products; x, by_x: [n, H*W*C]; words: of `words_back`; by_kernel: [K, O]
    """
    height, width, size, padding = shape
    across = width + 2 * padding
    down, right = height + 2 * padding - size + 1, across - size + 1
    cells = _cells(like, x, height, width, padding, len(by_kernel) // size**2)
    by_cells = _cells(like, grad, down, right, padding, len(by_bias))
    _join_bias(grad, right, by_bias)
    join_kernel_of_any(cells, across, size, 1, by_cells, padding, down, right, by_kernel)
    if len(by_x):
        maps = by_x.reshape(len(x), height * width, -1)
        if padding:  # as many cells around as the kernel needs: height and width stay
            convolve_any(by_cells, across, size, 1, height, width, words, maps)
        else:
            convolve_any_back(by_cells, size, down, right, words, maps)
