"""ICM (Pathak et al., 2017): what the agent cannot foresee of the consequences of its actions.

r_t = ½ |f(φ_t, a_t) - φ_{t+1}|², where an inverse model, which tells a_t from φ_t and φ_{t+1}, shapes φ; φ_t is the
trajectory embedding, as it stands for the state where that is only partially observable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.rewards.base import Context, RewardState
from deir.algorithm.rewards.shared import ForwardModel, InverseModel, TrajectoryModel
from deir.algorithm.types import Batch, Rollout


class Icm(TrajectoryModel):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.forward_weight = context.config.reward.icm.forward_weight
        self.inverse_model = InverseModel(context, self.width, self.actions)
        self.forward_model = ForwardModel(context, self.width, self.actions)

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        self.eval()
        seen = self.embed(rollout, state)
        then = self.next_trajectories(seen).flatten(0, 1)  # [T*N, H]
        actions = self.actions.vector(rollout.actions.flatten(0, 1))  # [T*N, A]
        rewards = self.forward_model.errors(seen.after.flatten(0, 1), actions, then).view(rollout.shape)
        return rewards * rollout.valid, self.state_after(seen)

    def explain(self, rollout: Rollout, env: int) -> Explanation:
        errors = self.compute(rollout, self.initial_state(rollout.shape[1]))[0][:, env]
        return Explanation("r = ½ |f(φ_t, a_t) - φ_{t+1}|²", {"forward error": errors}, rewards=errors)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """L = (1-w) L_I + w L_F; L_F reaches the embeddings of both sides, as in the paper's joint problem."""
        now, then = self.transitions(batch)  # [B, H]
        inverse_loss, metrics = self.inverse_model.loss(now, then, batch.actions)
        forward_loss = self.forward_model.errors(now, self.actions.vector(batch.actions), then).mean()
        weight = self.forward_weight
        return (1 - weight) * inverse_loss + weight * forward_loss, {**metrics, "forward_loss": forward_loss}
