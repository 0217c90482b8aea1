"""DEIR's episodic reward times a lifelong factor, the combination Section 3.2 leaves open.

r_t = r_DEIR · min{max{1 + (e - μ)/σ, 1}, L}, with e the random distillation error of o_{t+1}, as NGU scales its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.rewards.base import Context, RewardState
from deir.algorithm.rewards.deir import Deir
from deir.algorithm.rewards.shared import RandomDistillation
from deir.algorithm.types import Batch, Rollout


class DeirRnd(Deir):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.rnd = RandomDistillation(context)

    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        rewards, state = super().compute(rollout, state)
        factor, of_rnd = self.rnd.lifelong_factor(rollout)
        return rewards * factor, state.with_more_for_update(of_rnd)

    def explain(self, rollout: Rollout, env: int) -> Explanation:
        told, factor = super().explain(rollout, env), self.rnd.lifelong_factor(rollout)[0][:, env]
        assert told.rewards is not None
        return replace(
            told,
            equation=f"{told.equation} · lifelong factor",
            figures={**told.figures, "episodic reward": told.rewards, "lifelong factor": factor},
            rewards=told.rewards * factor,
        )

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = super().loss(batch)
        rnd_loss, rnd_metrics = self.rnd.loss(batch)
        return loss + rnd_loss, {**metrics, **rnd_metrics}

    def extra_state(self) -> dict[str, Any]:
        return {**super().extra_state(), "rnd": self.rnd.state()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        super().load_extra_state(state)
        self.rnd.load_state(state["rnd"])
