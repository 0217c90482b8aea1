"""DEIR where observations never repeat, first visits where they do: exact counts say more than learned distances.

r_t = (1 - w) r_DEIR + w g_t m_DEIR/m_g

g_t = max{N(o_{t+1})^-½ - α N(o_t)^-½, 0} · 1[o_{t+1} is visited for the first time in the episode]

That is NovelD's reward with lifelong arrivals N, counted, in place of a predictor's error. w tells how far counting can
be trusted: 1 - (distinct ones)/(all) of the rollout's next observations. With noise, w = 0 and the reward is DEIR's to
the last bit. m are running means of what the two parts pay at first visits, so that both are in DEIR's units.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.functional import RunningMean
from deir.algorithm.memory import EpisodicHistory, LifelongCounts
from deir.algorithm.rewards.base import Context, RewardState
from deir.algorithm.rewards.deir import Deir
from deir.algorithm.types import Rollout
from deir.algorithm.visits import first_visits, no_visits, observation_keys

MOMENTUM = 0.9  # of the running means, that of DEIR's own normalisation


class DeirVisits(Deir):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.alpha = context.config.reward.noveld.alpha
        self.counts = LifelongCounts()
        self.novelty_mean, self.gain_mean = RunningMean(MOMENTUM), RunningMean(MOMENTUM)

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
        assert after.history is not None
        rewards = self.together(rollout, novelty, names, first & rollout.valid)
        return rewards, replace(after, history=joined(after.history, visited))

    def together(self, rollout: Rollout, novelty: Tensor, names: Tensor, first: Tensor) -> Tensor:
        """r of DEIR's novelty [T, N], the names of the table's observations [U] and the first visits [T, N]."""
        arrived = names[rollout.next_ids[rollout.valid]]
        repeating = 1 - len(arrived.unique()) / max(1, len(arrived))  # w
        in_units = self.follow(self.novelty_mean, novelty[first])
        if repeating == 0:  # nothing is counted that never comes back: memory stays bounded
            return novelty
        self.counts.add(arrived.cpu().numpy())
        rarity = torch.from_numpy(self.counts.of(names.cpu().numpy())).to(novelty).clamp(min=1).rsqrt()  # [U]
        gain = (rarity[rollout.next_ids] - self.alpha * rarity[rollout.ids[:-1]]).clamp(min=0) * first
        scale = in_units / (self.follow(self.gain_mean, gain[first]) or 1.0)
        return (1 - repeating) * novelty + repeating * scale * gain

    @staticmethod
    def follow(mean: RunningMean, paid: Tensor) -> float:
        """The running mean after one more rollout's payments [K]."""
        return float(mean.scan(paid.double().mean()[None]))

    @torch.no_grad()
    def explain(self, rollout: Rollout, env: int) -> Explanation:
        told = super().explain(rollout, env)
        rewards = self.compute(rollout, self.initial_state(rollout.shape[1]))[0][:, env]
        assert told.rewards is not None
        figures = {**told.figures, "DEIR": told.rewards, "with first visits": rewards}
        return replace(told, equation="r = (1 - w) DEIR + w first visits", figures=figures, rewards=rewards)

    def extra_state(self) -> dict[str, Any]:
        means = {"novelty_mean": self.novelty_mean.state_dict(), "gain_mean": self.gain_mean.state_dict()}
        return {**super().extra_state(), "counts": self.counts.state_dict(), **means}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        super().load_extra_state(state)
        self.counts.load_state_dict(state["counts"])
        self.novelty_mean.load_state_dict(state["novelty_mean"])
        self.gain_mean.load_state_dict(state["gain_mean"])


def joined(embedded: EpisodicHistory, visited: EpisodicHistory) -> EpisodicHistory:
    """Embeddings and keys of the same steps as one history."""
    return EpisodicHistory({**embedded.rows, **visited.rows}, embedded.lengths)


def parted(history: EpisodicHistory) -> tuple[EpisodicHistory, EpisodicHistory]:
    """The keys of the visits, and the rest."""
    keys = {name: rows for name, rows in history.rows.items() if name == "keys"}
    rest = {name: rows for name, rows in history.rows.items() if name != "keys"}
    return EpisodicHistory(keys, history.lengths), EpisodicHistory(rest, history.lengths)
