"""ICM (Pathak et al., 2017): what the agent cannot foresee of the consequences of its actions.

r_t = ½ |f(φ_t, a_t) - φ_{t+1}|², where an inverse model, which tells a_t from φ_t and φ_{t+1}, shapes φ; φ_t is the
trajectory embedding, as it stands for the state where that is only partially observable.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from deir.algorithm.networks import Encoder
from deir.algorithm.rewards.shared import ForwardModel, InverseModel, TrajectoryModel
from deir.algorithm.types import Batch, Carry, Rollout
from deir.config import Config


class Icm(TrajectoryModel):
    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space[Any],
        config: Config,
        policy_encoder: Encoder | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, config)
        self.forward_weight = config.reward.icm.forward_weight
        self.inverse_model = InverseModel(config, self.width, self.actions)
        self.forward_model = ForwardModel(config, self.width, self.actions)

    @torch.no_grad()
    def compute(self, rollout: Rollout, carry: Carry) -> tuple[Tensor, Carry]:
        self.eval()
        seen = self.embed(rollout, carry)
        then = self.next_trajectories(seen).flatten(0, 1)  # [T*N, H]
        actions = self.actions.vector(rollout.actions.flatten(0, 1))  # [T*N, A]
        rewards = self.forward_model.errors(seen.after.flatten(0, 1), actions, then).view(rollout.shape)
        return rewards * rollout.valid, self.carry_on(seen)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """L = (1-w) L_I + w L_F; L_F reaches the embeddings of both sides, as in the paper's joint problem."""
        now, then = self.transitions(batch)  # [B, H]
        inverse_loss, metrics = self.inverse_model.loss(now, then, batch.actions)
        forward_loss = self.forward_model.errors(now, self.actions.vector(batch.actions), then).mean()
        weight = self.forward_weight
        return (1 - weight) * inverse_loss + weight * forward_loss, {**metrics, "forward_loss": forward_loss}
