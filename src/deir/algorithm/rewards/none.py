"""PPO alone: no intrinsic reward."""

from __future__ import annotations

import torch
from torch import Tensor

from deir.algorithm.rewards.base import IntrinsicReward, RewardState
from deir.algorithm.types import Rollout


class NoReward(IntrinsicReward):
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        return torch.zeros_like(rollout.rewards), state
