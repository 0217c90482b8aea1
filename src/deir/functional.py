"""Pure mathematics on plain tensors; the equation stands in each docstring."""

from __future__ import annotations

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
    q_obs, k_obs = _by_env(query_obs), _by_env(key_obs)  # [N, T, F], [N, S, F]
    q_traj, k_traj = _by_env(query_traj), _by_env(key_traj)
    for begin in range(0, steps, chunk):
        end = min(begin + chunk, steps)
        low, high = int(first[begin:end].min()), int(last[end - 1]) + 1
        if high <= low:
            continue
        d_obs = _squared_distances(q_obs[:, begin:end], k_obs[:, low:high])  # [N, chunk, keys]
        d_traj = _squared_distances(q_traj[:, begin:end], k_traj[:, low:high]).sqrt_().add_(eps)
        ratio = d_obs.div_(d_traj)
        rows = torch.arange(low, high, device=query_obs.device)
        outside = (rows < first[begin:end].T[:, :, None]) | (rows > last[begin:end, None])  # [N, chunk, keys]
        nearest = ratio.masked_fill_(outside, torch.inf).amin(-1)  # [N, chunk]
        rewards[begin:end] = torch.where(nearest.isinf(), 0.0, nearest).T.to(rewards.dtype)
    return rewards


def _by_env(rows: Tensor) -> Tensor:
    return rows.transpose(0, 1).to(torch.float64).contiguous()


def _squared_distances(queries: Tensor, keys: Tensor) -> Tensor:
    """[N, Q, F], [N, K, F] -> [N, Q, K]"""
    products = torch.bmm(queries, keys.transpose(1, 2))
    squares = queries.square().sum(-1)[:, :, None] + keys.square().sum(-1)[:, None, :]
    return products.mul_(-2).add_(squares).clamp_(min=0)


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


def explained_variance(predicted: Tensor, target: Tensor) -> float:
    """1 - Var(target - predicted) / Var(target)"""
    variance = target.var(unbiased=False)
    return float(1 - (target - predicted).var(unbiased=False) / variance) if variance > 0 else 0.0


def minibatches(indices: Tensor, size: int, generator: torch.Generator) -> list[Tensor]:
    """A random partition of `indices` into nearly equal parts of about `size`."""
    order = torch.randperm(len(indices), generator=generator).to(indices.device)
    parts = max(1, round(len(indices) / size))
    return list(indices[order].tensor_split(parts))
