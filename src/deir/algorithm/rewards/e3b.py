"""E3B (Henaff et al., 2022): how far an embedding lies outside the ellipsoid of the episode's embeddings.

r_t = φ(o_{t+1})ᵀ C_t⁻¹ φ(o_{t+1}),   C_t = Σ_{i ≤ t} φ(o_i) φ(o_i)ᵀ + λI over the steps i of the episode

In one-hot embeddings that is 1/(visits + λ): a count per episode, made continuous. The embedding φ is learned by an
inverse model, which tells a_t from φ(o_t) and φ(o_{t+1}). C⁻¹ follows each step by the rank-one formula

    (C + φφᵀ)⁻¹ = C⁻¹ - (C⁻¹φ)(C⁻¹φ)ᵀ / (1 + φᵀC⁻¹φ)

so that memory does not grow with the episode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deir.algorithm.explanation import Explanation
from deir.algorithm.rewards.base import Context, RewardState, embed_table
from deir.algorithm.rewards.shared import InverseModel, TrajectoryModel
from deir.algorithm.types import Batch, Rollout


@dataclass(frozen=True)
class EllipsoidState(RewardState):
    inverse: Tensor | None = None  # [N, F, F] C⁻¹ of the running episodes, in double precision


class E3b(TrajectoryModel):
    recurrent = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.ridge = context.config.reward.e3b.ridge
        self.inverse_model = InverseModel(context, self.width, self.actions)

    def initial_state(self, n_envs: int) -> EllipsoidState:
        return EllipsoidState(inverse=self.empty_episode().repeat(n_envs, 1, 1))

    def empty_episode(self) -> Tensor:
        """C⁻¹ before the first observation. [F, F]"""
        return torch.eye(self.width, dtype=torch.float64, device=self.device) / self.ridge

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: EllipsoidState) -> tuple[Tensor, EllipsoidState]:
        assert state.inverse is not None
        seen, inverse, empty = self.embed(rollout, state), state.inverse.clone(), self.empty_episode()
        rewards = []
        for obs, next_obs, start in zip(seen.obs.double(), seen.next_obs.double(), rollout.starts[:-1], strict=True):
            inverse[start] = empty
            direction = torch.bmm(inverse, obs[..., None])  # [N, F, 1] C⁻¹φ
            length = 1 + (obs[..., None] * direction).sum(1, keepdim=True)  # [N, 1, 1]
            inverse.baddbmm_(direction / length, direction.mT, alpha=-1)
            rewards.append((next_obs * torch.bmm(inverse, next_obs[..., None])[..., 0]).sum(-1))
        found = torch.stack(rewards).to(seen.obs.dtype)  # [T, N]
        return found * rollout.valid, EllipsoidState(inverse=inverse)

    def explain(self, rollout: Rollout, env: int) -> Explanation:
        rewards = self.compute(rollout, self.initial_state(rollout.shape[1]))[0][:, env]
        lengths = embed_table(self.ops, self.encoder, rollout.table).square().sum(1)[rollout.next_ids[:, env]]
        return Explanation("r = φᵀ C⁻¹ φ", {"|φ|²": lengths, "outside the ellipsoid": rewards}, rewards=rewards)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.inverse_model.loss(*self.transitions(batch), batch.actions)
