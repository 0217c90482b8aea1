"""Distances within an episode, a few keys at a time that stay in the cache.

They are the longest computation of the reward stage and grow with the square of an episode's length, so each
environment is a job of its own, over just the rows of its episodes. A job gives the same bits whatever runs beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deir.algorithm.episodic import of_environment
from deir.compiled import Array, compiled, compiled_sums
from deir.fast.arrays import arrays_of
from deir.fast.threads import in_parallel, share_out

KEYS = 32  # that all queries are compared with before the next ones
CHUNK = 64  # queries
TILE = 1024  # keys; a tile of distances is half a megabyte


@compiled_sums
def _ratios(
    query_obs: Array,  # [T, F]
    query_traj: Array,  # [T, H]
    key_obs: Array,  # [S, F]
    key_traj: Array,  # [S, H]
    first: Array,  # [T] of the keys that each query is compared with; beyond the last one: none
    last: Array,  # [T]
    eps: float,
    rewards: Array,  # [T]
) -> None:
    """Equation 4 for one environment. Keys are taken a few at a time, which stay in the cache for all queries."""
    rewards[:] = np.inf
    for begin in range(0, len(key_obs), KEYS):
        for t in range(len(query_obs)):
            obs, traj, nearest = query_obs[t], query_traj[t], rewards[t]
            for i in range(max(begin, first[t]), min(begin + KEYS, last[t] + 1)):
                key, squares, apart = key_obs[i], obs.dtype.type(0), obs.dtype.type(0)
                for f in range(len(obs)):
                    squares += (obs[f] - key[f]) * (obs[f] - key[f])
                key = key_traj[i]
                for h in range(len(traj)):
                    apart += (traj[h] - key[h]) * (traj[h] - key[h])
                nearest = min(nearest, squares / (np.sqrt(apart) + obs.dtype.type(eps)))
            rewards[t] = nearest
    for t in range(len(rewards)):
        if np.isinf(rewards[t]):
            rewards[t] = 0


def min_ratio(
    query_obs: Tensor,  # [T, N, F]
    query_traj: Tensor,  # [T, N, H]
    key_obs: Sequence[Tensor],  # [S, N, F] in parts, one after the other
    key_traj: Sequence[Tensor],  # [S, N, H] likewise
    first: Tensor,  # [T, N] int64: first key row of the episode
    last: Tensor,  # [T] int64: last key row to compare with, the same for all environments
    eps: float,
    repeated: Tensor | None = None,  # [T, N] bool: some key is known to equal the query, so that it earns nothing
) -> Tensor:
    """Equation 4: r_t = min_i dist²(e_obs_i, e_obs_{t+1}) / (dist(e_traj_i, e_traj_t) + ε), 0 without any i.   [T, N]

    From differences, since |a|² + |b|² - 2ab loses the small distances that decide the minimum.
    """
    begins = first if repeated is None else torch.where(repeated, sum(map(len, key_obs)), first)
    ends, rewards = last.numpy(), np.empty(first.T.shape, arrays_of(query_obs[:0])[0].dtype)

    def search(n: int) -> None:  # in a copy of its own environment's rows: one of all would be as long as the history
        keys = of_environment(key_obs, n), of_environment(key_traj, n)
        _ratios(*arrays_of(query_obs[:, n], query_traj[:, n], *keys, begins[:, n]), ends, eps, rewards[n])

    share_out(search, len(rewards))
    return torch.from_numpy(rewards).T


def nearest_keys(
    queries: Tensor,  # [T, N, F]
    keys: Tensor,  # [S, N, F]
    first: Tensor,  # [T, N] int64: first key row of the episode
    last: Tensor,  # [T] int64: last key row to compare with
    k: int,
    chunk: int = CHUNK,
    tile: int = TILE,
) -> Tensor:
    """Squared distances to the k nearest keys of the episode, ascending; infinite where it has fewer.   [T, N, k]

    Matrix products find the nearest, differences measure them: |q|² + |k|² - 2qk of equal rows is not 0 but rounding.
    """
    steps, envs = queries.shape[:2]
    nearest = torch.full((envs, steps, k), torch.inf, dtype=torch.float64, device="cpu")
    begins, ends = arrays_of(first.T, last)

    def search(n: int) -> None:
        by_step, rows = _as_queries(queries[:, n]), _as_keys(keys[:, n])  # [T, F+2], [S, F+2]
        near, found, lows, highs = nearest[n].numpy(), np.zeros((steps, k), np.int64), begins[n], ends + 1
        for at in range(0, steps, chunk):
            some = slice(at, at + chunk)
            for left in range(int(lows[some].min()), int(highs[some].max()), tile):
                distances = by_step[some] @ rows[left : left + tile].T  # [chunk, tile] squared
                _select(distances.numpy(), left, lows[some], highs[some], near[some], found[some])
        _measure(*arrays_of(queries[:, n].double(), keys[:, n].double()), found, near)

    in_parallel(search, range(envs))
    return nearest.transpose(0, 1)


@compiled
def _select(distances: Array, left: int, lows: Array, highs: Array, near: Array, found: Array) -> None:
    """Keeps the smallest of each query's row that belong to the keys lows … highs, ascending, and which keys they are.

    distances: [q, s] to the keys that begin with `left`; near, found: [q, k]
    """
    k = near.shape[1]
    for q in range(len(distances)):
        for s in range(max(lows[q] - left, 0), min(highs[q] - left, distances.shape[1])):
            distance, place = distances[q, s], k
            while place > 0 and distance < near[q, place - 1]:
                if place < k:
                    near[q, place], found[q, place] = near[q, place - 1], found[q, place - 1]
                place -= 1
            if place < k:
                near[q, place], found[q, place] = distance, left + s


@compiled
def _measure(queries: Array, keys: Array, found: Array, near: Array) -> None:
    """Squared distances of what was found, ascending. queries: [T, F], keys: [S, F], found, near: [T, k]"""
    for t in range(len(near)):
        for place in range(near.shape[1]):
            if near[t, place] < np.inf:
                total = 0.0
                for f in range(queries.shape[1]):
                    change = queries[t, f] - keys[found[t, place], f]
                    total += change * change
                near[t, place] = total
        near[t].sort()


def _as_queries(rows: Tensor) -> Tensor:
    """(-2q, |q|², 1), whose product with (k, 1, |k|²) is |q - k|².   [t, F] -> [t, F+2] double"""
    rows = rows.to(torch.float64)
    squares = rows.square().sum(-1, keepdim=True)
    return torch.cat([-2 * rows, squares, torch.ones_like(squares)], -1)


def _as_keys(rows: Tensor) -> Tensor:
    """[S, F] -> [S, F+2] double"""
    rows = rows.to(torch.float64)
    squares = rows.square().sum(-1, keepdim=True)
    return torch.cat([rows, torch.ones_like(squares), squares], -1)
