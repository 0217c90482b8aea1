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
LANES = 16  # every layer before pooling has a multiple of that many channels


@compiled_sums
def _moments(y: Array, eps: float) -> tuple[float, float]:
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
def _standardise(y: Array, mean: float, inverse: float, out: Array) -> None:
    for i in range(len(y)):
        out[i] = (y[i] - mean) * inverse


@compiled
def standardise(maps: Array, moments: Array, normal: Array) -> None:
    """ŷ = (y - μ)/σ by moments that are known. maps, normal: [n, M], which may be the same; moments: [2, n]"""
    for v in range(len(maps)):
        _standardise(maps[v], moments[0, v], moments[1, v], normal[v])


@compiled
def _scale(y: Array, gain: Array, shift: Array, out: Array) -> None:
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
        moments[0, v], moments[1, v] = _moments(maps[v], eps)
        _standardise(maps[v], moments[0, v], moments[1, v], normal[v])
        activate(normal[v : v + 1], gain, shift, out[v : v + 1])


@compiled
def normalise_and_add(
    maps: Array, eps: float, moments: Array, gain: Array, shift: Array, normal: Array, x: Array, out: Array
) -> None:
    """The same for x + γ ŷ + β."""
    for v in range(len(maps)):
        moments[0, v], moments[1, v] = _moments(maps[v], eps)
        _standardise(maps[v], moments[0, v], moments[1, v], normal[v])
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


@compiled
def normalise_and_pool(
    maps: Array, eps: float, moments: Array, gain: Array, shift: Array, normal: Array, sides: tuple[int, int, int],
    out: Array, places: Array,
) -> None:  # fmt: skip
    """The same for the largest γ ŷ + β of 3x3 cells around every second one, and which: 3 down + right, of equals the
    first. sides: H, W, C; out, places: [n, h*w*C], places of bytes"""
    for v in range(len(maps)):
        moments[0, v], moments[1, v] = _moments(maps[v], eps)
        _standardise(maps[v], moments[0, v], moments[1, v], normal[v])
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
                _scale(normal[cells], gain[cells], shift[cells], line[channels : channels + full])
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


@compiled_sums
def image_moments(images: Array, scale: float, eps: float, moments: Array) -> None:
    """Of images x · scale [n, M]: μ and 1/σ [2, n]."""
    number = moments.dtype.type
    line = np.empty(images.shape[1], moments.dtype)
    for v in range(len(images)):
        x = images[v]
        for i in range(len(x)):
            line[i] = number(x[i]) * number(scale)
        moments[0, v], moments[1, v] = _moments(line, eps)


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
        _scale(normal[v], gain, shift, out[v])


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
