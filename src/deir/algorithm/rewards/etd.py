"""ETD (Jiang et al., 2025): how many steps away from everything the episode has seen, by a learned temporal distance.

r_t = min_{i ≤ t} d(o_i, o_{t+1}) over the steps i of the episode

d is a quasimetric of embeddings (`quasimetric.py`), since the way back can be longer. It is learned by telling which
observations follow each other: with a potential c, the logits c(y_b) - d(x_a, y_b) of the pairs of a mini-batch name
for each x_a its own y_a, and for each y_b its own x_b (InfoNCE, both ways). A pair is (o_t, o_{t+j}) of one episode,
with j geometric: P(j) ∝ γ^j over the steps that the episode and the rollout have left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from deir.algorithm.episodic import episode_first_positions, outside, repeats_in_episode
from deir.algorithm.explanation import Compared, Explanation
from deir.algorithm.layers import head
from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.quasimetric import quasimetric
from deir.algorithm.rewards.base import Context, RewardState
from deir.algorithm.rewards.shared import TrajectoryModel
from deir.algorithm.types import Batch, Rollout, concatenate


class Etd(TrajectoryModel):
    recurrent = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        network, self.gamma = context.config.network, context.config.reward.etd.gamma
        self.potential = head(network.norm, [self.width, network.mlp, network.mlp, 1])

    def initial_state(self, n_envs: int) -> RewardState:
        return RewardState(history=EpisodicHistory.empty(n_envs, {"obs": self.width}, self.device))

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        assert state.history is not None
        history, seen = state.history, self.embed(rollout, state)
        first = episode_first_positions(rollout.starts[:-1], history.lengths)  # [T, N]
        last = torch.arange(len(first), device=first.device) + history.depth  # o_t is among the earlier ones
        keys = history.extended("obs", seen.obs)  # [L+T, N, F]
        repeated = repeats_in_episode(rollout.ids[:-1], rollout.next_ids, first, last, history.depth)
        rewards = self.ops.min_quasimetric(seen.next_obs, keys, first, last, repeated)
        history = history.advanced({"obs": seen.obs}, first[-1], rollout.starts[-1])
        return rewards * rollout.valid, RewardState(history=history)

    @torch.no_grad()
    def explain(self, rollout: Rollout, env: int) -> Explanation:
        """The whole row of distances from earlier steps, and the step that gave the minimum."""
        seen = self.embed(rollout, self.initial_state(rollout.shape[1]))
        first = episode_first_positions(rollout.starts[:-1], rollout.starts.new_zeros(rollout.shape[1]).long())[:, env]
        distances = quasimetric(seen.obs[:, env], seen.next_obs[:, env]).T  # [T, T]
        last = torch.arange(len(first), device=first.device)
        compared = Compared.of({"d": distances}, distances, outside(first, last, len(first)))
        nearest = compared.at_nearest(distances)
        return Explanation("r = min d(o_i, o_{t+1})", {"d": nearest}, compared, nearest * rollout.valid[:, env])

    def batches(
        self, rollout: Rollout, state: RewardState, epochs: int, size: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """Each with an observation that comes later in the episode of each transition."""
        left, envs = steps_left(rollout).flatten(), rollout.shape[1]
        next_ids = rollout.next_ids.flatten()
        for batch in list(super().batches(rollout, state, epochs, size, generator)):
            assert batch.indices is not None
            uniform = torch.rand(len(batch.indices), dtype=torch.float64, generator=generator, device="cpu")
            steps = truncated_geometric(uniform.to(left.device), left[batch.indices], self.gamma)  # [B] j
            yield replace(batch, later=rollout.table.rows(next_ids[batch.indices + (steps - 1) * envs]))

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """-½ mean_b {log softmax_a + log softmax_b} of the logits at a = b"""
        assert batch.later is not None
        observed = self.ops.embed(self.encoder, concatenate([batch.observations, batch.later]))
        earlier, later = observed.split([len(batch.observations), len(batch.later)])
        distances = self.ops.quasimetric(earlier, later)  # [B, B]
        logits = self.ops.head(self.potential, later.gather())[:, 0] - distances
        own = torch.arange(len(logits), device=logits.device)
        loss = 0.5 * (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own))
        with torch.no_grad():
            accuracy = (logits.argmax(1) == own).float().mean()
        return loss, {"contrastive_accuracy": accuracy, "pair_distance": distances.diagonal().detach().mean()}


def steps_left(rollout: Rollout) -> Tensor:
    """Steps from t to the end of its episode or of the rollout, the one at t included. [T, N]"""
    times = torch.arange(len(rollout.dones), device=rollout.dones.device)[:, None].expand_as(rollout.dones)
    ends = torch.where(rollout.dones, times, len(times) - 1)
    return ends.flip(0).cummin(0).values.flip(0) - times + 1


def truncated_geometric(uniform: Tensor, most: Tensor, gamma: float) -> Tensor:
    """j from 1 to `most` with P(j) ∝ γ^j, of numbers uniform in [0, 1).   [B], [B] -> [B] int64"""
    within = -torch.expm1(most * math.log(gamma))  # 1 - γ^most
    steps = 1 + (torch.log1p(-uniform * within) / math.log(gamma)).long()
    return torch.minimum(steps, most)  # rounding
