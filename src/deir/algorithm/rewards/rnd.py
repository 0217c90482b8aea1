"""RND (Burda et al., 2019): r_t = |g(o_{t+1}) - ĝ(o_{t+1})|², the error of predicting a fixed random network."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from deir.algorithm.networks import Encoder
from deir.algorithm.rewards.base import IntrinsicReward
from deir.algorithm.rewards.shared import RandomDistillation
from deir.algorithm.types import Batch, Carry, Rollout
from deir.config import Config


class Rnd(IntrinsicReward):
    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space[Any],
        config: Config,
        policy_encoder: Encoder | None = None,
    ) -> None:
        super().__init__()
        self.rnd = RandomDistillation(observation_space, config, policy_encoder)

    @torch.no_grad()
    def compute(self, rollout: Rollout, carry: Carry) -> tuple[Tensor, Carry]:
        errors, carry = self.rnd.errors(rollout)  # [U]
        return self.rnd.normalized(errors, rollout)[rollout.next_ids] * rollout.valid, carry

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.rnd.loss(batch)

    def extra_state(self) -> dict[str, Any]:
        return {"rnd": self.rnd.state()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.rnd.load_state(state["rnd"])
