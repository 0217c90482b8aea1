"""State counts: an oracle that sees the full state, as an upper reference for the methods that do not.

r_t = 1[s_{t+1} is visited for the first time in the episode] / √N(s_{t+1}),  N counts all arrivals in training so far,
this one included. Where an episode ends, the next state is not known and nothing is earned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.functional import occurrence_ranks
from deir.algorithm.memory import LifelongCounts
from deir.algorithm.rewards.base import Context, IntrinsicReward, RewardState
from deir.algorithm.types import Rollout
from deir.algorithm.visits import first_visits, next_states, no_visits


class StateCount(IntrinsicReward):
    needs_states = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.counts = LifelongCounts()

    def initial_state(self, n_envs: int) -> RewardState:
        return RewardState(history=no_visits(n_envs))

    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        assert rollout.states is not None and state.history is not None
        history = state.history.to(rollout.states.device)  # without parameters the method has no device of its own
        arrived, known = next_states(rollout)  # [T, N]
        first, history = first_visits(history, rollout.states[:-1], arrived, rollout.starts, including_now=True)
        rewards = torch.zeros_like(rollout.rewards)
        rewards[known] = self.count(arrived[known]).to(rewards.dtype).rsqrt()
        return rewards * first, RewardState(history=history)

    def explain(self, rollout: Rollout, env: int) -> Explanation:
        arrived, known = next_states(rollout)
        counts = torch.zeros(rollout.shape, device=arrived.device)
        counts[known] = self.count(arrived[known]).to(counts.dtype)
        history = no_visits(rollout.shape[1], arrived.device)
        first, _ = first_visits(history, rollout.states[:-1], arrived, rollout.starts, including_now=True)  # type: ignore[index]
        first = (first & known)[:, env]
        figures = {"arrivals so far": counts[:, env], "first visit": first}
        rewards = first * counts[:, env].clamp(min=1).rsqrt()
        return Explanation("r = 1 ÷ √arrivals at the first visit in the episode", figures, rewards=rewards)

    def count(self, states: Tensor) -> Tensor:
        """N of each arrival [K], in their order."""
        keys = states.cpu().numpy()
        before = torch.from_numpy(self.counts.of(keys)).to(states.device)
        self.counts.add(keys)
        return before + occurrence_ranks(states) + 1

    def extra_state(self) -> dict[str, Any]:
        return {"counts": self.counts.state_dict()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.counts.load_state_dict(state["counts"])
