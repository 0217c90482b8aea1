"""RIDE (Raileanu and Rocktäschel, 2020): how much an action changes what the agent sees, in features it can influence.

r_t = |φ(o_{t+1}) - φ(o_t)| / √N(o_{t+1}),   N counts the visits of the episode so far, this one included

An inverse model, which tells a_t from φ(o_t) and φ(o_{t+1}), and a forward model, which foretells φ(o_{t+1}), shape φ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.rewards.base import Context, RewardState
from deir.algorithm.rewards.shared import ForwardModel, InverseModel, TrajectoryModel
from deir.algorithm.types import Batch, Rollout
from deir.algorithm.visits import no_visits, observation_keys, visit_counts


class Ride(TrajectoryModel):
    recurrent = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.forward_weight = context.config.reward.ride.forward_weight
        self.inverse_model = InverseModel(context, self.width, self.actions)
        self.forward_model = ForwardModel(context, self.width, self.actions)

    def initial_state(self, n_envs: int) -> RewardState:
        return RewardState(history=no_visits(n_envs, self.device))

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        impact, visits, history = self.impact_and_visits(rollout, state)
        return impact / visits.sqrt() * rollout.valid, RewardState(history=history)

    def impact_and_visits(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, Tensor, EpisodicHistory]:
        """|φ(o_{t+1}) - φ(o_t)| and N(o_{t+1}), [T, N] each, and the history after the rollout."""
        assert state.history is not None
        seen, names = self.embed(rollout, state), observation_keys(rollout.table.distinct)
        impact = (seen.next_obs - seen.obs).norm(dim=-1)
        before, history = visit_counts(state.history, names[rollout.ids[:-1]], names[rollout.next_ids], rollout.starts)
        return impact, (before + 1).to(impact.dtype), history

    @torch.no_grad()
    def explain(self, rollout: Rollout, env: int) -> Explanation:
        impact, visits, _ = self.impact_and_visits(rollout, self.initial_state(rollout.shape[1]))
        figures = {"impact": impact[:, env], "visits": visits[:, env]}
        rewards = (impact / visits.sqrt() * rollout.valid)[:, env]
        return Explanation("r = impact ÷ √visits in the episode", figures, rewards=rewards)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """L = (1-w) L_I + w L_F"""
        now, then = self.transitions(batch)  # [B, F]
        inverse_loss, metrics = self.inverse_model.loss(now, then, batch.actions)
        forward_loss = self.forward_model.errors(now, self.actions.vector(batch.actions), then).mean()
        weight = self.forward_weight
        return (1 - weight) * inverse_loss + weight * forward_loss, {**metrics, "forward_loss": forward_loss}
