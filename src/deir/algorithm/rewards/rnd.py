"""RND (Burda et al., 2019): r_t = |g(o_{t+1}) - ĝ(o_{t+1})|², the error of predicting a fixed random network."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.rewards.base import Context, IntrinsicReward, RewardState
from deir.algorithm.rewards.shared import RandomDistillation
from deir.algorithm.types import Batch, Rollout


class Rnd(IntrinsicReward):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.rnd = RandomDistillation(context)

    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        errors, for_update = self.rnd.errors(rollout)  # [U]
        rewards = self.rnd.normalized(errors, rollout)[rollout.next_ids] * rollout.valid
        return rewards, RewardState(for_update=for_update)

    def explain(self, rollout: Rollout, env: int) -> Explanation:
        errors, _ = self.rnd.errors(rollout)  # [U]
        ids = rollout.next_ids[:, env]
        rewards = self.rnd.normalized(errors, rollout)[ids] * rollout.valid[:, env]
        equation = "r = (error - μ) ÷ σ" if self.rnd.options.normalize_error else "r = |g(o) - ĝ(o)|²"
        return Explanation(equation, {"prediction error": errors[ids]}, rewards=rewards)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.rnd.loss(batch)

    def extra_state(self) -> dict[str, Any]:
        return {"rnd": self.rnd.state()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.rnd.load_state(state["rnd"])
