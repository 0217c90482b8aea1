"""The root of DEIR's reward, once an episode: what NovelD's restriction to first visits makes of it.

r_t = √r_DEIR · 1[o_{t+1} is visited for the first time in the episode]

Equation 4 compares o_{t+1} with o_i for i < t, and not with o_t. So a step that keeps a new view earns about as much as
the one that found it. Here only the first of the two is paid. The root grows with the distance between observations,
not with its square, so first visits differ less from each other. Where observations never repeat (noise), every one is
a first visit.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.rewards.base import RewardState
from deir.algorithm.rewards.deir import Deir
from deir.algorithm.types import Rollout
from deir.algorithm.visits import first_visits, no_visits, observation_keys


class DeirVisits(Deir):
    def initial_state(self, n_envs: int) -> RewardState:
        state = super().initial_state(n_envs)
        assert state.history is not None
        return replace(state, history=joined(state.history, no_visits(n_envs, self.device)))

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        assert state.history is not None
        visited, embedded = parted(state.history)
        novelty, after = super().compute(rollout, replace(state, history=embedded))  # [T, N]
        first, visited = self.first_visits(rollout, visited)
        assert after.history is not None
        return novelty.sqrt() * first, replace(after, history=joined(after.history, visited))

    def first_visits(self, rollout: Rollout, visited: EpisodicHistory) -> tuple[Tensor, EpisodicHistory]:
        """[T, N] bool: o_{t+1} is none of o_0 … o_t; and the keys after the rollout."""
        names = observation_keys(rollout.table.distinct)  # [U]
        now, then = names[rollout.ids[:-1]], names[rollout.next_ids]  # [T, N] each
        first, visited = first_visits(visited, now, then, rollout.starts, including_now=True)
        return first & rollout.valid, visited

    @torch.no_grad()
    def explain(self, rollout: Rollout, env: int) -> Explanation:
        told = super().explain(rollout, env)
        assert told.rewards is not None
        first = self.first_visits(rollout, no_visits(rollout.shape[1], self.device))[0][:, env]
        figures = {**told.figures, "DEIR": told.rewards, "first visit": first}
        equation = f"r = √DEIR at the first visit in the episode, DEIR: {told.equation.removeprefix('r = ')}"
        return replace(told, equation=equation, figures=figures, rewards=told.rewards.sqrt() * first)


def joined(embedded: EpisodicHistory, visited: EpisodicHistory) -> EpisodicHistory:
    """Embeddings and keys of the same steps as one history."""
    return EpisodicHistory({**embedded.rows, **visited.rows}, embedded.lengths)


def parted(history: EpisodicHistory) -> tuple[EpisodicHistory, EpisodicHistory]:
    """The keys of the visits, and the rest."""
    keys = {name: rows for name, rows in history.rows.items() if name == "keys"}
    rest = {name: rows for name, rows in history.rows.items() if name != "keys"}
    return EpisodicHistory(keys, history.lengths), EpisodicHistory(rest, history.lengths)
