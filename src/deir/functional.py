"""Pure mathematics on plain tensors; the equation stands in each docstring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


def gae(
    rewards: Tensor,  # [T, N]
    values: Tensor,  # [T, N]
    next_values: Tensor,  # [T, N] V(o_{t+1}); zero where the episode terminated
    dones: Tensor,  # [T, N] bool
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimation.

    A_t = δ_t + γ λ (1 - done_t) A_{t+1},  δ_t = r_t + γ V(o_{t+1}) - V(o_t).   [T, N]
    """
    deltas = rewards + gamma * next_values - values
    decay = gamma * lam * (~dones).to(deltas.dtype)
    advantages = torch.empty_like(deltas)
    advantage = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        advantage = deltas[t] + decay[t] * advantage
        advantages[t] = advantage
    return advantages


def episode_first_positions(starts: Tensor, carried: Tensor) -> Tensor:
    """Where the episode of each step begins, counted in rows of (carried history, rollout).

    starts: [T, N] bool; carried: [N] steps of the running episode that stand before the rollout, whose rows end at
    `carried.max()`. Gives [T, N] int64.
    """
    depth = int(carried.max()) if carried.numel() else 0
    rows = torch.arange(len(starts), device=starts.device)[:, None] + depth
    began = torch.where(starts, rows, -1)
    began[0] = torch.where(starts[0], began[0], depth - carried)
    return began.cummax(0).values


def episodic_min_ratio(
    query_obs: Tensor,  # [T, N, F]
    query_traj: Tensor,  # [T, N, H]
    key_obs: Tensor,  # [S, N, F]
    key_traj: Tensor,  # [S, N, H]
    first: Tensor,  # [T, N] int64: first key row of the episode
    last: Tensor,  # [T] int64: last key row to compare with, the same for all environments
    eps: float,
    chunk: int = 64,
) -> Tensor:
    """Equation 4: r_t = min_i dist²(e_obs_i, e_obs_{t+1}) / (dist(e_traj_i, e_traj_t) + ε), 0 without any i.   [T, N]

    Distances come from matrix products in double precision, since |a|² + |b|² - 2ab loses in single precision the
    small distances that decide the minimum. Work and memory are bounded by `chunk` rows of queries at a time, each
    against the key rows between the earliest episode start and its own time.
    """
    steps, envs = query_obs.shape[:2]
    rewards = query_obs.new_zeros(steps, envs)
    q_obs, k_obs = _as_queries(query_obs), _as_keys(key_obs)  # [N, T, F+2], [N, F+2, S]
    q_traj, k_traj = _as_queries(query_traj), _as_keys(key_traj)
    for part in _windows(first, last, chunk):
        d_obs = torch.bmm(q_obs[:, part.steps], k_obs[:, :, part.rows])  # [N, chunk, keys] squared
        d_traj = torch.bmm(q_traj[:, part.steps], k_traj[:, :, part.rows]).clamp_(min=0).sqrt_().add_(eps)
        nearest = d_obs.div_(d_traj).masked_fill_(part.outside, torch.inf).amin(-1).clamp_(min=0)  # [N, chunk]
        rewards[part.steps] = torch.where(nearest.isinf(), 0.0, nearest).T.to(rewards.dtype)
    return rewards


def episodic_nearest(
    queries: Tensor,  # [T, N, F]
    keys: Tensor,  # [S, N, F]
    first: Tensor,  # [T, N] int64: first key row of the episode
    last: Tensor,  # [T] int64: last key row to compare with
    k: int,
    chunk: int = 64,
) -> Tensor:
    """Squared distances to the k nearest keys of the episode, ascending; infinite where it has fewer.   [T, N, k]

    In double precision and chunks of queries, as `episodic_min_ratio`.
    """
    steps, envs = queries.shape[:2]
    nearest = torch.full((steps, envs, k), torch.inf, dtype=torch.float64, device=queries.device)
    by_env, keys_by_env = _as_queries(queries), _as_keys(keys)  # [N, T, F+2], [N, F+2, S]
    for part in _windows(first, last, chunk):
        distances = torch.bmm(by_env[:, part.steps], keys_by_env[:, :, part.rows])  # [N, chunk, keys] squared
        found = distances.masked_fill_(part.outside, torch.inf).topk(min(k, distances.shape[-1]), largest=False).values
        nearest[part.steps, :, : found.shape[-1]] = found.clamp_(min=0).transpose(0, 1)
    return nearest


class _Window(NamedTuple):
    steps: slice  # queries
    rows: slice  # the keys that any of them compares with
    outside: Tensor  # [N, queries, keys] bool: not of the query's episode, or too late


def _windows(first: Tensor, last: Tensor, chunk: int) -> Iterator[_Window]:
    """Queries, `chunk` rows at a time, each against the keys between the earliest episode start and its own time."""
    lows = torch.stack([part.min() for part in first.split(chunk)]).tolist()  # one wait for the device, not one a chunk
    highs = (torch.stack([part[-1] for part in last.split(chunk)]) + 1).tolist()
    for index, (low, high) in enumerate(zip(lows, highs, strict=True)):
        begin, end = index * chunk, min((index + 1) * chunk, len(first))
        if high > low:
            rows = torch.arange(low, high, device=first.device)
            outside = (rows < first[begin:end].T[:, :, None]) | (rows > last[begin:end, None])
            yield _Window(slice(begin, end), slice(low, high), outside)


