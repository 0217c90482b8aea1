"""Compiled loops of the image encoders between their convolutions: normalisation, ReLU, pooling, and their gradients.

A feature map is one row [H*W*C], channels last, and so are its gains and shifts: what a loop does is the same for every
number. Loops run over one block of a row after the other, which stays in the cache, and are short and over few arrays
each: only such are vectorised.

Without normalisation the mean is 0, the deviation 1, and `eps` negative.
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled, compiled_sums

BLOCK = 1024  # numbers


@compiled_sums
def moments(maps: Array, eps: float, mean: Array, inverse: Array) -> None:
    """Those of each map: μ and 1/σ. maps: [n, M], the others [n]"""
    number, size = maps.dtype.type, maps.dtype.type(maps.shape[1])
    for v in range(len(maps)):
        y = maps[v]
        mean[v], inverse[v] = number(0), number(1)
        if eps < 0:
            continue
        total, squares = number(0), number(0)
        for i in range(len(y)):
            total += y[i]
        average = total / size
        for i in range(len(y)):
            squares += (y[i] - average) * (y[i] - average)
        mean[v], inverse[v] = average, number(1) / np.sqrt(squares / size + number(eps))


@compiled
def standardise(maps: Array, mean: Array, inverse: Array, normal: Array) -> None:
    """ŷ = (y - μ)/σ.   maps, normal: [n, M], which may be the same"""
    for v in range(len(maps)):
        y, out, m, s = maps[v], normal[v], mean[v], inverse[v]
        for i in range(len(y)):
            out[i] = (y[i] - m) * s


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
    part = np.zeros((len(grad), 2), grad.dtype)
    for lo in range(0, width, BLOCK):
        hi = min(lo + BLOCK, width)
        scale, offset, plain, with_normal = gain[lo:hi], shift[lo:hi], sums[0, lo:hi], sums[1, lo:hi]
        for v in range(len(grad)):
            g, y = grad[v, lo:hi], normal[v, lo:hi]
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
            part[v, 0] += first
            part[v, 1] += second
    for v in range(len(grad)):
        g, y, factor = grad[v], normal[v], inverse[v]
        mean, with_mean = (part[v, 0] / size, part[v, 1] / size) if eps >= 0 else (zero, zero)
        for i in range(len(g)):
            g[i] = (g[i] - mean - y[i] * with_mean) * factor


@compiled
def pool(
    normal: Array, gain: Array, shift: Array, sides: tuple[int, int, int], out: Array, places: Array
) -> None:  # fmt: skip
    """The largest γ ŷ + β of 3x3 cells around every second one, and which: 3 down + right, of equals the first.

    normal: [n, H*W*C], sides: H, W, C; out, places: [n, h*w*C], places of bytes
    """
    height, width, channels = sides
    across = (width + 1) // 2
    lowest = -np.inf
    line = np.full((width + 2) * channels, lowest, out.dtype)  # one row of cells, with a cell around
    rows = np.empty((3, across * channels), out.dtype)  # the largest of three cells side by side, of three rows
    rights = np.zeros((3, across * channels), np.int32)
    top, middle, bottom = rows[0], rows[1], rows[2]
    tops, middles, bottoms = rights[0], rights[1], rights[2]
    full = width * channels
    for v in range(len(normal)):
        bottom[:] = lowest
        for i in range((height + 1) // 2):
            top[:], tops[:] = bottom, bottoms  # rows 2i-1, 2i, 2i+1
            begin = 2 * i * full
            cells = slice(begin, begin + full)
            _scale(normal[v, cells], gain[cells], shift[cells], line[channels : channels + full])
            _largest_of_three(line, across, channels, middle, middles)
            if 2 * i + 1 < height:
                cells = slice(begin + full, begin + 2 * full)
                _scale(normal[v, cells], gain[cells], shift[cells], line[channels : channels + full])
                _largest_of_three(line, across, channels, bottom, bottoms)
            else:
                bottom[:] = lowest
            target = slice(i * across * channels, (i + 1) * across * channels)
            best, where = out[v, target], places[v, target]
            for k in range(len(best)):
                value, place = top[k], tops[k]
                if middle[k] > value or middle[k] != middle[k]:
                    value, place = middle[k], np.int32(3) + middles[k]
                if bottom[k] > value or bottom[k] != bottom[k]:
                    value, place = bottom[k], np.int32(6) + bottoms[k]
                best[k] = value
                where[k] = np.uint8(place)


@compiled
def _largest_of_three(line: Array, across: int, channels: int, best: Array, where: Array) -> None:
    """Of cells 2j, 2j+1, 2j+2 of a line with a cell around. best, where: [across*C]"""
    for j in range(across):
        begin = 2 * j * channels
        left, centre = line[begin : begin + channels], line[begin + channels : begin + 2 * channels]
        right = line[begin + 2 * channels : begin + 3 * channels]
        target, place = best[j * channels : (j + 1) * channels], where[j * channels : (j + 1) * channels]
        for c in range(channels):
            value, index = left[c], np.int32(0)
            if centre[c] > value or centre[c] != centre[c]:
                value, index = centre[c], np.int32(1)
            if right[c] > value or right[c] != right[c]:
                value, index = right[c], np.int32(2)
            target[c] = value
            place[c] = index


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
def image_moments(images: Array, scale: float, eps: float, mean: Array, inverse: Array) -> None:
    """Of images x · scale [n, M]: μ and 1/σ [n]."""
    number, size = mean.dtype.type, mean.dtype.type(images.shape[1])
    factor = number(scale)
    for v in range(len(images)):
        x = images[v]
        mean[v], inverse[v] = number(0), number(1)
        if eps < 0:
            continue
        total, squares = number(0), number(0)
        for i in range(len(x)):
            total += number(x[i])
        average = total * factor / size
        for i in range(len(x)):
            away = number(x[i]) * factor - average
            squares += away * away
        mean[v], inverse[v] = average, number(1) / np.sqrt(squares / size + number(eps))


@compiled
def standard_blocks(
    images: Array, scale: float, mean: Array, inverse: Array, sides: tuple[int, int, int], block: int, out: Array
) -> None:
    """(x · scale - μ)/σ of blocks of cells, which become cells of block*block*C channels: down, right, channel.

    images: [n, H*W*C], sides: H, W, C; out: [n, (H/block)*(W/block)*block*block*C]; what fills no block is left out
    """
    height, width, channels = sides
    number = out.dtype.type
    factor, along = number(scale), block * channels
    for v in range(len(images)):
        m, s, target = mean[v], inverse[v], 0
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
def out_of_taps(taps: Array, sides: tuple[int, int, int], out: Array) -> None:
    """What a 3x3 convolution with a cell around gives back to its input: the sum of what was taken from each cell.

    taps: [9*C, n*H*W] by place of the kernel (down, right, channel), sides: H, W, C; out: [n, C, H, W]
    """
    height, width, channels = sides
    out[:] = 0
    for v in range(len(out)):
        for place in range(9):
            down, right = place // 3 - 1, place % 3 - 1
            lo, hi = max(0, -right), min(width, width - right)
            for c in range(channels):
                for i in range(max(0, -down), min(height, height - down)):
                    begin = (v * height + i) * width
                    source = taps[place * channels + c, begin + lo : begin + hi]
                    target = out[v, c, i + down, lo + right : hi + right]
                    for k in range(len(source)):
                        target[k] += source[k]
