"""Compiled loops of the grid encoder on whole views, each from one normalisation to the next.

A layer is: normalise, ReLU, 2x2 patches, product. It reads the products before it once and writes its own once; what is
in between lives in the cache, a few views at a time. Of a layer only the normalised products are kept; the backward
pass makes everything else again, which is cheaper than to read it.

Feature maps are [B, positions, C] with channels last. A job has the views lo … hi.
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled
from deir.fast.blas import multiply

CHUNK = 32  # views whose patches are in the cache at a time


@compiled
def into_patches(maps: Array, height: int, width: int, patches: Array) -> None:
    """The 2x2 patches of maps. maps: [n, (height+1)*(width+1), C] -> patches [n*height*width, 4*C]"""
    count, channels = len(maps), maps.shape[2]
    row = 0
    for v in range(count):
        for i in range(height):
            for j in range(width):
                patch = patches[row]
                for di in range(2):
                    for dj in range(2):
                        cell, begin = maps[v, (i + di) * (width + 1) + j + dj], (2 * di + dj) * channels
                        for c in range(channels):
                            patch[begin + c] = cell[c]
                row += 1


@compiled
def out_of_patches(patches: Array, height: int, width: int, maps: Array) -> None:
    """The gradient of `into_patches`: each cell is the sum of what its patches hold of it."""
    count, channels = len(maps), maps.shape[2]
    for v in range(count):
        maps[v] = 0
        for i in range(height):
            for j in range(width):
                patch = patches[(v * height + i) * width + j]
                for di in range(2):
                    for dj in range(2):
                        cell, begin = maps[v, (i + di) * (width + 1) + j + dj], (2 * di + dj) * channels
                        for c in range(channels):
                            cell[c] += patch[begin + c]


@compiled
def standard_cells(views: Array, padding: int, mean: Array, inverse: Array, cells: Array) -> None:
    """(x - μ)/σ, and a channel that is 1 on cells and 0 on padding.

    views: [n, H, W, C] -> cells [n, (H+2p)*(W+2p), C+1]
    """
    count, height, width, channels = views.shape
    across, number = width + 2 * padding, cells.dtype.type
    cells[:] = 0
    for v in range(count):
        for i in range(height):
            for j in range(width):
                cell = cells[v, (i + padding) * across + j + padding]
                for c in range(channels):
                    cell[c] = (number(views[v, i, j, c]) - mean[c]) * inverse[c]
                cell[channels] = number(1)


@compiled
def channel_moments(views: Array) -> Array:
    """Rows, mean and Σ(x - mean)² of each channel. [n, H, W, C] -> [3, C] double"""
    count, height, width, channels = views.shape
    out = np.zeros((3, channels))
    out[0] = count * height * width
    for turn in (1, 2):
        for v in range(count):
            for i in range(height):
                for j in range(width):
                    for c in range(channels):
                        x = np.float64(views[v, i, j, c])
                        out[turn, c] += x if turn == 1 else (x - out[1, c]) * (x - out[1, c])
        if turn == 1:
            out[1] /= out[0]
    return out


@compiled
def follow(products: Array, moments: Array) -> None:
    """Joins rows to the moments of a job: moments[0, 0] rows so far, their mean [1] and Σ(y - mean)² [2].

    products: [R, C], moments: [3, C] double
    """
    rows, width = products.shape
    total, squares = np.zeros(width, products.dtype), np.zeros(width, products.dtype)
    for r in range(rows):
        y = products[r]
        for c in range(width):
            total[c] += y[c]
    total /= products.dtype.type(rows)
    for r in range(rows):
        y = products[r]
        for c in range(width):
            away = y[c] - total[c]
            squares[c] += away * away
    join_moments(moments, rows, total, squares)


@compiled
def join_moments(moments: Array, rows: float, mean: Array, squares: Array) -> None:
    before = moments[0, 0]
    after = before + rows
    for c in range(len(mean)):
        change = mean[c] - moments[1, c]
        moments[2, c] += squares[c] + change * change * before * rows / after
        moments[1, c] += change * rows / after
        moments[0, c] = after


@compiled
def joined(moments: Array) -> Array:
    """The moments of all jobs, in their order. [jobs, 3, C] -> [3, C]"""
    out = np.zeros(moments.shape[1:])
    for job in range(len(moments)):
        if moments[job, 0, 0] > 0:
            join_moments(out, moments[job, 0, 0], moments[job, 1], moments[job, 2])
    return out


@compiled
def activate(products: Array, mean: Array, inverse: Array, gain: Array, bias: Array, out: Array) -> None:
    """products become (y - μ)/σ, and out max(γ (y - μ)/σ + β, 0). products, out: [n, P, C], the others [C]"""
    zero = out.dtype.type(0)
    for v in range(len(products)):
        for p in range(products.shape[1]):
            y, result = products[v, p], out[v, p]
            for c in range(len(mean)):
                normal = (y[c] - mean[c]) * inverse[c]
                y[c] = normal
                value = normal * gain[c] + bias[c]
                result[c] = zero if value < zero else value


@compiled
def activate_again(normal: Array, gain: Array, bias: Array, out: Array) -> None:
    """max(γ ŷ + β, 0).   normal, out: [n, P, C]"""
    zero = out.dtype.type(0)
    for v in range(len(normal)):
        for p in range(normal.shape[1]):
            y, result = normal[v, p], out[v, p]
            for c in range(len(gain)):
                value = y[c] * gain[c] + bias[c]
                result[c] = zero if value < zero else value


@compiled
def through_relu(grad: Array, active: Array, normal: Array, sums: Array) -> None:
    """The gradient stays where the ReLU let something through; Σ g and Σ g ŷ join sums [2, C]. The others: [n, P, C]"""
    width, zero = grad.shape[2], grad.dtype.type(0)
    part = np.zeros((2, width), grad.dtype)
    plain, with_normal = part[0], part[1]
    for v in range(len(grad)):
        for p in range(grad.shape[1]):
            g, a, y = grad[v, p], active[v, p], normal[v, p]
            for c in range(width):
                passed = zero if a[c] <= zero else g[c]
                g[c] = passed
                plain[c] += passed
                with_normal[c] += passed * y[c]
    sums += part


@compiled
def through_norm(grad: Array, normal: Array, scale: Array, means: Array, out: Array) -> None:
    """dy = γ/σ (g - mean g - ŷ mean(g ŷ)).   grad, normal: [n, P, C], scale: [C], means: [2, C] -> out [n*P, C]"""
    row, first, second = 0, means[0], means[1]
    for v in range(len(grad)):
        for p in range(grad.shape[1]):
            g, y, result = grad[v, p], normal[v, p], out[row]
            for c in range(len(scale)):
                result[c] = (g[c] - first[c] - y[c] * second[c]) * scale[c]
            row += 1


@compiled
def first_products(
    gemm: int, views: Array, padding: int, mean: Array, inverse: Array, kernel: Array, side: tuple[int, int],
    lo: int, hi: int, products: Array, moments: Array,
) -> None:  # fmt: skip
    """The first convolution. kernel: [4*(C+1), O], side: height and width of its output, products: [B, P, O]"""
    height, width = side
    channels, out, number = views.shape[3] + 1, kernel.shape[1], products.dtype
    cells = np.empty((CHUNK, (height + 1) * (width + 1), channels), number)
    patches = np.empty((CHUNK * height * width, 4 * channels), number)
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        count, rows = end - begin, (end - begin) * height * width
        standard_cells(views[begin:end], padding, mean, inverse, cells[:count])
        into_patches(cells[:count], height, width, patches[:rows])
        result = products[begin:end].reshape(rows, out)
        multiply(gemm, patches[:rows], False, kernel, False, result, 0.0)
        follow(result, moments)


@compiled
def next_products(
    gemm: int, below: Array, norm: Array, kernel: Array, side: tuple[int, int], lo: int, hi: int, products: Array,
    moments: Array,
) -> None:  # fmt: skip
    """A later convolution, or with a side of 0 a linear layer on whole maps. below: [B, P, C], of which it makes ŷ.

    norm: [4, C] μ, 1/σ, γ, β of the layer below; kernel: [4*C, O] or [P*C, O]
    """
    height, width = side
    places, channels, out = below.shape[1], below.shape[2], kernel.shape[1]
    number, positions = products.dtype, max(1, height * width)
    chunk = CHUNK if height else max(1, hi - lo)  # a linear layer reads its large kernel once
    active = np.empty((chunk, places, channels), number)
    patches = np.empty((chunk * positions if height else 0, 4 * channels), number)
    for begin in range(lo, hi, chunk):
        end = min(begin + chunk, hi)
        count, rows = end - begin, (end - begin) * positions
        activate(below[begin:end], norm[0], norm[1], norm[2], norm[3], active[:count])
        result = products[begin:end].reshape(rows, out)
        if height:
            into_patches(active[:count], height, width, patches[:rows])
            multiply(gemm, patches[:rows], False, kernel, False, result, 0.0)
        else:
            multiply(gemm, active[:count].reshape(count, places * channels), False, kernel, False, result, 0.0)
        follow(result, moments)


@compiled
def next_gradient(
    gemm: int, grad: Array, normal: Array, scale: Array, means: Array, below: Array, gain: Array, bias: Array,
    kernel: Array, side: tuple[int, int], lo: int, hi: int, grad_below: Array, grad_kernel: Array, sums: Array,
) -> None:  # fmt: skip
    """The gradient of `next_products`: from that of its normalised output to that of the one below.

    grad, normal: [B, P', O], scale: [O] γ/σ, means: [2, O] of g and g ŷ over the batch; below: ŷ [B, P, C]
    """
    height, width = side
    places, channels, out = below.shape[1], below.shape[2], kernel.shape[1]
    number, positions = grad.dtype, max(1, height * width)
    chunk = CHUNK if height else max(1, hi - lo)
    active = np.empty((chunk, places, channels), number)
    patches = np.empty((chunk * positions if height else 0, 4 * channels), number)
    by_product = np.empty((chunk * positions, out), number)
    for begin in range(lo, hi, chunk):
        end = min(begin + chunk, hi)
        count, rows = end - begin, (end - begin) * positions
        by_rows, target = by_product[:rows], grad_below[begin:end]
        through_norm(grad[begin:end], normal[begin:end], scale, means, by_rows)
        activate_again(below[begin:end], gain, bias, active[:count])
        if height:
            into_patches(active[:count], height, width, patches[:rows])
            multiply(gemm, patches[:rows], True, by_rows, False, grad_kernel, 1.0)
            multiply(gemm, by_rows, False, kernel, True, patches[:rows], 0.0)
            out_of_patches(patches[:rows], height, width, target)
        else:
            flat = active[:count].reshape(count, places * channels)
            multiply(gemm, flat, True, by_rows, False, grad_kernel, 1.0)
            multiply(gemm, by_rows, False, kernel, True, target.reshape(count, places * channels), 0.0)
        through_relu(target, active[:count], below[begin:end], sums)


@compiled
def first_gradient(
    gemm: int, grad: Array, normal: Array, scale: Array, means: Array, views: Array, padding: int, mean: Array,
    inverse: Array, side: tuple[int, int], lo: int, hi: int, grad_kernel: Array,
) -> None:  # fmt: skip
    """The gradient of `first_products` by its kernel; nothing wants that of its input."""
    height, width = side
    channels, number = views.shape[3] + 1, grad.dtype
    cells = np.empty((CHUNK, (height + 1) * (width + 1), channels), number)
    patches = np.empty((CHUNK * height * width, 4 * channels), number)
    by_product = np.empty((CHUNK * height * width, grad.shape[2]), number)
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        count, rows = end - begin, (end - begin) * height * width
        through_norm(grad[begin:end], normal[begin:end], scale, means, by_product[:rows])
        standard_cells(views[begin:end], padding, mean, inverse, cells[:count])
        into_patches(cells[:count], height, width, patches[:rows])
        multiply(gemm, patches[:rows], True, by_product[:rows], False, grad_kernel, 1.0)
