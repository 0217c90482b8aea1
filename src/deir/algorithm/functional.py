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
    advantages = [torch.zeros_like(deltas[0])]
    for delta, keep in zip(reversed(deltas.unbind()), reversed(decay.unbind()), strict=True):
        advantages.append(delta + keep * advantages[-1])
    return torch.stack(advantages[:0:-1])


def occurrence_ranks(keys: Tensor) -> Tensor:
    """How often each of [K] has occurred before its own place.   [K]"""
    ordered, order = keys.sort(stable=True)
    places = torch.arange(len(keys), device=keys.device)
    repeats = torch.zeros_like(places, dtype=torch.bool)
    repeats[1:] = ordered[1:] == ordered[:-1]
    begins = torch.where(repeats, 0, places).cummax(0).values
    return torch.empty_like(places).scatter_(0, order, places - begins)


LONG_AGO = 10**6  # rollouts after which a start is forgotten: of checkpoints that did not count them


class EmaMoments:
    """Moving mean and variance over rollouts.

    m ← ρ m + (1-ρ) mean(x);  v ← ρ v + (1-ρ) mean((x-m)²) with the new m; they start at 0 and 1.
    Corrected, as Adam's moments are, the k-th rollout counts (1-ρ)/(1-ρᵏ) in place of 1-ρ: the start is forgotten.
    """

    def __init__(self, momentum: float, corrected: bool = False) -> None:
        self.momentum = momentum
        self.corrected = corrected
        self.mean = 0.0
        self.var = 1.0
        self.count = 0  # of rollouts

    def update(self, x: Tensor) -> None:
        if x.numel() == 0:
            return
        x = x.to(torch.float64)
        self.count += 1
        keep = self.momentum
        if self.corrected and keep < 1:
            keep = 1 - (1 - keep) / (1 - keep**self.count)
        self.mean = keep * self.mean + (1 - keep) * float(x.mean())
        self.var = keep * self.var + (1 - keep) * float((x - self.mean).square().mean())

    def normalize(self, x: Tensor, eps: float = 1e-5) -> Tensor:
        return (x - self.mean) / (self.var**0.5 + eps)

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "var": self.var, "count": self.count}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.mean, self.var = float(state["mean"]), float(state["var"])
        self.count = int(state.get("count", LONG_AGO))


class TotalMoments(EmaMoments):
    """Mean and variance of everything seen so far."""

    def __init__(self) -> None:
        super().__init__(0.0)  # `count` is of values

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


def moments(momentum: float | None, corrected: bool = False) -> EmaMoments:
    """Moving moments, or those of everything without a momentum."""
    return TotalMoments() if momentum is None else EmaMoments(momentum, corrected)


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