def first_occurrences(keys: Tensor, key_first: Tensor, queries: Tensor, query_first: Tensor) -> Tensor:
    """The earliest row of keys [S, N] that equals each query [T, N] in its environment and episode, S without any.

    Episodes are named by their first row: key_first [S, N] and query_first [T, N]; -1 for rows of no episode.
    """
    rows, envs = keys.shape
    _, names = torch.cat([keys, queries]).unique(return_inverse=True)
    episodes = (torch.cat([key_first, query_first]) + 1) * envs + torch.arange(envs, device=keys.device)
    _, pairs = (episodes * (names.max() + 1) + names).unique(return_inverse=True)  # (episode, key)
    times = torch.arange(rows, device=keys.device)[:, None].expand(rows, envs)
    earliest = torch.full((pairs.numel(),), rows, device=keys.device)
    earliest.scatter_reduce_(0, pairs[:rows].flatten(), times.flatten(), "amin")
    return earliest[pairs[rows:]]


def occurrence_ranks(keys: Tensor) -> Tensor:
    """How often each of [K] has occurred before its own place.   [K]"""
    ordered, order = keys.sort(stable=True)
    places = torch.arange(len(keys), device=keys.device)
    repeats = torch.zeros_like(places, dtype=torch.bool)
    repeats[1:] = ordered[1:] == ordered[:-1]
    begins = torch.where(repeats, 0, places).cummax(0).values
    return torch.empty_like(places).scatter_(0, order, places - begins)


def _as_queries(rows: Tensor) -> Tensor:
    """(-2q, |q|², 1), whose product with (k, 1, |k|²) is |q - k|².   [T, N, F] -> [N, T, F+2] double"""
    rows = rows.transpose(0, 1).to(torch.float64)
    squares = rows.square().sum(-1, keepdim=True)
    return torch.cat([-2 * rows, squares, torch.ones_like(squares)], -1)


def _as_keys(rows: Tensor) -> Tensor:
    """[S, N, F] -> [N, F+2, S] double"""
    rows = rows.transpose(0, 1).to(torch.float64)
    squares = rows.square().sum(-1, keepdim=True)
    return torch.cat([rows, torch.ones_like(squares), squares], -1).transpose(1, 2)


class EmaMoments:
    """Moving mean and variance over rollouts.

    m ← ρ m + (1-ρ) mean(x);  v ← ρ v + (1-ρ) mean((x-m)²) with the new m; they start at 0 and 1.
    """

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.mean = 0.0
        self.var = 1.0

    def update(self, x: Tensor) -> None:
        x = x.to(torch.float64)
        if x.numel() == 0:
            return
        self.mean = self.momentum * self.mean + (1 - self.momentum) * float(x.mean())
        self.var = self.momentum * self.var + (1 - self.momentum) * float((x - self.mean).square().mean())

    def normalize(self, x: Tensor, eps: float = 1e-5) -> Tensor:
        return (x - self.mean) / (self.var**0.5 + eps)

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "var": self.var}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.mean, self.var = float(state["mean"]), float(state["var"])


class TotalMoments(EmaMoments):
    """Mean and variance of everything seen so far."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.count = 0

    def update(self, x: Tensor) -> None:
        if x.numel() == 0:
            return
        x = x.to(torch.float64)
        total = self.count + x.numel()
        share, mean = x.numel() / total, float(x.mean())
        between = share * (1 - share) * (mean - self.mean) ** 2
        self.var = (1 - share) * self.var + share * float((x - mean).square().mean()) + between
        self.mean += share * (mean - self.mean)
        self.count = total

    def state_dict(self) -> dict[str, float]:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state: dict[str, float]) -> None:
        super().load_state_dict(state)
        self.count = int(state["count"])


def moments(momentum: float | None) -> EmaMoments:
    """Moving moments, or those of everything without a momentum."""
    return TotalMoments() if momentum is None else EmaMoments(momentum)


class RunningMean:
    """m ← ρ m + (1-ρ) x, beginning with the first x; without ρ the average of all x."""

    def __init__(self, momentum: float | None) -> None:
        self.momentum = momentum
        self.mean = 0.0
        self.count = 0

    def scan(self, values: Tensor) -> Tensor:
        """[T] -> the mean after each; a value that is not a number leaves it as it is."""
        means = []
        for value in values.tolist():
            if value == value:
                keep = self.momentum if self.momentum is not None else self.count / (self.count + 1)
                self.mean = keep * self.mean + (1 - keep) * value if self.count else value
                self.count += 1
            means.append(self.mean)
        return torch.tensor(means, dtype=values.dtype, device=values.device)

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "count": self.count}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.mean, self.count = float(state["mean"]), int(state["count"])


def explained_variance(predicted: Tensor, target: Tensor) -> float:
    """1 - Var(target - predicted) / Var(target)"""
    variance = target.var(unbiased=False)
    return float(1 - (target - predicted).var(unbiased=False) / variance) if variance > 0 else 0.0


def minibatches(indices: Tensor, size: int, generator: torch.Generator) -> list[Tensor]:
    """A random partition of `indices` into nearly equal parts of about `size`."""
    order = torch.randperm(len(indices), generator=generator, device="cpu").to(indices.device)
    parts = max(1, round(len(indices) / size))
    return list(indices[order].tensor_split(parts))
