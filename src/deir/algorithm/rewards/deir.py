"""DEIR: episodic novelty scaled by the distance of trajectories, on the embeddings of a discriminative model.

Equation 4:  r_t = min_{0 ≤ i < t} dist²(e_obs_i, e_obs_{t+1}) / (dist(e_traj_i, e_traj_t) + ε)

The discriminator Dsc(o_t, a_t, o_x) tells whether o_x is the observation that followed, or one drawn from a queue of
recent novel observations (Section 3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deir.algorithm.episodic import distances, episode_first_positions, outside, repeats_in_episode
from deir.algorithm.explanation import Compared, Explanation
from deir.algorithm.layers import head
from deir.algorithm.memory import EpisodicHistory, ObservationQueue
from deir.algorithm.rewards.base import Context, RewardState
from deir.algorithm.rewards.shared import Trajectories, TrajectoryModel
from deir.algorithm.types import Batch, Rollout, Shared, concatenate


class EpisodicNovelty(TrajectoryModel):
    """Equation 4 on whatever embeddings the model learns."""

    mutual_information = True  # without it, the distance of observations alone

    def __init__(self, context: Context) -> None:
        super().__init__(context, context.config.reward.deir.features)
        self.options = context.config.reward.deir

    def initial_state(self, n_envs: int) -> RewardState:
        widths = {"obs": self.encoder.features, **({"traj": self.width} if self.mutual_information else {})}
        return replace(super().initial_state(n_envs), history=EpisodicHistory.empty(n_envs, widths, self.device))

    @torch.no_grad()
    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        assert state.history is not None
        history, seen, pairing = state.history, self.embed(rollout, state), self.options.pairing
        query_traj, key_traj = self.compared_trajectories(seen)
        new = {"obs": seen.obs, **({"traj": key_traj} if self.mutual_information else {})}
        first = episode_first_positions(rollout.starts[:-1], history.lengths)  # [T, N]
        last = torch.arange(len(first), device=first.device) + history.depth - (1 if pairing == "eq4" else 0)
        keys = {name: history.parts(name, rows) for name, rows in new.items()}  # [L+T, N, F] in parts
        if self.mutual_information:
            repeated = repeats_in_episode(rollout.ids[:-1], rollout.next_ids, first, last, history.depth)
            rewards = self.ops.min_ratio(
                seen.next_obs, query_traj, keys["obs"], keys["traj"], first, last, self.options.eps, repeated
            )
        else:
            nearest = self.ops.nearest(seen.next_obs, torch.cat(keys["obs"]), first, last, 1)[..., 0].sqrt()
            rewards = torch.where(nearest.isinf(), 0.0, nearest).to(seen.obs.dtype)
        history = history.advanced(new, first[-1], rollout.starts[-1])
        return rewards * rollout.valid, self.state_after(seen, history)

    def compared_trajectories(self, seen: Trajectories) -> tuple[Tensor, Tensor]:
        """The trajectory embeddings that stand for now, and those for earlier steps. [T, N, H] each"""
        pairing = self.options.pairing
        query = self.next_trajectories(seen) if pairing == "a1" else seen.after
        return query, seen.before if pairing == "published" else seen.after

    @torch.no_grad()
    def explain(self, rollout: Rollout, env: int) -> Explanation:
        """The whole row of distances to earlier steps, and the step that gave the minimum."""
        seen = self.embed(rollout, self.initial_state(rollout.shape[1]))
        first = episode_first_positions(rollout.starts[:-1], rollout.starts.new_zeros(rollout.shape[1]).long())[:, env]
        last = torch.arange(len(first), device=first.device) - (1 if self.options.pairing == "eq4" else 0)
        obs = distances(seen.next_obs[:, env], seen.obs[:, env])  # [T, T]
        by_name, scores, equation = {"dist(obs)": obs}, obs, "r = min dist(obs)"
        if self.mutual_information:
            query_traj, key_traj = self.compared_trajectories(seen)
            traj = distances(query_traj[:, env], key_traj[:, env])  # [T, T]
            by_name["dist(traj)"], scores = traj, obs.square() / (traj + self.options.eps)
            equation = "r = min dist(obs)² ÷ (dist(traj) + ε)"
        compared = Compared.of(by_name, scores, outside(first, last, len(first)))
        figures = {name: compared.at_nearest(values) for name, values in by_name.items()}
        rewards = compared.at_nearest(scores).nan_to_num(0.0) * rollout.valid[:, env]
        return Explanation(equation, figures, compared, rewards)


class Deir(EpisodicNovelty):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        config = context.config
        self.max_queue_bytes = config.checkpoint.max_queue_mb * 2**20
        mlp = self.options.mlp or config.network.mlp
        self.discriminator = head(config.network.norm, [2 * self.width + self.actions.width, mlp, mlp, 1])
        dtype = torch.uint8 if context.observation_space.dtype == "uint8" else torch.float32
        self.queue = ObservationQueue(self.options.queue_size, context.observation_shape, dtype)

    def remember(self, rollout: Rollout, rewards: Tensor, average: float) -> None:
        """Algorithm A2: observations whose reward is not below the running average join the queue."""
        observations = rollout.table.distinct
        if len(self.queue) == 0:
            self.queue.push(observations[rollout.ids[0]])
        novel = (rewards >= average) & rollout.valid
        self.queue.push(observations[rollout.next_ids[novel]])

    def batches(
        self, rollout: Rollout, state: RewardState, epochs: int, size: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """Each with observations from the queue, offered in the place of the true next ones."""
        plain = list(super().batches(rollout, state, epochs, size, generator))
        drawn = [self.draw_fakes(batch, generator) for batch in plain]
        slots = [slot for slot, _ in drawn]
        table, renamed, offered = self.ops.extend(rollout.table, self.queue.storage, slots)
        for batch, (_, differs), fakes in zip(plain, drawn, offered, strict=True):
            yield replace(
                batch,
                observations=table.rows(renamed[batch.observations.ids]),
                next_observations=table.rows(renamed[batch.next_observations.ids]),
                fakes=fakes,
                fake_differs=differs,
            )

    def draw_fakes(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Slots of the queue [B], drawn twice where the first equals the true next observation; and which differ."""
        draws = torch.randint(len(self.queue), (2, len(batch.actions)), generator=generator, device="cpu")
        differs = [self.ops.differ(self.queue.storage, draw, batch.next_observations) for draw in draws]
        return torch.where(differs[0], draws[0], draws[1]), (differs[0] | differs[1]).to(batch.actions.device)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Binary cross-entropy, true and fake transitions weighted equally."""
        assert batch.fakes is not None and batch.fake_differs is not None
        offered = concatenate([batch.next_observations, batch.fakes])  # true and fake o_{t+1}
        now, then = self.observe([batch.observations, offered])
        traj = self.advance(now, batch.hidden)  # [B, H]
        next_traj = self.advance(then, traj)  # [2B, H]
        rows = torch.arange(len(next_traj), device=traj.device)
        taken = Shared(self.actions.vector(batch.actions), rows % len(traj))
        parts = [Shared(traj, taken.rows), Shared(next_traj, rows), taken]
        logits = self.ops.head_of_parts(self.discriminator, parts)[:, 0]  # [2B]
        true, fake = logits.chunk(2)
        differs = batch.fake_differs.to(logits.dtype)
        true_loss = F.softplus(-true).mean()  # -log Dsc
        fake_loss = (F.softplus(fake) * differs).sum() / differs.sum().clamp(min=1)  # -log(1 - Dsc)
        with torch.no_grad():
            accuracy = 0.5 * (
                (true > 0).float().mean() + ((fake < 0).float() * differs).sum() / differs.sum().clamp(min=1)
            )
        return 0.5 * (true_loss + fake_loss), {
            "discriminator_accuracy": accuracy,
            "fake_valid_rate": differs.mean(),
        }

    def extra_state(self) -> dict[str, Any]:
        return {"queue": self.queue.state_dict() if self.queue.nbytes <= self.max_queue_bytes else None}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        if state["queue"] is not None:
            self.queue.load_state_dict(state["queue"])
