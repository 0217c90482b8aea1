"""NovelD (Zhang et al., 2021): what is newer than where the agent came from, once an episode.

r_t = max{n(o_{t+1}) - α n(o_t), 0} · 1[o_{t+1} is visited for the first time in the episode],  n(o) = |g(o) - ĝ(o)|
"""

from __future__ import annotations

import torch
from torch import Tensor

from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.rewards.base import Context, RewardState
from deir.algorithm.rewards.rnd import Rnd
from deir.algorithm.types import Rollout
from deir.algorithm.visits import first_visits, next_states, no_visits, observation_keys


class Noveld(Rnd):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.options = context.config.reward.noveld
        self.needs_states = self.options.visits == "state"

    def initial_state(self, n_envs: int) -> RewardState:
        return RewardState(history=no_visits(n_envs, next(self.parameters()).device))

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        errors, for_update = self.rnd.errors(rollout)
        novelty = self.rnd.normalized(errors.sqrt(), rollout)  # [U]
        gain = novelty[rollout.next_ids] - self.options.alpha * novelty[rollout.ids[:-1]]  # [T, N]
        assert state.history is not None
        first, history = self.first_visits(rollout, state.history)
        return gain.clamp(min=0) * first, RewardState(history=history, for_update=for_update)

    def first_visits(self, rollout: Rollout, history: EpisodicHistory) -> tuple[Tensor, EpisodicHistory]:
        """[T, N] bool: o_{t+1}, or the state behind it, is none of those at 0 … t. An unknown state is no visit."""
        if self.needs_states:
            assert rollout.states is not None
            keys, (next_keys, counted) = rollout.states[:-1], next_states(rollout)
        else:
            names = observation_keys(rollout.table.distinct)  # [U]
            keys, next_keys, counted = names[rollout.ids[:-1]], names[rollout.next_ids], rollout.valid
        first, history = first_visits(history, keys, next_keys, rollout.starts, including_now=True)
        return first & counted, history
