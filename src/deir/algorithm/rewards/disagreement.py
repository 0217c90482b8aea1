"""Disagreement (Pathak et al., 2019): where an ensemble of forward models does not agree on what follows.

r_t = mean over features of Var_k f_k(φ(o_t), a_t)

The models differ in their initial weights and in what they learn from: each draws its own transitions of a mini-batch,
with replacement. What cannot be foretold, such as noise, they learn to give the same mean of, and so agree on. The
features φ are those of a fixed random encoder, in deviations from their mean so far, or of an inverse model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from deir.algorithm.explanation import Explanation
from deir.algorithm.networks import RunningNorm
from deir.algorithm.rewards.base import Context, ForUpdate, RewardState, embed_table
from deir.algorithm.rewards.shared import ForwardModel, InverseModel, TrajectoryModel
from deir.algorithm.types import Batch, Rollout


class Disagreement(TrajectoryModel):
    recurrent = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        options = context.config.reward.disagreement
        self.models = nn.ModuleList(ForwardModel(context, self.width, self.actions) for _ in range(options.models))
        self.scale = RunningNorm(self.width)  # random features hardly differ beside what they have in common
        self.inverse_model: InverseModel | None = None
        if options.features == "inverse":
            self.inverse_model = InverseModel(context, self.width, self.actions)
        else:
            self.encoder.requires_grad_(False)

    @property
    def ensemble(self) -> list[ForwardModel]:
        return [model for model in self.models if isinstance(model, ForwardModel)]

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        self.eval()
        embeddings = embed_table(self.ops, self.encoder, rollout.table)  # [U, F]
        if self.inverse_model is None:
            if rollout.valid.any():  # nothing has no moments
                self.scale.follow(embeddings[rollout.next_ids[rollout.valid]])
            embeddings = self.scale(embeddings)
        now = embeddings[rollout.ids[:-1].flatten()]  # [T*N, F]
        read = torch.cat([now, self.actions.vector(rollout.actions.flatten(0, 1))], 1)
        guesses = torch.stack([self.ops.head(model.head, read) for model in self.ensemble])  # [K, T*N, F]
        apart = guesses - guesses.mean(0)  # torch.var over so few rows takes ten times as long
        rewards = apart.square().mean(0).mean(-1).view(rollout.shape)
        for_update = ForUpdate(embeddings=embeddings if self.inverse_model is None else None)
        return rewards * rollout.valid, RewardState(for_update=for_update)

    def explain(self, rollout: Rollout, env: int) -> Explanation:
        rewards = self.compute(rollout, self.initial_state(rollout.shape[1]))[0][:, env]
        return Explanation("r = variance of the models' guesses", {"variance": rewards}, rewards=rewards)

    def batches(
        self, rollout: Rollout, state: RewardState, epochs: int, size: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """Each with the rows that each model draws from it."""
        for batch in list(super().batches(rollout, state, epochs, size, generator)):
            count = len(batch.actions)
            draws = torch.randint(count, (len(self.models), count), generator=generator, device="cpu")
            yield replace(batch, draws=draws.to(batch.actions.device))

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Σ_k ½ |f_k(φ_t, a_t) - φ_{t+1}|² over the transitions that model k drew; it does not shape φ."""
        assert batch.draws is not None
        if self.inverse_model is not None:
            pair = self.transitions(batch)  # [B, F]
            inverse_loss, metrics = self.inverse_model.loss(*pair, batch.actions)
            now, then = (side.detach() for side in pair)
        else:
            assert batch.embeddings is not None and batch.next_ids is not None
            now, then = (batch.embeddings[ids] for ids in (batch.observations.ids, batch.next_ids))
            inverse_loss, metrics = now.new_zeros(()), {}
        actions = self.actions.vector(batch.actions)
        losses = [
            model.errors(now[rows], actions[rows], then[rows]).mean()
            for model, rows in zip(self.ensemble, batch.draws, strict=True)
        ]
        forward_loss = torch.stack(losses).sum()
        return inverse_loss + forward_loss, {**metrics, "forward_loss": forward_loss / len(losses)}
