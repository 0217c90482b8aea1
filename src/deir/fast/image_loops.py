"""Compiled loops of the image encoders between their convolutions: normalisation, ReLU, pooling, and their gradients.

A feature map is one row [H*W*C], channels last, and so are its gains and shifts: what a loop does is the same for every
number. Loops run over one block of a row after the other, which stays in the cache, and are short and over few arrays
each: only such are vectorised.

Without normalisation the mean is 0, the deviation 1, and `eps` negative.
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled, compiled_sums
from deir.fast.blas import multiply

BLOCK = 1024  # numbers


@compiled_sums
def moments_of(y: Array, eps: float) -> tuple[float, float]:
    """μ and 1/σ. y: [M]"""
    number, size = y.dtype.type, y.dtype.type(len(y))
    total, squares = number(0), number(0)
    if eps < 0:
        return number(0), number(1)
    for i in range(len(y)):
        total += y[i]
    mean = total / size
    for i in range(len(y)):
        squares += (y[i] - mean) * (y[i] - mean)
    return mean, number(1) / np.sqrt(squares / size + number(eps))


@compiled
def standardise_map(y: Array, mean: float, inverse: float, out: Array) -> None:
    for i in range(len(y)):
        out[i] = (y[i] - mean) * inverse


@compiled
def standardise(maps: Array, moments: Array, normal: Array) -> None:
    """ŷ = (y - μ)/σ by moments that are known. maps, normal: [n, M], which may be the same; moments: [2, n]"""
    for v in range(len(maps)):
        standardise_map(maps[v], moments[0, v], moments[1, v], normal[v])


@compiled
def scale_map(y: Array, gain: Array, shift: Array, out: Array) -> None:
    for i in range(len(y)):
        out[i] = y[i] * gain[i] + shift[i]


@compiled
def relu(x: Array, out: Array) -> None:
    """x, out: [n, M], which may be the same"""
    zero = x.dtype.type(0)
    for v in range(len(x)):
        a, b = x[v], out[v]
        for i in range(len(a)):
            b[i] = zero if a[i] < zero else a[i]


@compiled
def activate(normal: Array, gain: Array, shift: Array, out: Array) -> None:
    """max(γ ŷ + β, 0).   normal, out: [n, M], gain, shift: [M]"""
    zero = out.dtype.type(0)
    for v in range(len(normal)):
        y, result = normal[v], out[v]
        for i in range(len(y)):
            value = y[i] * gain[i] + shift[i]
            result[i] = zero if value < zero else value


@compiled
def normalise_and_activate(
    maps: Array, eps: float, moments: Array, gain: Array, shift: Array, normal: Array, out: Array
) -> None:
    """Finds the moments [2, n], and makes ŷ and max(γ ŷ + β, 0) [n, M]; ŷ may take the place of the maps."""
    for v in range(len(maps)):
        moments[0, v], moments[1, v] = moments_of(maps[v], eps)
        standardise_map(maps[v], moments[0, v], moments[1, v], normal[v])
        activate(normal[v : v + 1], gain, shift, out[v : v + 1])


@compiled
def normalise_and_add(
    maps: Array, eps: float, moments: Array, gain: Array, shift: Array, normal: Array, x: Array, out: Array
) -> None:
    """The same for x + γ ŷ + β."""
    for v in range(len(maps)):
        moments[0, v], moments[1, v] = moments_of(maps[v], eps)
        standardise_map(maps[v], moments[0, v], moments[1, v], normal[v])
        add_scaled(normal[v : v + 1], gain, shift, x[v : v + 1], out[v : v + 1])


@compiled
def add_scaled(normal: Array, gain: Array, shift: Array, x: Array, out: Array) -> None:
    """x + γ ŷ + β.   normal, x, out: [n, M]"""
    for v in range(len(normal)):
        y, before, after = normal[v], x[v], out[v]
        for i in range(len(y)):
            after[i] = before[i] + (y[i] * gain[i] + shift[i])


@compiled
def stop(grad: Array, x: Array) -> None:
    """The gradient stays where the ReLU of x let something through. grad, x: [n, M]"""
    zero = grad.dtype.type(0)
    for v in range(len(grad)):
        g, a = grad[v], x[v]
        for i in range(len(g)):
            g[i] = zero if a[i] <= zero else g[i]


@compiled
def add_stopped(grad: Array, x: Array, total: Array) -> None:
    """Adds what `stop` leaves of grad. total: [n, M]"""
    zero = grad.dtype.type(0)
    for v in range(len(grad)):
        g, a, t = grad[v], x[v], total[v]
        for i in range(len(g)):
            t[i] += zero if a[i] <= zero else g[i]


@compiled_sums
def through_norm(
    grad: Array,  # [n, M] of γ ŷ + β, or of its ReLU; becomes that of the products
    stopped: bool,  # by a ReLU
    normal: Array,  # [n, M]
    gain: Array,  # [M]
    shift: Array,  # [M]
    inverse: Array,  # [n]
    sums: Array,  # [2, M] joined by g and g ŷ
    eps: float,
) -> None:
    """dy = (γ g - mean(γ g) - ŷ mean(γ g ŷ))/σ, with the means over each map."""
    number, width = grad.dtype.type, grad.shape[1]
    zero, size = number(0), number(width)
    for v in range(len(grad)):
        total, with_total = zero, zero
        for lo in range(0, width, BLOCK):
            hi = min(lo + BLOCK, width)
            g, y, scale, offset = grad[v, lo:hi], normal[v, lo:hi], gain[lo:hi], shift[lo:hi]
            plain, with_normal = sums[0, lo:hi], sums[1, lo:hi]
            if stopped:
                for i in range(len(g)):
                    g[i] = zero if y[i] * scale[i] + offset[i] <= zero else g[i]
            for i in range(len(g)):
                plain[i] += g[i]
            for i in range(len(g)):
                with_normal[i] += g[i] * y[i]
            first, second = zero, zero
            for i in range(len(g)):
                a = g[i] * scale[i]
                g[i] = a
                first += a
                second += a * y[i]
            total += first
            with_total += second
        mean, with_mean = (total / size, with_total / size) if eps >= 0 else (zero, zero)
        g, y, factor = grad[v], normal[v], inverse[v]
        for i in range(width):
            g[i] = (g[i] - mean - y[i] * with_mean) * factor


@compiled_sums
def image_moments(images: Array, scale: float, eps: float, moments: Array) -> None:
    """Of images x · scale [n, M]: μ and 1/σ [2, n]."""
    number = moments.dtype.type
    line = np.empty(images.shape[1], moments.dtype)
    for v in range(len(images)):
        x = images[v]
        for i in range(len(x)):
            line[i] = number(x[i]) * number(scale)
        moments[0, v], moments[1, v] = moments_of(line, eps)


@compiled
def standard_blocks(
    images: Array, scale: float, moments: Array, sides: tuple[int, int, int], block: int, out: Array
) -> None:
    """(x · scale - μ)/σ of blocks of cells, which become cells of block*block*C channels: down, right, channel.

    images: [n, H*W*C], sides: H, W, C; out: [n, (H/block)*(W/block)*block*block*C]; what fills no block is left out
    """
    height, width, channels = sides
    number = out.dtype.type
    factor, along = number(scale), block * channels
    for v in range(len(images)):
        m, s, target = moments[0, v], moments[1, v], 0
        for i in range(height // block):
            for j in range(width // block if block > 1 else 1):
                for down in range(block):
                    begin = (i * block + down) * width * channels + j * along
                    length = along if block > 1 else width * channels
                    x, y = images[v, begin : begin + length], out[v, target : target + length]
                    for k in range(length):
                        y[k] = (number(x[k]) * factor - m) * s
                    target += length


@compiled
def scale_maps(normal: Array, gain: Array, shift: Array, out: Array) -> None:
    """γ ŷ + β.   normal, out: [n, M]"""
    for v in range(len(normal)):
        scale_map(normal[v], gain, shift, out[v])


@compiled
def join_sums(grad: Array, normal: Array, sums: Array) -> None:
    """g and g ŷ join the sums [2, M]. grad, normal: [n, M]"""
    plain, with_normal = sums[0], sums[1]
    for v in range(len(grad)):
        g, y = grad[v], normal[v]
        for i in range(len(g)):
            plain[i] += g[i]
        for i in range(len(g)):
            with_normal[i] += g[i] * y[i]


@compiled
def input_gradient(gemm: int, grad: Array, kernel: Array, sides: tuple[int, int, int], out: Array) -> None:
    """What a 3x3 convolution with a cell around gives back to its input: to each cell what was taken from it.

    grad: [n, H*W, O], kernel: [9*C, O] by place (down, right, channel), sides: H, W, C; out: [n, C, H, W]
    """
    height, width, channels = sides
    taps = np.empty((len(kernel), height * width), grad.dtype)
    for v in range(len(out)):
        multiply(gemm, kernel, False, grad[v], True, taps, 0.0)
        whole = out[v].reshape(channels, height * width)
        whole[:] = 0
        for place in range(9):
            down, right = place // 3 - 1, place % 3 - 1
            for c in range(channels):
                source, target = taps[place * channels + c], whole[c]
                if right:  # what would come out at the other side
                    source[width - 1 if right > 0 else 0 :: width] = 0
                step = down * width + right
                _add(source[max(0, -step) : len(source) - max(0, step)], target[max(0, step) :])


@compiled
def _add(x: Array, out: Array) -> None:
    for k in range(len(x)):
        out[k] += x[k]
