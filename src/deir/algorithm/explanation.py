"""Why a step earned its intrinsic reward: the figures it was made of, for a person to look at."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Compared:
    """The earlier steps of the episode that o_{t+1} was compared with. Column i of a row [T] stands for o_i."""

    distances: dict[str, Tensor]  # [T, T] each, by name
    scores: Tensor  # [T, T] what they amount to; infinite where o_{t+1} is not compared with o_i
    nearest: Tensor  # [T, k] the columns with the smallest scores, the smallest first; -1 where there are fewer

    @classmethod
    def of(cls, distances: dict[str, Tensor], scores: Tensor, outside: Tensor, k: int = 1) -> Compared:
        """outside: [T, T] bool, what is not compared"""
        scores = scores.masked_fill(outside, torch.inf)
        best = scores.sort(dim=1, stable=True)  # of equal ones the earliest
        nearest = best.indices.masked_fill(best.values.isinf(), -1)[:, :k]
        return cls(distances, scores, nearest)

    def at_nearest(self, values: Tensor) -> Tensor:
        """Of each row [T, T] the entry of the nearest step; not a number where there is none. [T]"""
        first = self.nearest[:, 0]
        found = values.gather(1, first.clamp(min=0)[:, None])[:, 0]
        return found.masked_fill(first < 0, torch.nan)


@dataclass(frozen=True)
class Explanation:
    """What a method can tell of one environment's T steps; by default nothing more than the reward itself."""

    equation: str = ""  # how the reward comes from the figures
    figures: dict[str, Tensor] = field(default_factory=dict)  # [T] each, by name; a bool for yes or no
    compared: Compared | None = None
    rewards: Tensor | None = None  # [T] what the figures give, which must be what `compute` gives
