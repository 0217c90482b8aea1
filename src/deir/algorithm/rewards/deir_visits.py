"""DEIR, and a bonus for first visits where observations repeat: there exact equality says more than learned distances.

r_t = r_DEIR + w m 1[o_{t+1} is visited for the first time in the episode]

m is the running mean of what DEIR pays for first visits, so every one of them earns at least a typical reward, however
near to others its embedding lies. w tells how far equality can be trusted: 2 (1 - (distinct ones)/(all)) of the
rollout's next observations, at most 1, which it is where each comes twice or more on average. With noise none comes
twice: w = 0, and the reward is DEIR's to the last bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.functional import RunningMean
from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.rewards.base import Context, RewardState
from deir.algorithm.rewards.deir import Deir
from deir.algorithm.types import Rollout
from deir.algorithm.visits import first_visits, no_visits, observation_keys

MOMENTUM = 0.9  # of the running mean, that of DEIR's own normalisation


class DeirVisits(Deir):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.typical = RunningMean(MOMENTUM)  # m

    def initial_state(self, n_envs: int) -> RewardState:
        state = super().initial_state(n_envs)
        assert state.history is not None
        return replace(state, history=joined(state.history, no_visits(n_envs, self.device)))

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        assert state.history is not None
        visited, embedded = parted(state.history)
        novelty, after = super().compute(rollout, replace(state, history=embedded))  # [T, N]
        names = observation_keys(rollout.table.distinct)  # [U]
        first, visited = first_visits(
            visited, names[rollout.ids[:-1]], names[rollout.next_ids], rollout.starts, including_now=True
        )
        first &= rollout.valid
        arrived = names[rollout.next_ids[rollout.valid]]
        repeating = min(1.0, 2 * (1 - len(arrived.unique()) / max(1, len(arrived))))  # w
        typical = float(self.typical.scan(novelty[first].double().mean()[None]))
        assert after.history is not None
        return novelty + repeating * typical * first, replace(after, history=joined(after.history, visited))

    @torch.no_grad()
    def explain(self, rollout: Rollout, env: int) -> Explanation:
        told = super().explain(rollout, env)
        rewards = self.compute(rollout, self.initial_state(rollout.shape[1]))[0][:, env]
        assert told.rewards is not None
        figures = {**told.figures, "DEIR": told.rewards, "with first visits": rewards}
        return replace(told, equation="r = DEIR + its mean at first visits", figures=figures, rewards=rewards)

    def extra_state(self) -> dict[str, Any]:
        return {**super().extra_state(), "typical": self.typical.state_dict()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        super().load_extra_state(state)
        self.typical.load_state_dict(state["typical"])


def joined(embedded: EpisodicHistory, visited: EpisodicHistory) -> EpisodicHistory:
    """Embeddings and keys of the same steps as one history."""
    return EpisodicHistory({**embedded.rows, **visited.rows}, embedded.lengths)


def parted(history: EpisodicHistory) -> tuple[EpisodicHistory, EpisodicHistory]:
    """The keys of the visits, and the rest."""
    keys = {name: rows for name, rows in history.rows.items() if name == "keys"}
    rest = {name: rows for name, rows in history.rows.items() if name != "keys"}
    return EpisodicHistory(keys, history.lengths), EpisodicHistory(rest, history.lengths)
