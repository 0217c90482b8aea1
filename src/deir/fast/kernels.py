"""The layers of a network and their gradients, each divided into jobs that threads take.

Jobs of a normalisation or of the GRU's gradient have columns, so that no sum is divided and no two write to one place;
jobs of products have rows. How a layer is divided never depends on the number of threads: neither do the bits.
"""

from __future__ import annotations

import math

import numpy as np

from deir.compiled import Array, compiled
from deir.fast.addresses import exponential, multiply_at


@compiled
def normalise(
    table: Array,  # [M, C]
    rows: Array,  # [P, K]; K = 0: row p is table[p]
    share: Array,  # [P]; empty: each row is one of the batch
    gain: Array,  # [C]
    shift: Array,  # [C]
    eps: float,
    floor: float,
    out: Array,  # [P, C]
    normal: Array,  # [P, C]
    moments: Array,  # [3, C] mean, (biased) variance, 1/σ
    lo: int,
    hi: int,
) -> None:
    """y_p = Σ_k table[rows[p, k]], normalised by the moments of a batch of which row p is share[p]; at least `floor`.

    Of the columns lo … hi.
    """
    count, terms, number = len(normal), rows.shape[1], table.dtype.type
    mean, variance, inverse = moments[0, lo:hi], moments[1, lo:hi], moments[2, lo:hi]
    mean[:] = 0
    variance[:] = 0
    width, equal = hi - lo, number(1 / count)
    for p in range(count):
        y = normal[p, lo:hi]
        term = table[rows[p, 0] if terms else p, lo:hi]
        for c in range(width):
            y[c] = term[c]
        for k in range(1, terms):
            term = table[rows[p, k], lo:hi]
            for c in range(width):
                y[c] += term[c]
        part = number(share[p]) if len(share) else equal
        for c in range(width):
            mean[c] += part * y[c]
    for p in range(count):
        y, part = normal[p, lo:hi], number(share[p]) if len(share) else equal
        for c in range(width):
            y[c] -= mean[c]
            variance[c] += part * y[c] * y[c]
    for c in range(width):
        inverse[c] = number(1) / np.sqrt(variance[c] + number(eps))
    lowest, factor, offset = number(floor), gain[lo:hi], shift[lo:hi]
    for p in range(count):
        y, result = normal[p, lo:hi], out[p, lo:hi]
        for c in range(width):
            y[c] *= inverse[c]
            value = y[c] * factor[c] + offset[c]
            result[c] = lowest if value < lowest else value


@compiled
def normalise_gradient(
    grad: Array,  # [P, C] of the output
    out: Array,  # [P, C]
    normal: Array,  # [P, C]
    rows: Array,  # [P, K]; K = 0: row p is table[p]
    share: Array,  # [P]; empty: each row is one of the batch
    gain: Array,  # [C]
    inverse: Array,  # [C]
    floor: float,
    by_table: Array,  # [M, C]; empty: not wanted
    by_gain: Array,  # [C]
    by_shift: Array,  # [C]
    lo: int,
    hi: int,
) -> None:
    """dy = γ/σ (g - s (Σ g + ŷ Σ g ŷ)), with s the row's share. Of the columns lo … hi."""
    count, terms, number, width = len(normal), rows.shape[1], grad.dtype.type, hi - lo
    total, with_normal = by_shift[lo:hi], by_gain[lo:hi]
    total[:] = 0
    with_normal[:] = 0
    lowest, zero, equal = number(floor), number(0), number(1 / count)
    for p in range(count):
        g, result, y = grad[p, lo:hi], out[p, lo:hi], normal[p, lo:hi]
        for c in range(width):
            passed = g[c] if result[c] > lowest else zero
            total[c] += passed
            with_normal[c] += passed * y[c]
    if len(by_table) == 0:
        return
    scale, row = gain[lo:hi] * inverse[lo:hi], np.empty(width, grad.dtype)
    if terms:
        for m in range(len(by_table)):
            by_table[m, lo:hi] = 0
    for p in range(count):
        g, result, y = grad[p, lo:hi], out[p, lo:hi], normal[p, lo:hi]
        part = number(share[p]) if len(share) else equal
        target = row if terms else by_table[p, lo:hi]
        for c in range(width):
            passed = g[c] if result[c] > lowest else zero
            target[c] = (passed - part * (total[c] + y[c] * with_normal[c])) * scale[c]
        for k in range(terms):
            target = by_table[rows[p, k], lo:hi]
            for c in range(width):
                target[c] += row[c]


