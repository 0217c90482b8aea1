"""A quasimetric of embeddings, which can be larger one way than back, as the time between two places can (ETD)."""

from __future__ import annotations

import torch
from torch import Tensor

from deir.algorithm.episodic import outside

CHUNK = 64  # queries compared with all keys at once


def quasimetric(x: Tensor, y: Tensor) -> Tensor:
    """d(x, y) = max_k max{x_k - y_k, 0} over the first half of the features + |x - y| over the second.

    d(x, x) = 0, d(x, z) ≤ d(x, y) + d(y, z), and d(x, y) ≠ d(y, x) in general.   [A, F], [B, F] -> [A, B]
    """
    half = x.shape[1] // 2
    one_way = (x[:, None, :half] - y[None, :, :half]).clamp(min=0).max(-1).values
    return one_way + torch.cdist(x[:, half:], y[:, half:], compute_mode="donot_use_mm_for_euclid_dist")


def episodic_min_quasimetric(
    queries: Tensor,  # [T, N, F]
    keys: Tensor,  # [S, N, F]
    first: Tensor,  # [T, N] int64: first key row of the episode
    last: Tensor,  # [T] int64: last key row to compare with
    repeated: Tensor,  # [T, N] bool: some key is known to equal the query, so that the distance is 0
) -> Tensor:
    """min_i d(key_i, query_t) over the rows i of the episode, 0 without any.   [T, N]"""
    found = queries.new_full(queries.shape[:2], torch.inf)
    for n in range(queries.shape[1]):
        for rows in torch.arange(len(queries), device=queries.device).split(CHUNK):
            distances = quasimetric(keys[:, n], queries[rows, n]).T  # [t, S]
            found[rows, n] = distances.masked_fill(outside(first[rows, n], last[rows], len(keys)), torch.inf).amin(1)
    return found.masked_fill(found.isinf() | repeated, 0.0)
