"""PPO alone: no intrinsic reward."""

from __future__ import annotations

import torch
from torch import Tensor

from deir.algorithm.rewards.base import IntrinsicReward
from deir.algorithm.types import Carry, Rollout


class NoReward(IntrinsicReward):
    def __init__(self, *_: object) -> None:
        super().__init__()

    def compute(self, rollout: Rollout, carry: Carry) -> tuple[Tensor, Carry]:
        return torch.zeros_like(rollout.rewards), carry
