"""ETD's loss as operations of programs: the quasimetric, InfoNCE both ways, and their gradients.

Pairs are many and rows repeat, so everything is of the distinct rows x_i and y_j of a batch, of which they are the
parts s_i and s_j: row a of the batch is x_i, and Σ_b over the batch is B Σ_j s_j.
"""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled_part
from deir.fast.addresses import exponential


@compiled_part
def distances(x: Array, columns: Array, rises: Array, lengths: Array, largest: Array, lo: int, hi: int) -> None:
    """The two parts of `quasimetric.quasimetric` and the feature that rises most, -1 where none does.

    x: [I, F], columns: [F, J] of y; [I, J] each. Of the rows lo … hi; the innermost loop is over y, several at a time.
    """
    width, count, half = x.shape[1], columns.shape[1], x.shape[1] // 2
    for i in range(lo, hi):
        rise, square, feature = rises[i], lengths[i], largest[i]
        rise[:] = 0
        square[:] = 0
        feature[:] = -1
        for k in range(half):
            value, y, name = x[i, k], columns[k], np.int32(k)
            for j in range(count):
                change = value - y[j]
                feature[j] = name if change > rise[j] else feature[j]
                rise[j] = change if change > rise[j] else rise[j]
        for k in range(half, width):
            value, y = x[i, k], columns[k]
            for j in range(count):
                change = value - y[j]
                square[j] += change * change
        for j in range(count):
            square[j] = np.sqrt(square[j])


@compiled_part
def contrast_rows(
    rises: Array,  # [I, J]
    lengths: Array,  # [I, J]
    potentials: Array,  # [J] c
    shares: tuple[Array, Array],  # [I], [J]
    own: tuple[Array, Array],  # [B] the i and the j of each pair
    first: Array,  # [J] the first pair that has y_j
    logits: Array,  # [I, J]
    totals: Array,  # [I]
    figures: Array,  # [3] this job's part of the loss, of the accuracy and of the pairs' distance
    lo: int,
    hi: int,
) -> None:
    """The logits l_ij = c_j - d_ij, and log Σ_j s_j exp l_ij. Of the rows lo … hi."""
    count, pairs = len(potentials), len(own[0])
    likeliest, parts = np.empty(len(totals), np.int64), np.empty_like(potentials)
    figures[:] = 0
    for i in range(lo, hi):
        row, rise, length, best = logits[i], rises[i], lengths[i], 0
        for j in range(count):
            row[j] = potentials[j] - (rise[j] + length[j])
        for j in range(1, count):
            if row[j] > row[best] or (row[j] == row[best] and first[j] < first[best]):
                best = j
        largest, total = row[best], 0.0
        for j in range(count):
            parts[j] = exponential(row[j] - largest)
        for j in range(count):
            total += shares[1][j] * parts[j]
        totals[i], likeliest[i] = largest + np.log(total), best
        figures[0] += 0.5 * shares[0][i] * (np.float64(totals[i]) + np.log(pairs))
    for b in range(pairs):
        i, j = own[0][b], own[1][b]
        if lo <= i < hi:
            figures[0] -= 0.5 * logits[i, j] / pairs
            figures[1] += (first[likeliest[i]] == b) / pairs
            figures[2] += np.float64(rises[i, j] + lengths[i, j]) / pairs


@compiled_part
def contrast_columns(
    logits: Array, shares: tuple[Array, Array], own: tuple[Array, Array], totals: Array, figures: Array, lo: int,
    hi: int,
) -> None:  # fmt: skip
    """log Σ_i s_i exp l_ij, of the columns lo … hi. figures: [1] this job's part of the loss"""
    largest, sums, pairs = np.full(hi - lo, -np.inf, logits.dtype), np.zeros(hi - lo, logits.dtype), len(own[0])
    for i in range(len(logits)):
        row = logits[i, lo:hi]
        for j in range(hi - lo):
            largest[j] = max(largest[j], row[j])
    for i in range(len(logits)):
        row, part = logits[i, lo:hi], logits.dtype.type(shares[0][i])
        for j in range(hi - lo):
            sums[j] += part * exponential(row[j] - largest[j])
    figures[:] = 0
    for j in range(lo, hi):
        totals[j] = largest[j - lo] + np.log(sums[j - lo])
        figures[0] += 0.5 * shares[1][j] * (np.float64(totals[j]) + np.log(pairs))
    for b in range(pairs):
        if lo <= own[1][b] < hi:
            figures[0] -= 0.5 * logits[own[0][b], own[1][b]] / pairs


@compiled_part
def contrast_gradient(
    logits: Array,  # [I, J]
    shares: tuple[Array, Array],  # [I], [J]
    own: tuple[Array, Array],  # [B]
    totals: tuple[Array, Array],  # [I], [J]
    lengths: Array,  # [I, J]
    by_logits: Array,  # [I, J]
    pulls: Array,  # [I, J]
    lo: int,
    hi: int,
) -> None:
    """½ s_i s_j (e^{l_ij - log Σ_j s_j e^l_ij} + e^{l_ij - log Σ_i s_i e^l_ij}) - (pairs of i and j)/B, and the same
    over the length: 0 where that is 0. Of the rows lo … hi."""
    (_, count), number = logits.shape, logits.dtype.type
    half, zero, one = np.empty(count, logits.dtype), number(0), number(1 / len(own[0]))
    for j in range(count):
        half[j] = number(0.5) * number(shares[1][j])
    by_column = totals[1]
    for i in range(lo, hi):
        row, out, total, part = logits[i], by_logits[i], totals[0][i], number(shares[0][i])
        for j in range(count):
            out[j] = part * half[j] * (exponential(row[j] - total) + exponential(row[j] - by_column[j]))
    for b in range(len(own[0])):
        if lo <= own[0][b] < hi:
            by_logits[own[0][b], own[1][b]] -= one
    for i in range(lo, hi):
        out, pull, length = by_logits[i], pulls[i], lengths[i]
        for j in range(count):
            pull[j] = out[j] / length[j] if length[j] > zero else zero


@compiled_part
def distances_gradient(
    x: Array,  # [I, F]
    y: Array,  # [J, F]
    by_logits: Array,  # [I, J], which is that by -d
    pulls: Array,  # [I, J]
    largest: Array,  # [I, J]
    by_x: Array,  # [I, F] whose second half holds pulls y
    by_y: Array,  # [J, F] whose second half holds pullsᵀ x
    rows: tuple[int, int],
    columns: tuple[int, int],
) -> None:
    """d rises with the feature of x that rises most above y's; |x - y| pulls both towards each other. Of these rows of
    x and of y."""
    (count, width), half = x.shape, x.shape[1] // 2
    for i in range(rows[0], rows[1]):
        target, total = by_x[i], x.dtype.type(0)
        target[:half] = 0
        for j in range(len(y)):
            total += pulls[i, j]
            if largest[i, j] >= 0:
                target[largest[i, j]] -= by_logits[i, j]
        for k in range(half, width):
            target[k] -= total * x[i, k]
    totals = np.zeros(columns[1] - columns[0], x.dtype)
    for j in range(columns[0], columns[1]):
        by_y[j, :half] = 0
    for i in range(count):
        for j in range(columns[0], columns[1]):
            totals[j - columns[0]] += pulls[i, j]
            if largest[i, j] >= 0:
                by_y[j, largest[i, j]] += by_logits[i, j]
    for j in range(columns[0], columns[1]):
        for k in range(half, width):
            by_y[j, k] -= totals[j - columns[0]] * y[j, k]