@compiled
def moments_of_rows(x: Array, parts: Array, lo: int, hi: int) -> None:
    """Mean and Σ(x - mean)² of the rows lo … hi. x: [P, C], parts: [2, C]"""
    mean, squares, width = parts[0], parts[1], x.shape[1]
    parts[:] = 0
    for p in range(lo, hi):
        row = x[p]
        for c in range(width):
            mean[c] += row[c]
    mean /= x.dtype.type(max(1, hi - lo))
    for p in range(lo, hi):
        row = x[p]
        for c in range(width):
            squares[c] += (row[c] - mean[c]) * (row[c] - mean[c])


@compiled
def normalise_rows(
    x: Array,  # [P, C]
    parts: Array,  # [jobs, 2, C] of `moments_of_rows`
    gain: Array,  # [C]
    shift: Array,  # [C]
    eps: float,
    out: Array,  # [P, C]
    normal: Array,  # [P, C]
    moments: Array,  # [3, C] mean, (biased) variance, 1/σ; written by the first job
    job: int,
) -> None:
    """`normalise` of rows that stand for themselves, and a ReLU. Of the rows of a job."""
    (count, width), jobs, number = x.shape, len(parts), x.dtype.type
    mean, squares = parts[0, 0].copy(), parts[0, 1].copy()
    for other in range(1, jobs):
        before, after = count * other // jobs, count * (other + 1) // jobs
        if after > before:
            for c in range(width):
                change = parts[other, 0, c] - mean[c]
                squares[c] += parts[other, 1, c] + change * change * number(before * (after - before) / after)
                mean[c] += change * number((after - before) / after)
    inverse = np.empty(width, x.dtype)
    for c in range(width):
        squares[c] /= number(count)
        inverse[c] = number(1) / np.sqrt(squares[c] + number(eps))
    if job == 0:
        moments[0], moments[1], moments[2] = mean, squares, inverse
    zero = number(0)
    for p in range(count * job // jobs, count * (job + 1) // jobs):
        row, y, result = x[p], normal[p], out[p]
        for c in range(width):
            y[c] = (row[c] - mean[c]) * inverse[c]
            value = y[c] * gain[c] + shift[c]
            result[c] = zero if value < zero else value


@compiled
def gradient_sums(grad: Array, out: Array, normal: Array, parts: Array, lo: int, hi: int) -> None:
    """Σ g and Σ g ŷ behind the ReLU, of the rows lo … hi. parts: [2, C]"""
    total, with_normal, zero = parts[0], parts[1], grad.dtype.type(0)
    parts[:] = 0
    for p in range(lo, hi):
        g, result, y = grad[p], out[p], normal[p]
        for c in range(grad.shape[1]):
            passed = g[c] if result[c] > zero else zero
            total[c] += passed
            with_normal[c] += passed * y[c]


@compiled
def normalise_rows_gradient(
    grad: Array, out: Array, normal: Array, parts: Array, gain: Array, inverse: Array, by_x: Array, by_gain: Array,
    by_shift: Array, job: int,
) -> None:  # fmt: skip
    """`normalise_gradient` of rows that stand for themselves. parts: [jobs, 2, C]; the first job writes by_gain, by_shift"""
    (count, width), jobs, number = grad.shape, len(parts), grad.dtype.type
    total, with_normal = parts[0, 0].copy(), parts[0, 1].copy()
    for other in range(1, jobs):
        for c in range(width):
            total[c] += parts[other, 0, c]
            with_normal[c] += parts[other, 1, c]
    if job == 0:
        by_shift[:] = total
        by_gain[:] = with_normal
    scale, zero = gain * inverse, number(0)
    total /= number(count)
    with_normal /= number(count)
    for p in range(count * job // jobs, count * (job + 1) // jobs):
        g, result, y, target = grad[p], out[p], normal[p], by_x[p]
        for c in range(width):
            passed = g[c] if result[c] > zero else zero
            target[c] = (passed - (total[c] + y[c] * with_normal[c])) * scale[c]


@compiled
def follow_moments(
    running_mean: Array, running_variance: Array, moments: Array, bias: Array, total: int, momentum: float,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """m ← (1-ρ) m + ρ (mean + bias), v ← (1-ρ) v + ρ variance n/(n-1), of a batch of n rows. bias: empty if there is none"""
    number = running_mean.dtype.type
    keep, join, join_variance = number(1 - momentum), number(momentum), number(momentum * (total / (total - 1)))
    for c in range(lo, hi):
        offset = bias[c] if len(bias) else number(0)
        running_mean[c] = keep * running_mean[c] + join * (moments[0, c] + offset)
        running_variance[c] = keep * running_variance[c] + join_variance * moments[1, c]


@compiled
def standardise(
    x: Array,  # [P, C]
    share: Array,  # [P]; empty: each row is one of the batch
    eps: float,
    out: Array,  # [P, C]
    moments: Array,  # [3, C]
    lo: int,
    hi: int,
) -> None:
    """(x - μ)/σ by the moments of the batch. Of the columns lo … hi."""
    count, number = len(x), out.dtype.type
    mean, variance, inverse = moments[0, lo:hi], moments[1, lo:hi], moments[2, lo:hi]
    mean[:] = 0
    variance[:] = 0
    width, equal = hi - lo, number(1 / count)
    for p in range(count):
        row, part = x[p, lo:hi], number(share[p]) if len(share) else equal
        for c in range(width):
            mean[c] += part * number(row[c])
    for p in range(count):
        row, y, part = x[p, lo:hi], out[p, lo:hi], number(share[p]) if len(share) else equal
        for c in range(width):
            y[c] = number(row[c]) - mean[c]
            variance[c] += part * y[c] * y[c]
    for c in range(width):
        inverse[c] = number(1) / np.sqrt(variance[c] + number(eps))
    for p in range(count):
        y = out[p, lo:hi]
        for c in range(width):
            y[c] *= inverse[c]


@compiled
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


@compiled
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


@compiled
def by_corner(weight: Array, out: Array, lo: int, hi: int) -> None:
    """A 2x2 kernel for products of cells and corners. [O, I*4] -> [I, 4*O], of the inputs lo … hi"""
    outputs = len(weight)
    for i in range(lo, hi):
        for corner in range(4):
            for o in range(outputs):
                out[i, corner * outputs + o] = weight[o, 4 * i + corner]


@compiled
def not_by_corner(by_out: Array, by_weight: Array, lo: int, hi: int) -> None:
    """The gradient of `by_corner`."""
    outputs = len(by_weight)
    for i in range(lo, hi):
        for o in range(outputs):
            for corner in range(4):
                by_weight[o, 4 * i + corner] = by_out[i, corner * outputs + o]


@compiled
def by_position(weight: Array, out: Array, positions: int, lo: int, hi: int) -> None:
    """The kernels of a linear layer on maps, one for each position. [F, C*positions] -> out [positions, ≥ C*F]"""
    features = len(weight)
    for c in range(lo, hi):
        for f in range(features):
            for place in range(positions):
                out[place, c * features + f] = weight[f, c * positions + place]


@compiled
def not_by_position(by_out: Array, by_weight: Array, positions: int, lo: int, hi: int) -> None:
    """The gradient of `by_position`."""
    features = len(by_weight)
    for c in range(lo, hi):
        for f in range(features):
            for place in range(positions):
                by_weight[f, c * positions + place] = by_out[place, c * features + f]


@compiled
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


@compiled
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


@compiled
def scatter_sum(values: Array, rows: Array, out: Array, joins: bool, lo: int, hi: int) -> None:
    """out[rows[i]] = Σ values[i], joined if `joins`, of the columns lo … hi. values: [I, C], out: [M, C]"""
    if not joins:
        for m in range(len(out)):
            out[m, lo:hi] = 0
    for i in range(len(rows)):
        target, value = out[rows[i], lo:hi], values[i, lo:hi]
        for c in range(hi - lo):
            target[c] += value[c]


@compiled
def column_sums(x: Array, out: Array, joins: bool, lo: int, hi: int) -> None:
    """[B, C] -> [C], joined if `joins`"""
    if not joins:
        out[lo:hi] = 0
    total = out[lo:hi]
    for b in range(len(x)):
        row = x[b, lo:hi]
        for c in range(hi - lo):
            total[c] += row[c]


@compiled
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


