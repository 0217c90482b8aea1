"""The operations that only reward models have; `machine.run` knows them by numbers above its own."""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled_part
from deir.fast import contrast_kernels, kernels, losses
from deir.fast.addresses import matrix, part, vector

(
    GATHER, CATEGORIES, SQUARED_ERRORS, DISTANCES, CONTRAST_ROWS, CONTRAST_COLUMNS, CONTRAST_GRADIENT,
    DISTANCES_GRADIENT,
) = range(100, 108)  # fmt: skip


@compiled_part
def models(code: int, x: Array, f: Array, job: int, jobs: int, like: float) -> None:
    """One job of what only reward models have."""
    whole, real = np.int64(0), np.float64(0)
    if code == GATHER:  # table, M, C, rows, I, out, flipped
        lo, hi = part(x[4], job, jobs)
        kernels.gather(
            matrix(x[0], x[1], x[2], like), vector(x[3], x[4], whole), matrix(x[5], x[4], x[2], like),
            matrix(x[6], x[2] if x[6] else 0, x[4], like), lo, hi,
        )  # fmt: skip
    elif code == CATEGORIES:  # logits, B, A, choices, by logits, figures, of which a job has
        lo, hi = part(x[1], job, jobs)
        losses.categories(
            matrix(x[0], x[1], x[2], like), vector(x[3], x[1], whole), f[0], matrix(x[4], x[1], x[2], like),
            vector(x[5] + 8 * job * x[6], 2, real), lo, hi,
        )  # fmt: skip
    elif code == SQUARED_ERRORS:  # guesses, P, C, targets, M, rows, share, by guesses, by targets, figures, a job has
        lo, hi = part(x[1], job, jobs)
        losses.squared_errors(
            matrix(x[0], x[1], x[2], like), matrix(x[3], x[4], x[2], like), vector(x[5], x[1] if x[5] else 0, whole),
            vector(x[6], x[1] if x[6] else 0, real), f[0], f[1], matrix(x[7], x[1], x[2], like),
            matrix(x[8], x[1] if x[8] else 0, x[2], like), vector(x[9] + 8 * job * x[10], 1, real), lo, hi,
        )  # fmt: skip
    else:
        _contrast(code, x, job, jobs, like)


@compiled_part
def _contrast(code: int, x: Array, job: int, jobs: int, like: float) -> None:
    """One job of ETD's loss. First of all operands: I, J; of the losses also shares x 2, own x 2, B"""
    whole, real, (lo, hi), (left, right) = np.int64(0), np.float64(0), part(x[0], job, jobs), part(x[1], job, jobs)
    if code == DISTANCES:  # x, F, columns, rises, lengths, largest
        contrast_kernels.distances(
            matrix(x[2], x[0], x[3], like), matrix(x[4], x[3], x[1], like), matrix(x[5], x[0], x[1], like),
            matrix(x[6], x[0], x[1], like), matrix(x[7], x[0], x[1], np.int32(0)), lo, hi,
        )  # fmt: skip
        return
    if code == DISTANCES_GRADIENT:  # x, F, y, by logits, pulls, largest, by x, by y
        contrast_kernels.distances_gradient(
            matrix(x[2], x[0], x[3], like), matrix(x[4], x[1], x[3], like), matrix(x[5], x[0], x[1], like),
            matrix(x[6], x[0], x[1], like), matrix(x[7], x[0], x[1], np.int32(0)), matrix(x[8], x[0], x[3], like),
            matrix(x[9], x[1], x[3], like), (lo, hi), (left, right),
        )  # fmt: skip
        return
    shares = vector(x[2], x[0], real), vector(x[3], x[1], real)
    own, logits = (vector(x[4], x[6], whole), vector(x[5], x[6], whole)), matrix(x[7], x[0], x[1], like)
    totals = vector(x[8], x[0], like), vector(x[9], x[1], like)
    figures = vector(x[10] + 8 * job * 4, 4, real)
    if code == CONTRAST_ROWS:  # logits, totals x 2, figures, rises, lengths, potentials, first
        contrast_kernels.contrast_rows(
            matrix(x[11], x[0], x[1], like), matrix(x[12], x[0], x[1], like), vector(x[13], x[1], like), shares, own,
            vector(x[14], x[1], whole), logits, totals[0], figures[:3], lo, hi,
        )  # fmt: skip
    elif code == CONTRAST_COLUMNS:  # logits, totals x 2, figures
        contrast_kernels.contrast_columns(logits, shares, own, totals[1], figures[3:], left, right)
    else:  # logits, totals x 2, figures, lengths, by logits, pulls
        contrast_kernels.contrast_gradient(
            logits, shares, own, totals, matrix(x[11], x[0], x[1], like), matrix(x[12], x[0], x[1], like),
            matrix(x[13], x[0], x[1], like), lo, hi,
        )  # fmt: skip
