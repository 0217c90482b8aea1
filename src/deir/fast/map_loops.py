"""Compiled loops of the grid encoder with layer normalisation: each observation's feature maps have their own moments.

Laid out as in `whole_loops`, but observations do not depend on each other, so a job runs through all layers at once.
Gains and shifts are by position and channel, [P, C].
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled
from deir.fast.blas import multiply
from deir.fast.whole_loops import CHUNK, into_patches, out_of_patches


@compiled
def standardise(maps: Array, eps: float, inverse: Array) -> None:
    """y becomes (y - μ)/σ by the moments of each map, and inverse 1/σ. maps: [n, P, C], inverse: [n]"""
    count, places, channels = maps.shape
    number, size = maps.dtype.type, maps.dtype.type(places * channels)
    part = np.empty(channels, maps.dtype)
    for v in range(count):
        part[:] = 0
        for p in range(places):
            y = maps[v, p]
            for c in range(channels):
                part[c] += y[c]
        mean = part.sum() / size
        part[:] = 0
        for p in range(places):
            y = maps[v, p]
            for c in range(channels):
                away = y[c] - mean
                part[c] += away * away
        scale = number(1) / np.sqrt(part.sum() / size + number(eps))
        inverse[v] = scale
        for p in range(places):
            y = maps[v, p]
            for c in range(channels):
                y[c] = (y[c] - mean) * scale


@compiled
def activate_maps(normal: Array, gain: Array, shift: Array, out: Array) -> None:
    """max(γ ŷ + β, 0).   normal, out: [n, P, C], gain, shift: [P, C]"""
    zero = out.dtype.type(0)
    for v in range(len(normal)):
        for p in range(normal.shape[1]):
            y, result, g, b = normal[v, p], out[v, p], gain[p], shift[p]
            for c in range(len(g)):
                value = y[c] * g[c] + b[c]
                result[c] = zero if value < zero else value


@compiled
def through_map_norm(
    grad: Array,  # [n, P, C] of the ReLU's output; becomes that of the products
    active: Array,  # [n, P, C] the ReLU's output
    normal: Array,  # [n, P, C]
    gain: Array,  # [P, C]
    inverse: Array,  # [n]
    sums: Array,  # [2, P, C] joined by g and g ŷ
    by_bias: Array,  # [C] joined by the products' gradient
) -> None:
    """dy = (γ g - mean(γ g) - ŷ mean(γ g ŷ))/σ, with the means over each map."""
    count, places, channels = grad.shape
    zero, size = grad.dtype.type(0), grad.dtype.type(places * channels)
    part = np.empty((2, channels), grad.dtype)
    first, second = part[0], part[1]
    for v in range(count):
        part[:] = 0
        for p in range(places):
            g, a, y, scale, plain, with_normal = grad[v, p], active[v, p], normal[v, p], gain[p], sums[0, p], sums[1, p]
            for c in range(channels):  # short loops over few arrays each: only such are vectorised
                g[c] = zero if a[c] <= zero else g[c]
            for c in range(channels):
                plain[c] += g[c]
                with_normal[c] += g[c] * y[c]
            for c in range(channels):
                g[c] *= scale[c]
                first[c] += g[c]
            for c in range(channels):
                second[c] += g[c] * y[c]
        mean, with_mean, factor = first.sum() / size, second.sum() / size, inverse[v]
        for p in range(places):
            g, y = grad[v, p], normal[v, p]
            for c in range(channels):
                g[c] = (g[c] - mean - y[c] * with_mean) * factor
            for c in range(channels):
                by_bias[c] += g[c]


@compiled
def standard_views(views: Array, eps: float, normal: Array) -> None:
    """Each view by its own moments. views: [n, H, W, C] -> normal [n, H*W, C]"""
    count, height, width, channels = views.shape
    unused, number = np.empty(count, normal.dtype), normal.dtype.type
    for v in range(count):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    normal[v, i * width + j, c] = number(views[v, i, j, c])
    if eps >= 0:  # negative: taken as they are
        standardise(normal, eps, unused)


@compiled
def padded(normal: Array, gain: Array, shift: Array, width: int, padding: int, cells: Array) -> None:
    """γ x̃ + β, with padding around. normal: [n, H*W, C] -> cells [n, (H+2p)*(W+2p), C]"""
    across = width + 2 * padding
    cells[:] = 0
    for v in range(len(normal)):
        for p in range(normal.shape[1]):
            cell, x = cells[v, (p // width + padding) * across + p % width + padding], normal[v, p]
            for c in range(normal.shape[2]):
                cell[c] = x[c] * gain[p, c] + shift[p, c]


@compiled
def map_products(
    gemm: int, views: Array, padding: int, eps: float, gains: tuple[Array, ...], shifts: tuple[Array, ...],
    kernels: tuple[Array, ...], biases: tuple[Array, ...], lo: int, hi: int, products: tuple[Array, ...],
    inverses: Array, out: Array,
) -> None:  # fmt: skip
    """The encoder on views lo … hi. gains and shifts: of the input and of each layer; products: of each layer, where
    ŷ is left [B, P, C]; inverses: [4, B]; out: [B, 1, F]"""
    height, width = views.shape[1] + 2 * padding, views.shape[2] + 2 * padding
    dtype, channels = out.dtype, views.shape[3]
    normal = np.empty((CHUNK, views.shape[1] * views.shape[2], channels), dtype)
    cells = np.empty((CHUNK, height * width, channels), dtype)
    first, second, third = products[0], products[1], products[2]
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        count = end - begin
        standard_views(views[begin:end], eps, normal[:count])
        padded(normal[:count], gains[0], shifts[0], views.shape[2], padding, cells[:count])
        _convolve(gemm, cells[:count], height - 1, width - 1, kernels[0], biases[0], first[begin:end])
        standardise(first[begin:end], eps, inverses[0, begin:end])
        active = np.empty_like(first[begin:end])
        activate_maps(first[begin:end], gains[1], shifts[1], active)
        _convolve(gemm, active, height - 2, width - 2, kernels[1], biases[1], second[begin:end])
        standardise(second[begin:end], eps, inverses[1, begin:end])
        active = np.empty_like(second[begin:end])
        activate_maps(second[begin:end], gains[2], shifts[2], active)
        _convolve(gemm, active, height - 3, width - 3, kernels[2], biases[2], third[begin:end])
        standardise(third[begin:end], eps, inverses[2, begin:end])
    last = products[3][lo:hi]
    active = np.empty_like(third[lo:hi])
    activate_maps(third[lo:hi], gains[3], shifts[3], active)
    multiply(gemm, active.reshape(hi - lo, -1), False, kernels[3], False, last.reshape(hi - lo, -1), 0.0)
    last += biases[3]
    standardise(last, eps, inverses[3, lo:hi])
    activate_maps(last, gains[4], shifts[4], out[lo:hi])


@compiled
def _convolve(gemm: int, maps: Array, height: int, width: int, kernel: Array, bias: Array, out: Array) -> None:
    rows = len(maps) * height * width
    patches, result = np.empty((rows, kernel.shape[0]), maps.dtype), out.reshape(rows, len(bias))
    into_patches(maps, height, width, patches)
    multiply(gemm, patches, False, kernel, False, result, 0.0)
    for row in range(rows):
        line = result[row]
        for c in range(len(bias)):
            line[c] += bias[c]


@compiled
def _convolve_back(
    gemm: int, maps: Array, height: int, width: int, kernel: Array, by_out: Array, by_kernel: Array, by_maps: Array
) -> None:
    """The gradients of `_convolve`; the kernel's is added."""
    rows = len(maps) * height * width
    patches, by_rows = np.empty((rows, kernel.shape[0]), maps.dtype), by_out.reshape(rows, kernel.shape[1])
    into_patches(maps, height, width, patches)
    multiply(gemm, patches, True, by_rows, False, by_kernel, 1.0)
    multiply(gemm, by_rows, False, kernel, True, patches, 0.0)
    out_of_patches(patches, height, width, by_maps)


