"""Compiled loops of the grid encoder with layer normalisation: each observation's feature maps have their own moments.

Laid out as in `whole_loops`, but observations do not depend on each other, so a job runs through all layers at once and
the backward pass makes the larger maps, those of the first two layers, again. Gains and shifts are by position and
channel, [P, C].
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled
from deir.fast.bf16 import rounded
from deir.fast.convolution import as_factors, convolve, convolve_back, dense, dense_back, join_dense, join_kernel

CHUNK = 16  # views whose maps are in the cache at a time


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
    """max(γ ŷ + β, 0).   normal: [n, P, C], gain, shift: [P, C] -> out [n, P, C] factors"""
    number = normal.dtype.type
    for v in range(len(normal)):
        for p in range(normal.shape[1]):
            y, result, g, b = normal[v, p], out[v, p], gain[p], shift[p]
            for c in range(len(g)):
                value = y[c] * g[c] + b[c]
                result[c] = rounded(number(0) if value < number(0) else value, out)


@compiled
def through_map_norm(
    grad: Array,  # [n, P, C] of the ReLU's output; becomes that of the products
    normal: Array,  # [n, P, C]
    gain: Array,  # [P, C]
    shift: Array,  # [P, C]
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
            g, y, scale, offset, plain, with_normal = (
                grad[v, p],
                normal[v, p],
                gain[p],
                shift[p],
                sums[0, p],
                sums[1, p],
            )
            for c in range(channels):  # short loops over few arrays each: only such are vectorised
                g[c] = zero if y[c] * scale[c] + offset[c] <= zero else g[c]
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
    """γ x̃ + β, with padding around. normal: [n, H*W, C] -> cells [n, (H+2p)*(W+2p), C or more] factors"""
    across = width + 2 * padding
    cells[:] = 0
    for v in range(len(normal)):
        for p in range(normal.shape[1]):
            cell, x = cells[v, (p // width + padding) * across + p % width + padding], normal[v, p]
            for c in range(normal.shape[2]):
                cell[c] = rounded(x[c] * gain[p, c] + shift[p, c], cells)


@compiled
def _add(maps: Array, bias: Array) -> None:
    for v in range(len(maps)):
        for p in range(maps.shape[1]):
            line = maps[v, p]
            for c in range(len(bias)):
                line[c] += bias[c]


@compiled
def _rooms(like: Array, views: Array, padding: int, kernels: tuple[Array, ...]) -> tuple[Array, ...]:
    """For the maps of a chunk: x̃, cells, then ŷ and ReLU's output of the first layer and of the second, and 1/σ."""
    height, width = views.shape[1] + 2 * padding, views.shape[2] + 2 * padding
    number, out = kernels[0].dtype, (kernels[0].shape[1], kernels[1].shape[1])
    return (
        np.empty((CHUNK, views.shape[1] * views.shape[2], views.shape[3]), number),
        np.empty((CHUNK, height * width, len(kernels[0]) // 4), like.dtype),
        np.empty((CHUNK, (height - 1) * (width - 1), out[0]), number),
        np.empty((CHUNK, (height - 1) * (width - 1), out[0]), like.dtype),
        np.empty((CHUNK, (height - 2) * (width - 2), out[1]), number),
        np.empty((CHUNK, (height - 2) * (width - 2), out[1]), like.dtype),
        np.empty((2, CHUNK), number),
    )  # fmt: skip


@compiled
def _two_layers(
    views: Array, padding: int, eps: float, gains: tuple[Array, ...], shifts: tuple[Array, ...],
    words: tuple[Array, ...], biases: tuple[Array, ...], rooms: tuple[Array, ...],
) -> None:  # fmt: skip
    """The first two layers on at most CHUNK views. rooms: of `_rooms`"""
    height, width, count = views.shape[1] + 2 * padding, views.shape[2] + 2 * padding, len(views)
    normal, cells, first, active, second, active_second, inverses = rooms
    standard_views(views, eps, normal[:count])
    padded(normal[:count], gains[0], shifts[0], views.shape[2], padding, cells[:count])
    convolve(cells[:count], height - 1, width - 1, words[0], first[:count])
    _add(first[:count], biases[0])
    standardise(first[:count], eps, inverses[0])
    activate_maps(first[:count], gains[1], shifts[1], active[:count])
    convolve(active[:count], height - 2, width - 2, words[1], second[:count])
    _add(second[:count], biases[1])
    standardise(second[:count], eps, inverses[1])
    activate_maps(second[:count], gains[2], shifts[2], active_second[:count])


@compiled
def map_products(
    like: Array, views: Array, padding: int, eps: float, gains: tuple[Array, ...], shifts: tuple[Array, ...],
    kernels: tuple[Array, ...], biases: tuple[Array, ...], words: tuple[Array, ...], lo: int, hi: int,
    third: Array, last: Array, inverses: Array, out: Array,
) -> None:  # fmt: skip
    """The encoder on views lo … hi. gains and shifts: of the input and of each layer; third, last: where ŷ of the upper
    two layers is left [B, P, C]; inverses: [2, B] 1/σ of these; out: [B, 1, F]"""
    height, width = views.shape[1] + 2 * padding, views.shape[2] + 2 * padding
    rooms = _rooms(like, views, padding, kernels)
    active = np.empty((CHUNK, third.shape[1], third.shape[2]), like.dtype)
    result = np.empty((CHUNK, 1, kernels[3].shape[1]), last.dtype)
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        count = end - begin
        _two_layers(views[begin:end], padding, eps, gains, shifts, words, biases, rooms)
        convolve(rooms[5][:count], height - 3, width - 3, words[2], third[begin:end])
        _add(third[begin:end], biases[2])
        standardise(third[begin:end], eps, inverses[0, begin:end])
        activate_maps(third[begin:end], gains[3], shifts[3], active[:count])
        dense(active[:count], words[3], result[:count])
        last[begin:end] = result[:count, :, : last.shape[2]]
        _add(last[begin:end], biases[3])
        standardise(last[begin:end], eps, inverses[1, begin:end])
        activate_maps(last[begin:end], gains[4], shifts[4], out[begin:end])


@compiled
def map_gradient(
    like: Array, views: Array, padding: int, eps: float, gains: tuple[Array, ...], shifts: tuple[Array, ...],
    kernels: tuple[Array, ...], biases: tuple[Array, ...], words: tuple[Array, ...], turned: tuple[Array, ...],
    lo: int, hi: int, third: Array, last: Array, inverses: Array, grad: Array, by_kernels: tuple[Array, ...],
    by_biases: tuple[Array, ...], sums: tuple[Array, ...],
) -> None:  # fmt: skip
    """The gradients of `map_products`, added. grad: [B, 1, F], which is overwritten; sums: [2, P, C] of each layer"""
    height, width = views.shape[1] + 2 * padding, views.shape[2] + 2 * padding
    rooms = _rooms(like, views, padding, kernels)
    normal, cells, first, active, second, active_second, scales = rooms
    active_third = np.empty((CHUNK, third.shape[1], third.shape[2]), like.dtype)
    by_third, by_second, by_first = np.empty_like(third[:CHUNK]), np.empty_like(second), np.empty_like(first)
    by_last = np.zeros((CHUNK, 1, kernels[3].shape[1]), last.dtype)
    by_cells = np.empty((CHUNK, height * width, turned[0].shape[2]), last.dtype)
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        n, upper = end - begin, third[begin:end]
        _two_layers(views[begin:end], padding, eps, gains, shifts, words, biases, rooms)
        through_map_norm(
            grad[begin:end], last[begin:end], gains[4], shifts[4], inverses[1, begin:end], sums[4], by_biases[3]
        )
        by_last[:n, :, : grad.shape[2]] = grad[begin:end]
        factors = as_factors(by_last[:n], like)
        activate_maps(upper, gains[3], shifts[3], active_third[:n])
        join_dense(active_third[:n], factors, by_kernels[3])
        dense_back(factors, turned[3], by_third[:n])
        through_map_norm(by_third[:n], upper, gains[3], shifts[3], inverses[0, begin:end], sums[3], by_biases[2])
        factors = as_factors(by_third[:n], like)
        join_kernel(active_second[:n], factors, height - 3, width - 3, by_kernels[2])
        convolve_back(factors, height - 3, width - 3, turned[2], by_second[:n])
        through_map_norm(by_second[:n], second[:n], gains[2], shifts[2], scales[1], sums[2], by_biases[1])
        factors = as_factors(by_second[:n], like)
        join_kernel(active[:n], factors, height - 2, width - 2, by_kernels[1])
        convolve_back(factors, height - 2, width - 2, turned[1], by_first[:n])
        through_map_norm(by_first[:n], first[:n], gains[1], shifts[1], scales[0], sums[1], by_biases[0])
        factors = as_factors(by_first[:n], like)
        join_kernel(cells[:n], factors, height - 1, width - 1, by_kernels[0])
        convolve_back(factors, height - 1, width - 1, turned[0], by_cells[:n])
        _join_input(by_cells[:n], normal[:n], views.shape[2], padding, sums[0])


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
