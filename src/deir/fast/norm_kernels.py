"""Batch normalisation and its gradient, as operations of programs, each divided into jobs that threads take.

Where rows of a table are summed, jobs have columns: no sum is divided, and no two jobs write to one place. Where each
row stands for itself, jobs have rows, as the products before and after have. How an operation is divided never depends
on the number of threads: neither do the bits.
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled_part


@compiled_part
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


@compiled_part
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


@compiled_part
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


@compiled_part
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


@compiled_part
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


@compiled_part
def normalise_rows_gradient(
    grad: Array, out: Array, normal: Array, parts: Array, gain: Array, inverse: Array, by_x: Array, by_gain: Array,
    by_shift: Array, job: int,
) -> None:  # fmt: skip
    """`normalise_gradient` of rows that stand for themselves. parts: [jobs, 2, C]

    The first job writes the gradients of gain and shift.
    """
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


@compiled_part
def follow_moments(
    running_mean: Array, running_variance: Array, moments: Array, bias: Array, total: int, momentum: float,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """m ← (1-ρ) m + ρ (mean + bias), v ← (1-ρ) v + ρ variance n/(n-1), of a batch of n rows. bias: may be empty"""
    number = running_mean.dtype.type
    keep, join, join_variance = number(1 - momentum), number(momentum), number(momentum * (total / (total - 1)))
    for c in range(lo, hi):
        offset = bias[c] if len(bias) else number(0)
        running_mean[c] = keep * running_mean[c] + join * (moments[0, c] + offset)
        running_variance[c] = keep * running_variance[c] + join_variance * moments[1, c]


@compiled_part
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
