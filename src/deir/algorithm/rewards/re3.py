"""RE3 (Seo et al., 2021): the entropy of what a rollout has seen, estimated in the features of a random encoder.

r_t = log(1 + |y - y'|),   y = f(o_{t+1}) of a fixed random encoder f, and y' its k-th nearest neighbour among those of
the rollout's other next observations, of all environments
"""

from __future__ import annotations

import torch
from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.rewards.base import Context, IntrinsicReward, RewardState, embed_table
from deir.algorithm.rewards.shared import model_encoder
from deir.algorithm.types import Rollout


class Re3(IntrinsicReward):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.neighbours = context.config.reward.re3.neighbours
        self.encoder = model_encoder(context, context.config.network.features).requires_grad_(False)

    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        embeddings = embed_table(self.ops, self.encoder, rollout.table)  # [U, F]
        used, names, counts = rollout.next_ids[rollout.valid].unique(return_inverse=True, return_counts=True)
        rewards = embeddings.new_zeros(rollout.shape)
        if len(used):
            distances = self.kth_distances(embeddings[used], counts)  # [u]
            rewards[rollout.valid] = distances.log1p().to(rewards.dtype)[names]
        return rewards, state

    def explain(self, rollout: Rollout, env: int) -> Explanation:
        rewards = self.compute(rollout, self.initial_state(rollout.shape[1]))[0][:, env]
        figures = {f"distance to neighbour {self.neighbours}": rewards.expm1()}
        return Explanation("r = log(1 + distance to the k-th nearest of the rollout)", figures, rewards=rewards)

    def kth_distances(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The distance of each distinct row [u, F] to its k-th neighbour, where rows occur `counts` [u] times. [u]

        What occurs more than k times has its like at distance 0; of others as many copies count as there are. In a
        rollout with fewer than k others the farthest stands for the k-th.
        """
        rare = counts <= self.neighbours
        queries, keys = rows[rare], rows.repeat_interleave(counts.clamp(max=self.neighbours), 0)  # [r, F], [S, F]
        first = torch.zeros(len(queries), 1, dtype=torch.int64, device=rows.device)
        last = torch.full((len(queries),), len(keys) - 1, device=rows.device)
        k = min(self.neighbours + 1, len(keys))  # the nearest of all is the row itself
        distances = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        distances[rare] = self.ops.nearest(queries[:, None], keys[:, None], first, last, k)[:, 0, -1].sqrt()
        return distances
