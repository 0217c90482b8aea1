"""NovelD (Zhang et al., 2021): what is newer than where the agent came from, once an episode.

r_t = max{n(o_{t+1}) - α n(o_t), 0} · 1[o_{t+1} is visited for the first time in the episode],  n(o) = |g(o) - ĝ(o)|
"""

from __future__ import annotations

import torch
from torch import Tensor

from deir.algorithm.episodic import episode_first_positions, first_occurrences
from deir.algorithm.explanation import Compared, Explanation
from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.rewards.base import Context, ForUpdate, RewardState
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

    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        then, now, for_update = self.novelties(rollout)
        gain = then - self.options.alpha * now  # [T, N]
        assert state.history is not None
        first, history = self.first_visits(rollout, state.history)
        return gain.clamp(min=0) * first, RewardState(history=history, for_update=for_update)

    def novelties(self, rollout: Rollout) -> tuple[Tensor, Tensor, ForUpdate]:
        """n(o_{t+1}) and n(o_t), [T, N] each, and what the update needs."""
        errors, for_update = self.rnd.errors(rollout)
        novelty = self.rnd.normalized(errors.sqrt(), rollout)  # [U]
        return novelty[rollout.next_ids], novelty[rollout.ids[:-1]], for_update

    def explain(self, rollout: Rollout, env: int) -> Explanation:
        """Both novelties, and the step at which o_{t+1} was seen before, if it was."""
        then, now, _ = self.novelties(rollout)
        state = self.initial_state(rollout.shape[1])
        assert state.history is not None
        visits, _ = self.first_visits(rollout, state.history)
        began = episode_first_positions(rollout.starts[:-1], state.history.lengths)
        keys, next_keys, _ = self.visit_keys(rollout)
        earliest = first_occurrences(keys, began, next_keys, began)[:, env]  # T without any
        times = torch.arange(len(earliest), device=earliest.device)
        seen_at = torch.where(earliest <= times, earliest, -1)
        first = visits[:, env]
        gain = (then - self.options.alpha * now)[:, env].clamp(min=0)
        return Explanation(
            f"r = max(novelty now - {self.options.alpha:g} · novelty before, 0) at the first visit in the episode",
            {"novelty now": then[:, env], "novelty before": now[:, env], "first visit": first},
            Compared({}, gain.new_full((len(gain),) * 2, torch.inf), seen_at[:, None]),
            gain * first,
        )

    def visit_keys(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """What names the visits at t and t+1, and whether the latter is known, [T, N] each."""
        if self.needs_states:
            assert rollout.states is not None
            return rollout.states[:-1], *next_states(rollout)
        names = observation_keys(rollout.table.distinct)  # [U]
        return names[rollout.ids[:-1]], names[rollout.next_ids], rollout.valid

    def first_visits(self, rollout: Rollout, history: EpisodicHistory) -> tuple[Tensor, EpisodicHistory]:
        """[T, N] bool: o_{t+1}, or the state behind it, is none of those at 0 … t. An unknown state is no visit."""
        keys, next_keys, counted = self.visit_keys(rollout)
        first, history = first_visits(history, keys, next_keys, rollout.starts, including_now=True)
        return first & counted, history
