"""The GRU, feature maps of patches and Adam, as operations of programs, each divided into jobs that threads take."""

from __future__ import annotations

import math

import numpy as np

from deir.compiled import Array, compiled_part
from deir.fast.addresses import exponential, multiply_at


@compiled_part
def relu(x: Array, lo: int, hi: int) -> None:
    """In place, of the rows lo … hi. [P, C]"""
    zero = x.dtype.type(0)
    for p in range(lo, hi):
        row = x[p]
        for c in range(x.shape[1]):
            row[c] = zero if row[c] < zero else row[c]


@compiled_part
def relu_gradient(grad: Array, out: Array, lo: int, hi: int) -> None:
    """The gradient of `relu` in place, of its output. [P, C] each"""
    zero = grad.dtype.type(0)
    for p in range(lo, hi):
        g, result = grad[p], out[p]
        for c in range(grad.shape[1]):
            g[c] = g[c] if result[c] > zero else zero


@compiled_part
def gru(
    from_input: Array,  # [U, 3H] W x + b, in PyTorch's order r, z, n
    rows: Array,  # [B] which of them each row of the batch takes
    from_memory: Array,  # [M, 3H] U h + c; row b takes row b mod M
    hidden: Array,  # [M, H]
    gates: Array,  # [B, 2H] r, z
    new: Array,  # [B, H] n
    out: Array,  # [B, H]
    lo: int,
    hi: int,
) -> None:
    """r, z = σ(·), n = tanh(W x + r (U h)), h' = n + z (h - n). Of the rows lo … hi."""
    memories, width = hidden.shape
    one, two = hidden.dtype.type(1), hidden.dtype.type(2)
    for b in range(lo, hi):
        x, memory, h = from_input[rows[b]], from_memory[b % memories], hidden[b % memories]
        gate, n, result = gates[b], new[b], out[b]
        for c in range(2 * width):
            gate[c] = one / (one + exponential(-(x[c] + memory[c])))
        for c in range(width):
            n[c] = two / (one + exponential(-two * (x[2 * width + c] + gate[c] * memory[2 * width + c]))) - one
        for c in range(width):
            result[c] = n[c] + gate[width + c] * (h[c] - n[c])


@compiled_part
def gru_gradient(
    grad: Array,  # [B, H] of h'
    from_memory: Array,  # [M, 3H]
    hidden: Array,  # [M, H]
    gates: Array,  # [B, 2H]
    new: Array,  # [B, H]
    by_rows: Array,  # [B, 3H] by what each row took of from_input
    by_memory: Array,  # [M, 3H]
    by_hidden: Array,  # [M, H], joined; empty: not wanted
    lo: int,
    hi: int,
) -> None:
    """Of the rows that continue the memories lo … hi."""
    (memories, width), one = hidden.shape, grad.dtype.type(1)
    for m in range(lo, hi):
        by_memory[m] = 0
    for b in range(len(grad)):
        m = b % memories
        if m < lo or m >= hi:
            continue
        g, n, h, r, z = grad[b], new[b], hidden[m], gates[b, :width], gates[b, width:]
        memory, to_memory, row = from_memory[m, 2 * width :], by_memory[m], by_rows[b]
        for c in range(width):
            to_new = g[c] * (one - z[c]) * (one - n[c] * n[c])  # through the tanh
            row[2 * width + c] = to_new
            row[c] = to_new * memory[c] * r[c] * (one - r[c])
        for c in range(width):
            row[width + c] = g[c] * (h[c] - n[c]) * z[c] * (one - z[c])
        for c in range(2 * width):
            to_memory[c] += row[c]
        for c in range(width):
            to_memory[2 * width + c] += row[2 * width + c] * r[c]
        if len(by_hidden):
            target = by_hidden[m]
            for c in range(width):
                target[c] += g[c] * z[c]


@compiled_part
def by_corner(weight: Array, out: Array, lo: int, hi: int) -> None:
    """A 2x2 kernel for products of cells and corners. [O, I*4] -> [I, 4*O], of the inputs lo … hi"""
    outputs = len(weight)
    for i in range(lo, hi):
        for corner in range(4):
            for o in range(outputs):
                out[i, corner * outputs + o] = weight[o, 4 * i + corner]


@compiled_part
def not_by_corner(by_out: Array, by_weight: Array, lo: int, hi: int) -> None:
    """The gradient of `by_corner`."""
    outputs = len(by_weight)
    for i in range(lo, hi):
        for o in range(outputs):
            for corner in range(4):
                by_weight[o, 4 * i + corner] = by_out[i, corner * outputs + o]


@compiled_part
def by_position(weight: Array, out: Array, positions: int, lo: int, hi: int) -> None:
    """The kernels of a linear layer on maps, one for each position. [F, C*positions] -> out [positions, ≥ C*F]"""
    features = len(weight)
    for c in range(lo, hi):
        for f in range(features):
            for place in range(positions):
                out[place, c * features + f] = weight[f, c * positions + place]


@compiled_part
def not_by_position(by_out: Array, by_weight: Array, positions: int, lo: int, hi: int) -> None:
    """The gradient of `by_position`."""
    features = len(by_weight)
    for c in range(lo, hi):
        for f in range(features):
            for place in range(positions):
                by_weight[f, c * positions + place] = by_out[place, c * features + f]