@compiled
def map_gradient(
    gemm: int, views: Array, padding: int, eps: float, gains: tuple[Array, ...], shifts: tuple[Array, ...],
    kernels: tuple[Array, ...], lo: int, hi: int, products: tuple[Array, ...], inverses: Array, out: Array,
    grad: Array, by_kernels: tuple[Array, ...], by_biases: tuple[Array, ...], sums: tuple[Array, ...],
) -> None:  # fmt: skip
    """The gradients of `map_products`, added. grad: [B, 1, F], which is overwritten; sums: [2, P, C] of each layer"""
    height, width = views.shape[1] + 2 * padding, views.shape[2] + 2 * padding
    dtype, channels, count = out.dtype, views.shape[3], hi - lo
    first, second, third = products[0], products[1], products[2]
    through_map_norm(grad[lo:hi], out[lo:hi], products[3][lo:hi], gains[4], inverses[3, lo:hi], sums[4], by_biases[3])
    by_last, active = grad[lo:hi].reshape(count, -1), np.empty_like(third[lo:hi])
    activate_maps(third[lo:hi], gains[3], shifts[3], active)
    by_third = np.empty_like(active)
    multiply(gemm, active.reshape(count, -1), True, by_last, False, by_kernels[3], 1.0)
    multiply(gemm, by_last, False, kernels[3], True, by_third.reshape(count, -1), 0.0)
    through_map_norm(by_third, active, third[lo:hi], gains[3], inverses[2, lo:hi], sums[3], by_biases[2])
    normal = np.empty((CHUNK, views.shape[1] * views.shape[2], channels), dtype)
    cells = np.empty((CHUNK, height * width, channels), dtype)
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        count = end - begin
        active = np.empty_like(second[begin:end])
        by_second = np.empty_like(active)
        activate_maps(second[begin:end], gains[2], shifts[2], active)
        by_out = by_third[begin - lo : end - lo]
        _convolve_back(gemm, active, height - 3, width - 3, kernels[2], by_out, by_kernels[2], by_second)
        through_map_norm(by_second, active, second[begin:end], gains[2], inverses[1, begin:end], sums[2], by_biases[1])
        active = np.empty_like(first[begin:end])
        by_first = np.empty_like(active)
        activate_maps(first[begin:end], gains[1], shifts[1], active)
        _convolve_back(gemm, active, height - 2, width - 2, kernels[1], by_second, by_kernels[1], by_first)
        through_map_norm(by_first, active, first[begin:end], gains[1], inverses[0, begin:end], sums[1], by_biases[0])
        standard_views(views[begin:end], eps, normal[:count])
        padded(normal[:count], gains[0], shifts[0], views.shape[2], padding, cells[:count])
        by_cells = np.empty_like(cells[:count])
        _convolve_back(gemm, cells[:count], height - 1, width - 1, kernels[0], by_first, by_kernels[0], by_cells)
        _join_input(by_cells, normal[:count], views.shape[2], padding, sums[0])


@compiled
def _join_input(by_cells: Array, normal: Array, width: int, padding: int, sums: Array) -> None:
    """Σ g and Σ g x̃ of the input's normalisation. sums: [2, H*W, C]"""
    across = width + 2 * padding
    for v in range(len(normal)):
        for p in range(normal.shape[1]):
            g, x = by_cells[v, (p // width + padding) * across + p % width + padding], normal[v, p]
            for c in range(normal.shape[2]):
                sums[0, p, c] += g[c]
                sums[1, p, c] += g[c] * x[c]
