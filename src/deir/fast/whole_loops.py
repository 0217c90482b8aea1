"""Compiled loops of the grid encoder on whole views, each from one normalisation to the next.

A layer is: normalise, ReLU, product. It reads the products before it once and writes its own once; what is in between
lives in the cache, a few views at a time. Of a layer only the products are kept; the backward pass makes everything
else again, which is cheaper than to read it.

Feature maps are [B, positions, C] with channels last. A job has the views lo … hi. Factors of products are made in the
type of `like`, kernels come as words (`convolution`). norm: [4, C] μ, 1/σ, γ, β.
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled
from deir.fast.bf16 import rounded
from deir.fast.convolution import convolve, convolve_back, dense, dense_back, join_dense, join_kernel

CHUNK = 32  # views whose maps are in the cache at a time


@compiled
def standard_cells(views: Array, padding: int, mean: Array, inverse: Array, cells: Array) -> None:
    """(x - μ)/σ, a channel that is 1 on cells and 0 on padding, and channels of 0 up to those of cells.

    views: [n, H, W, C] -> cells [n, (H+2p)*(W+2p), C+1 or more] factors
    """
    count, height, width, channels = views.shape
    across, one = width + 2 * padding, rounded(mean.dtype.type(1), cells)
    cells[:] = 0
    for v in range(count):
        for i in range(height):
            for j in range(width):
                cell = cells[v, (i + padding) * across + j + padding]
                for c in range(channels):
                    cell[c] = rounded((mean.dtype.type(views[v, i, j, c]) - mean[c]) * inverse[c], cells)
                cell[channels] = one


@compiled
def channel_moments(views: Array) -> Array:
    """Rows, mean and Σ(x - mean)² of each channel. [n, H, W, C] -> [3, C] double"""
    count, height, width, channels = views.shape
    size, flat = height * width * channels, views.reshape(count, -1)
    out, means, part = np.zeros((3, channels)), np.empty(size), np.zeros(size)
    out[0] = count * height * width
    for v in range(count):
        for k in range(size):
            part[k] += np.float64(flat[v, k])
    for k in range(size):
        out[1, k % channels] += part[k]
    out[1] /= out[0]
    for k in range(size):
        means[k] = out[1, k % channels]
    part[:] = 0
    for v in range(count):
        for k in range(size):
            away = np.float64(flat[v, k]) - means[k]
            part[k] += away * away
    for k in range(size):
        out[2, k % channels] += part[k]
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
def activate(products: Array, norm: Array, out: Array) -> None:
    """max(γ (y - μ)/σ + β, 0). products: [n, P, C] -> out [n, P, C] factors"""
    number = products.dtype.type
    mean, scale, shift = norm[0], norm[1] * norm[2], norm[3]
    for v in range(len(products)):
        for p in range(products.shape[1]):
            y, result = products[v, p], out[v, p]
            for c in range(len(mean)):
                value = (y[c] - mean[c]) * scale[c] + shift[c]
                result[c] = rounded(number(0) if value < number(0) else value, out)


@compiled
def through_relu(grad: Array, products: Array, norm: Array, sums: Array) -> None:
    """The gradient stays where the ReLU lets something through; Σ g and Σ g ŷ join sums [2, C]. grad: [n, P, C]"""
    width, zero = grad.shape[2], grad.dtype.type(0)
    mean, inverse, scale, shift = norm[0], norm[1], norm[1] * norm[2], norm[3]
    part = np.zeros((2, width), grad.dtype)
    plain, with_normal = part[0], part[1]
    for v in range(len(grad)):
        for p in range(grad.shape[1]):
            g, y = grad[v, p], products[v, p]
            for c in range(width):  # short loops over few arrays each: only such are vectorised
                g[c] = zero if (y[c] - mean[c]) * scale[c] + shift[c] <= zero else g[c]
            for c in range(width):
                plain[c] += g[c]
                with_normal[c] += g[c] * (y[c] - mean[c])
    sums[0] += plain
    sums[1] += with_normal * inverse


@compiled
def through_norm(grad: Array, products: Array, norm: Array, means: Array, out: Array) -> None:
    """dy = γ/σ (g - mean g - ŷ mean(g ŷ)).   grad, products: [n, P, C], means: [2, C] -> out [n, P, ≥C] factors"""
    mean, scale = norm[0], norm[1] * norm[2]
    first, second = scale * means[0], scale * norm[1] * means[1]
    for v in range(len(grad)):
        for p in range(grad.shape[1]):
            g, y, result = grad[v, p], products[v, p], out[v, p]
            for c in range(len(mean)):
                result[c] = rounded(g[c] * scale[c] - first[c] - (y[c] - mean[c]) * second[c], out)


@compiled
def first_products(
    like: Array, views: Array, padding: int, mean: Array, inverse: Array, kernel: Array, channels: int,
    side: tuple[int, int], lo: int, hi: int, products: Array, moments: Array,
) -> None:  # fmt: skip
    """The first convolution, of cells with so many channels. side: height and width of its output [B, P, O]"""
    height, width = side
    cells = np.empty((CHUNK, (height + 1) * (width + 1), channels), like.dtype)
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        standard_cells(views[begin:end], padding, mean, inverse, cells[: end - begin])
        convolve(cells[: end - begin], height, width, kernel, products[begin:end])
        follow(products[begin:end].reshape(-1, products.shape[2]), moments)


@compiled
def next_products(
    like: Array, below: Array, norm: Array, kernel: Array, columns: int, side: tuple[int, int], lo: int, hi: int,
    products: Array, moments: Array,
) -> None:  # fmt: skip
    """A later convolution, or with a side of 0 a linear layer whose kernel has so many columns. below: [B, P, C]"""
    height, width = side
    active = np.empty((CHUNK, below.shape[1], below.shape[2]), like.dtype)
    result = np.empty((CHUNK, 1, columns), products.dtype)
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        count = end - begin
        activate(below[begin:end], norm, active[:count])
        if height:
            convolve(active[:count], height, width, kernel, products[begin:end])
        else:
            dense(active[:count], kernel, result[:count])
            products[begin:end] = result[:count, :, : products.shape[2]]
        follow(products[begin:end].reshape(-1, products.shape[2]), moments)


@compiled
def next_gradient(
    like: Array, grad: Array, products: Array, norm: Array, means: Array, below: Array, norm_below: Array,
    turned: Array, side: tuple[int, int], lo: int, hi: int, grad_below: Array, grad_kernel: Array, sums: Array,
) -> None:  # fmt: skip
    """The gradient of `next_products`: from that of its normalised output to that of the one below.

    grad, products: [B, P', O], means: [2, O] of g and g ŷ over the batch; below: [B, P, C]
    """
    height, width = side
    active = np.empty((CHUNK, below.shape[1], below.shape[2]), like.dtype)
    by_product = np.zeros((CHUNK, grad.shape[1], grad_kernel.shape[1]), like.dtype)
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        factors, by_factors, target = active[: end - begin], by_product[: end - begin], grad_below[begin:end]
        through_norm(grad[begin:end], products[begin:end], norm, means, by_factors)
        activate(below[begin:end], norm_below, factors)
        if height:
            join_kernel(factors, by_factors, height, width, grad_kernel)
            convolve_back(by_factors, height, width, turned, target)
        else:
            join_dense(factors, by_factors, grad_kernel)
            dense_back(by_factors, turned, target)
        through_relu(target, below[begin:end], norm_below, sums)


@compiled
def first_gradient(
    like: Array, grad: Array, products: Array, norm: Array, means: Array, views: Array, padding: int, mean: Array,
    inverse: Array, channels: int, side: tuple[int, int], lo: int, hi: int, grad_kernel: Array,
) -> None:  # fmt: skip
    """The gradient of `first_products` by its kernel; nothing wants that of its input."""
    height, width = side
    cells = np.empty((CHUNK, (height + 1) * (width + 1), channels), like.dtype)
    by_product = np.empty((CHUNK, grad.shape[1], grad.shape[2]), like.dtype)
    for begin in range(lo, hi, CHUNK):
        end = min(begin + CHUNK, hi)
        factors, by_factors = cells[: end - begin], by_product[: end - begin]
        through_norm(grad[begin:end], products[begin:end], norm, means, by_factors)
        standard_cells(views[begin:end], padding, mean, inverse, factors)
        join_kernel(factors, by_factors, height, width, grad_kernel)
