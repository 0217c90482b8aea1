"""NGU (Badia et al., 2020): how unlike the episode's memory an observation is, scaled by its lifelong novelty.

Algorithm 1, with d_k² the squared distances of f(o_{t+1}) to its k nearest neighbours among f(o_0) … f(o_t) and d_m²
their running mean:

    d_n = max{d_k²/d_m² - ξ, 0},   K = ε/(d_n + ε),   s = √(Σ K) + c,   r_episodic = 1/s, or 0 if s > s_max

    r_t = r_episodic · min{max{α, 1}, L},   α = 1 + (e - μ)/σ of the random distillation error e

The embedding f is learned by an inverse model, which tells a_t from the trajectory embeddings at t and t+1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deir.algorithm.episodic import distances as all_distances
from deir.algorithm.episodic import episode_first_positions, outside
from deir.algorithm.explanation import Compared, Explanation
from deir.algorithm.functional import RunningMean
from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.rewards.base import Context, RewardState
from deir.algorithm.rewards.shared import InverseModel, RandomDistillation, TrajectoryModel
from deir.algorithm.types import Batch, Rollout


class Ngu(TrajectoryModel):
    def __init__(self, context: Context, lifelong: bool | None = None) -> None:
        super().__init__(context)
        self.options = context.config.reward.ngu
        self.inverse_model = InverseModel(context, self.width, self.actions)
        with_factor = self.options.lifelong if lifelong is None else lifelong
        self.rnd = RandomDistillation(context) if with_factor else None
        self.distance_mean = RunningMean(self.options.distance_momentum)

    def initial_state(self, n_envs: int) -> RewardState:
        history = EpisodicHistory.empty(n_envs, {"obs": self.encoder.features}, self.device)
        return replace(super().initial_state(n_envs), history=history)

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        assert state.history is not None
        history, seen = state.history, self.embed(rollout, state)
        first = episode_first_positions(rollout.starts[:-1], history.lengths)  # [T, N]
        last = torch.arange(len(first), device=first.device) + history.depth  # o_t is in the memory
        keys = history.extended("obs", seen.obs)  # [L+T, N, F]
        distances = self.ops.nearest(seen.next_obs, keys, first, last, self.options.neighbours)  # [T, N, k]
        rewards = self.inverse_similarity(distances, self.mean_distances(distances, rollout.valid))
        rewards = rewards.to(seen.obs.dtype) * rollout.valid
        after = self.state_after(seen, history.advanced({"obs": seen.obs}, first[-1], rollout.starts[-1]))
        if self.rnd is None:
            return rewards, after
        factor, of_rnd = self.rnd.lifelong_factor(rollout)
        return rewards * factor, after.with_more_for_update(of_rnd)

    def mean_distances(self, distances: Tensor, valid: Tensor) -> Tensor:
        """d_m² after each step: one running mean for all environments, fed with the mean over them. [T]"""
        found = distances.isfinite() & valid[..., None]  # [T, N, k]
        sums = torch.where(found, distances, 0.0).sum((1, 2))
        return self.distance_mean.scan(sums / found.sum((1, 2)))  # 0/0 where no environment has a genuine step

    def inverse_similarity(self, distances: Tensor, mean: Tensor) -> Tensor:
        """distances: [T, N, k] squared, infinite for a missing neighbour; mean: [T] -> [T, N]"""
        similarity = self.kernel(distances, mean).sum(-1).sqrt() + self.options.pseudo_count
        return torch.where(similarity > self.options.max_similarity, 0.0, 1 / similarity)

    def kernel(self, distances: Tensor, mean: Tensor) -> Tensor:
        """K of each neighbour, from 0 to 1 where it is the same. [T, N, k]"""
        normalized = distances / mean.clamp(min=torch.finfo(mean.dtype).tiny)[:, None, None]
        return self.options.eps / ((normalized - self.options.cluster_distance).clamp(min=0) + self.options.eps)

    @torch.no_grad()
    def explain(self, rollout: Rollout, env: int) -> Explanation:
        """The k nearest, their mean distance, the similarity they make, and the lifelong factor."""
        seen = self.embed(rollout, self.initial_state(rollout.shape[1]))
        first = episode_first_positions(rollout.starts[:-1], rollout.starts.new_zeros(rollout.shape[1]).long())
        last = torch.arange(len(first), device=first.device)
        found = self.ops.nearest(seen.next_obs, seen.obs, first, last, self.options.neighbours)  # [T, N, k]
        mean = self.mean_distances(found, rollout.valid)  # [T]
        episodic = self.inverse_similarity(found, mean)[:, env] * rollout.valid[:, env]
        squares = all_distances(seen.next_obs[:, env], seen.obs[:, env]).square()  # [T, T]
        compared = Compared.of(
            {"dist²": squares}, squares, outside(first[:, env], last, len(last)), self.options.neighbours
        )
        figures = {"nearest dist²": found[:, env, 0], "mean dist²": mean, "episodic reward": episodic}
        if self.rnd is None:
            return Explanation("r = 1 ÷ similarity to the k nearest", figures, compared, episodic)
        factor = self.rnd.lifelong_factor(rollout)[0][:, env]
        figures["lifelong factor"] = factor
        equation = "r = lifelong factor ÷ similarity to the k nearest"
        return Explanation(equation, figures, compared, episodic * factor)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        now, then = self.transitions(batch)  # [B, H]
        loss, metrics = self.inverse_model.loss(now, then, batch.actions)
        if self.rnd is None:
            return loss, metrics
        rnd_loss, rnd_metrics = self.rnd.loss(batch)
        return loss + rnd_loss, {**metrics, **rnd_metrics}

    def extra_state(self) -> dict[str, Any]:
        return {"distance_mean": self.distance_mean.state_dict(), "rnd": self.rnd.state() if self.rnd else None}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.distance_mean.load_state_dict(state["distance_mean"])
        if self.rnd:
            self.rnd.load_state(state["rnd"])