@compiled_part
def placed_products(
    gemm: int, x: Array, patches: Array, bounds: Array, kernels: Array, rows: Array, out: Array, first: int, last: int,
) -> None:  # fmt: skip
    """The part that patches have in a linear layer at the positions first … last, for each slot there.

    x: [P, C], patches: [S] in each slot, bounds: [positions+1] of slots, kernels: [positions, ≥ C*F] -> rows [S, C]
    gathered, out [S, F]
    """
    width, features, zero = x.shape[1], out.shape[1], out.dtype.type(0)
    for place in range(first, last):
        lo, hi = bounds[place], bounds[place + 1]
        for slot in range(lo, hi):
            rows[slot] = x[patches[slot]]
        multiply_at(
            gemm, rows[lo:].ctypes.data, width, False, kernels[place:].ctypes.data, features, False,
            out[lo:].ctypes.data, features, hi - lo, features, width, zero,
        )  # fmt: skip


@compiled_part
def placed_gradient(
    gemm: int, by_out: Array, rows: Array, bounds: Array, kernels: Array, by_rows: Array, by_kernels: Array, first: int,
    last: int,
) -> None:  # fmt: skip
    """The gradients of `placed_products` by its rows and its kernels."""
    width, features, zero = rows.shape[1], by_out.shape[1], by_out.dtype.type(0)
    for place in range(first, last):
        lo, hi = bounds[place], bounds[place + 1]
        if hi <= lo:
            by_kernels[place] = 0
            continue
        grads, kernel = by_out[lo:].ctypes.data, kernels[place:].ctypes.data
        multiply_at(
            gemm, grads, features, False, kernel, features, True, by_rows[lo:].ctypes.data, width, hi - lo, width,
            features, zero,
        )  # fmt: skip
        multiply_at(
            gemm, rows[lo:].ctypes.data, width, True, grads, features, False, by_kernels[place:].ctypes.data, features,
            width, features, hi - lo, zero,
        )  # fmt: skip


@compiled_part
def scatter_sum(values: Array, rows: Array, out: Array, joins: bool, lo: int, hi: int) -> None:
    """out[rows[i]] = Σ values[i], joined if `joins`, of the columns lo … hi. values: [I, C], out: [M, C]"""
    if not joins:
        for m in range(len(out)):
            out[m, lo:hi] = 0
    for i in range(len(rows)):
        target, value = out[rows[i], lo:hi], values[i, lo:hi]
        for c in range(hi - lo):
            target[c] += value[c]


@compiled_part
def gather(table: Array, rows: Array, out: Array, flipped: Array, lo: int, hi: int) -> None:
    """out[i] = table[rows[i]], of the rows lo … hi; also by columns. out: [I, C], flipped: [C, I], may be empty"""
    for i in range(lo, hi):
        out[i] = table[rows[i]]
    for c in range(len(flipped)):
        for i in range(lo, hi):
            flipped[c, i] = table[rows[i], c]


@compiled_part
def column_sums(x: Array, out: Array, joins: bool, lo: int, hi: int) -> None:
    """[B, C] -> [C], joined if `joins`"""
    if not joins:
        out[lo:hi] = 0
    total = out[lo:hi]
    for b in range(len(x)):
        row = x[b, lo:hi]
        for c in range(hi - lo):
            total[c] += row[c]


@compiled_part
def sum_of_squares(x: Array) -> float:
    """In double precision, in eight sums: each waits for itself alone."""
    sums, whole = np.zeros(8), len(x) // 8 * 8
    for i in range(0, whole, 8):
        for lane in range(8):
            sums[lane] += np.float64(x[i + lane]) * np.float64(x[i + lane])
    for i in range(whole, len(x)):
        sums[0] += np.float64(x[i]) * np.float64(x[i])
    return float(sums.sum())


@compiled_part
def clipped_adam(
    values: Array, grads: Array, first: Array, second: Array, squares: Array, step: int, settings: Array,
    lo: int, hi: int,
) -> bool:  # fmt: skip
    """One step of the numbers lo … hi, the gradient clipped by its global norm. False, and nothing done, if it is not
    finite. squares: partial sums of g²; settings: rate, β1, β2, ε, largest norm"""
    norm, number = math.sqrt(squares.sum()), values.dtype.type
    if not math.isfinite(norm):
        return False
    rate, beta1, beta2, eps, largest = settings[0], settings[1], settings[2], settings[3], settings[4]
    clip = number(min(1.0, largest / (norm + 1e-6)))
    size, root = number(rate / (1 - beta1**step)), number(math.sqrt(1 - beta2**step))
    keep, join, keep2, join2, small = number(beta1), number(1 - beta1), number(beta2), number(1 - beta2), number(eps)
    p, g, m, v = values[lo:hi], grads[lo:hi], first[lo:hi], second[lo:hi]
    for i in range(hi - lo):
        gradient = g[i] * clip
        g[i] = gradient
        m[i] = keep * m[i] + join * gradient
        v[i] = keep2 * v[i] + join2 * gradient * gradient
        p[i] -= size * m[i] / (np.sqrt(v[i]) / root + small)
    return True
