"""State counts: an oracle that sees the full state, as an upper reference for the methods that do not.

r_t = 1[s_{t+1} is visited for the first time in the episode] / √N(s_{t+1}),  N counts all arrivals in training so far,
this one included. Where an episode ends, the next state is not known and nothing is earned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deir.algorithm.functional import occurrence_ranks
from deir.algorithm.memory import EpisodicHistory, LifelongCounts
from deir.algorithm.rewards.base import IntrinsicReward
from deir.algorithm.types import Carry, Rollout
from deir.algorithm.visits import first_visits, next_states, no_visits


class StateCount(IntrinsicReward):
    needs_states = True

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.counts = LifelongCounts()

    def initial_carry(self, n_envs: int) -> Carry:
        return no_visits(n_envs).tensors()

    def compute(self, rollout: Rollout, carry: Carry) -> tuple[Tensor, Carry]:
        assert rollout.states is not None
        device = rollout.states.device  # without parameters the method has none of its own
        history = EpisodicHistory.from_tensors({name: tensor.to(device) for name, tensor in carry.items()})
        arrived, known = next_states(rollout)  # [T, N]
        first, history = first_visits(history, rollout.states[:-1], arrived, rollout.starts, including_now=True)
        rewards = torch.zeros_like(rollout.rewards)
        rewards[known] = self.count(arrived[known]).to(rewards.dtype).rsqrt()
        return rewards * first, history.tensors()

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
