"""Pseudo-counts: how often the episode has been near an observation, by the kernel of NGU (Badia et al., 2020).

r_t = 1/√(Σ_k K_k + c),   K = ε/(d_n + ε),   d_n = max{d_k²/d_m² - ξ, 0}

with d_k² the squared distances of f(o_{t+1}) to its k nearest neighbours among f(o_0) … f(o_t) and d_m² their running
mean: what 1/√N is for observations that can be counted. There is no lifelong factor. The embedding f is NGU's.
"""

from __future__ import annotations

from torch import Tensor

from deir.algorithm.rewards.base import Context
from deir.algorithm.rewards.ngu import Ngu


class PseudoCounts(Ngu):
    def __init__(self, context: Context) -> None:
        super().__init__(context, lifelong=False)

    def inverse_similarity(self, distances: Tensor, mean: Tensor) -> Tensor:
        """distances: [T, N, k] squared, infinite for a missing neighbour; mean: [T] -> [T, N]"""
        return (self.kernel(distances, mean).sum(-1) + self.options.pseudo_count).rsqrt()
