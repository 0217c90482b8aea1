"""Distances within an episode: each new observation against everything the episode held before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def episode_first_positions(starts: Tensor, carried: Tensor) -> Tensor:
    """Where the episode of each step begins, counted in rows of (carried history, rollout).

    starts: [T, N] bool; carried: [N] steps of the running episode that stand before the rollout, whose rows end at
    `carried.max()`. Gives [T, N] int64.
    """
    depth = int(carried.max())
    rows = torch.arange(len(starts), device=starts.device)[:, None] + depth
    began = torch.where(starts, rows, -1)
    began[0] = torch.where(starts[0], began[0], depth - carried)
    return began.cummax(0).values


def first_occurrences(keys: Tensor, key_first: Tensor, queries: Tensor, query_first: Tensor) -> Tensor:
    """The earliest row of keys [S, N] that equals each query [T, N] in its environment and episode, S without any.

    Episodes are named by their first row: key_first [S, N] and query_first [T, N]; -1 for rows of no episode.
    """
    rows, envs = keys.shape
    pairs = _names_in_episodes(keys, key_first, queries, query_first)
    times = torch.arange(rows, device=keys.device)[:, None].expand(rows, envs)
    earliest = torch.full((pairs.numel(),), rows, device=keys.device)
    earliest.scatter_reduce_(0, pairs[:rows].flatten(), times.flatten(), "amin")
    return earliest[pairs[rows:]]


def earlier_occurrences(keys: Tensor, key_first: Tensor, queries: Tensor, query_first: Tensor) -> Tensor:
    """How many rows of keys [S, N] up to its own time equal each query [T, N] in its environment and episode. [T, N]

    The last T keys are of the times of the queries.
    """
    rows = len(keys)
    pairs = _names_in_episodes(keys, key_first, queries, query_first)  # [S+T, N]
    times = torch.arange(rows, device=keys.device)
    moments = torch.cat([2 * times, 2 * times[rows - len(queries) :] + 1])[:, None]  # a query just after its key
    order = (pairs * 2 * rows + moments).flatten().argsort()
    is_key = (torch.arange(len(pairs), device=keys.device) < rows)[:, None].expand_as(pairs).flatten()
    so_far = is_key[order].cumsum(0)  # keys of this pair and of all pairs before it
    sorted_pairs = pairs.flatten()[order]
    per_pair = torch.bincount(pairs[:rows].flatten(), minlength=int(pairs.max()) + 1)
    before = per_pair.cumsum(0) - per_pair  # keys of all pairs before it
    counts = torch.empty_like(so_far)
    counts[order] = so_far - before[sorted_pairs]
    return counts.view_as(pairs)[rows:]


def _names_in_episodes(keys: Tensor, key_first: Tensor, queries: Tensor, query_first: Tensor) -> Tensor:
    """Integers from 0 that two entries share where they are equal and of one episode of one environment. [S+T, N]"""
    envs = keys.shape[1]
    _, names = torch.cat([keys, queries]).unique(return_inverse=True)
    episodes = torch.cat([key_first, query_first]) * envs + torch.arange(envs, device=keys.device)
    _, pairs = (episodes * (names.max() + 1) + names).unique(return_inverse=True)
    return pairs


def repeats_in_episode(ids: Tensor, next_ids: Tensor, first: Tensor, last: Tensor, depth: int) -> Tensor:
    """Which o_{t+1} equal an observation of the rollout that their episode is compared with.   [T, N] bool

    ids, next_ids: [T, N] names of o_t and o_{t+1}; first, last: as below, in rows of `depth` rows of history and the
    rollout. Rows of history do not count: they were embedded with earlier parameters.
    """
    rows = first_occurrences(ids, first, next_ids, first)
    return (rows < len(ids)) & (rows + depth <= last[:, None])


def episodic_min_ratio(
    query_obs: Tensor,  # [T, N, F]
    query_traj: Tensor,  # [T, N, H]
    key_obs: Sequence[Tensor],  # [S, N, F] in parts, one after the other
    key_traj: Sequence[Tensor],  # [S, N, H] likewise
    first: Tensor,  # [T, N] int64: first key row of the episode
    last: Tensor,  # [T] int64: last key row to compare with, the same for all environments
    eps: float,
    repeated: Tensor | None = None,  # [T, N] bool: some key is known to equal the query, so that it earns nothing
) -> Tensor:
    """Equation 4: r_t = min_i dist²(e_obs_i, e_obs_{t+1}) / (dist(e_traj_i, e_traj_t) + ε), 0 without any i. [T, N]"""
    rewards = []
    for n in range(query_obs.shape[1]):
        ratios = distances(query_obs[:, n], of_environment(key_obs, n)).square()  # [T, S]
        ratios /= distances(query_traj[:, n], of_environment(key_traj, n)) + eps
        rewards.append(ratios.masked_fill(outside(first[:, n], last, ratios.shape[1]), torch.inf).amin(1))
    found = torch.stack(rewards, 1)
    nothing = found.isinf() if repeated is None else found.isinf() | repeated
    return found.masked_fill(nothing, 0.0).to(query_obs.dtype)


def episodic_nearest(
    queries: Tensor,  # [T, N, F]
    keys: Tensor,  # [S, N, F]
    first: Tensor,  # [T, N] int64: first key row of the episode
    last: Tensor,  # [T] int64: last key row to compare with
    k: int,
) -> Tensor:
    """Squared distances to the k nearest keys of the episode, ascending; infinite where it has fewer.   [T, N, k]"""
    nearest = []
    for n in range(queries.shape[1]):
        squares = distances(queries[:, n], keys[:, n]).square()  # [T, S]
        squares = squares.masked_fill(outside(first[:, n], last, len(keys)), torch.inf).sort(1).values
        nearest.append(F.pad(squares, (0, k), value=torch.inf)[:, :k])
    return torch.stack(nearest, 1)


def of_environment(parts: Sequence[Tensor], n: int) -> Tensor:
    """The rows of one environment. [S, N, F] in parts -> [S, F]"""
    return torch.cat([part[:, n] for part in parts])


def distances(queries: Tensor, keys: Tensor) -> Tensor:
    """Euclidean, in double precision: the small ones decide.   [T, F], [S, F] -> [T, S]"""
    return torch.cdist(queries.double(), keys.double(), compute_mode="donot_use_mm_for_euclid_dist")


def outside(first: Tensor, last: Tensor, rows: int) -> Tensor:
    """Which keys do not belong to the episode of a query, before it.   first, last: [T] -> [T, rows] bool"""
    keys = torch.arange(rows, device=first.device)
    return (keys < first[:, None]) | (keys > last[:, None])
