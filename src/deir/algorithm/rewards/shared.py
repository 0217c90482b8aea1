"""What several methods are made of: trajectory embeddings, inverse and forward models, random distillation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deir.algorithm.actions import Actions, actions_of
from deir.algorithm.functional import moments
from deir.algorithm.layers import head
from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.networks import Encoder, encoder_kind, make_encoder
from deir.algorithm.rewards.base import Context, ForUpdate, IntrinsicReward, RewardState, embed_table
from deir.algorithm.types import Batch, Rollout, Rows, Shared, concatenate
from deir.errors import UserError


def model_encoder(context: Context, features: int) -> Encoder:
    """The encoder of the reward models: the grid's, or the widened DQN network for images."""
    config, space = context.config, context.observation_space
    kind = encoder_kind(config.reward.encoder, space, images="dqn", field="reward.encoder")
    return make_encoder(kind, space, features, config.network.norm)


INPUT_LIMIT = 5.0  # deviations at which random distillation cuts its inputs


class Trajectories(NamedTuple):
    """A rollout in embeddings."""

    obs: Tensor  # [T, N, F] e_obs_t
    next_obs: Tensor  # [T, N, F] of the true o_{t+1}
    before: Tensor  # [T, N, H] the memory before o_t
    after: Tensor  # [T, N, H] e_traj_t


class TrajectoryModel(IntrinsicReward):
    """Encoder and GRU of the discriminator's shapes, on which a method puts its heads (Appendix A.5)."""

    recurrent = True

    def __init__(self, context: Context, features: int | None = None) -> None:
        super().__init__(context)
        config = context.config
        features = features or config.network.features
        self.actions = actions_of(context.action_space)
        self.encoder = model_encoder(context, features)
        self.gru = nn.GRUCell(features, config.network.hidden) if self.recurrent else None
        self.width = config.network.hidden if self.recurrent else features  # of a trajectory embedding

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def initial_state(self, n_envs: int) -> RewardState:
        width = self.gru.hidden_size if self.gru is not None else 0
        return RewardState(torch.zeros(n_envs, width, device=self.device))

    def observe(self, observations: list[Rows | Tensor]) -> list[Shared]:
        """What `advance` takes of batches of observations, embedded as one batch: the GRU's inputs, or without an RNN
        the embeddings."""
        embedded = self.ops.embed(self.encoder, concatenate(observations))
        observed = Shared(embedded.gather()) if self.gru is None else self.ops.gru_inputs(self.gru, embedded)
        return observed.split([len(part) for part in observations])

    def advance(self, observed: Shared, memory: Tensor | None) -> Tensor:
        """e_traj after one more observation; without an RNN its embedding. [B, H]"""
        if self.gru is None:
            return observed.gather()
        assert memory is not None
        return self.ops.gru_step(self.gru, observed, memory)

    def embed(self, rollout: Rollout, state: RewardState) -> Trajectories:
        embeddings = embed_table(self.ops, self.encoder, rollout.table)  # [U, F]
        obs, next_obs = embeddings[rollout.ids[:-1]], embeddings[rollout.next_ids]  # [T, N, F]
        if self.gru is None:
            return Trajectories(obs, next_obs, obs[..., :0], obs)
        assert state.hidden is not None
        inputs = self.ops.gru_inputs(self.gru, Shared(embeddings, rollout.ids[:-1].flatten()))
        before, after = self.ops.gru_scan(self.gru, inputs, state.hidden, rollout.starts[:-1])  # [T, N, H]
        return Trajectories(obs, next_obs, before, after)

    def next_trajectories(self, seen: Trajectories) -> Tensor:
        """e_traj_{t+1} of the true next observation. [T, N, H]"""
        if self.gru is None:
            return seen.next_obs
        return self.gru(seen.next_obs.flatten(0, 1), seen.after.flatten(0, 1)).view_as(seen.after)

    def state_after(self, seen: Trajectories, history: EpisodicHistory | None = None) -> RewardState:
        if not self.recurrent:
            return RewardState(seen.before[-1], history)
        memory = seen.after[-1].clone()  # without a hold on those of all other steps
        return RewardState(memory, history, ForUpdate(memories=seen.before))

    def transitions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """e_traj_t and e_traj_{t+1} of a batch. [B, H] each"""
        now, then = self.observe([batch.observations, batch.next_observations])
        traj = self.advance(now, batch.hidden)
        return traj, self.advance(then, traj)


class InverseModel(nn.Module):
    """Which action led from one embedding to the next."""

    def __init__(self, context: Context, width: int, actions: Actions, mlp: int | None = None) -> None:
        super().__init__()
        config, self.ops = context.config, context.ops
        mlp = mlp or config.network.mlp
        self.actions = actions
        self.head = head(config.network.norm, [2 * width, mlp, mlp, actions.width])

    def loss(self, now: Tensor, then: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """L_I = -log p(a_t | φ_t, φ_{t+1}); of a Box, the squared error of its scaled action."""
        return self.actions.inverse_loss(self.ops.head(self.head, torch.cat([now, then], 1)), actions)


class ForwardModel(nn.Module):
    """The next embedding from this one and the action."""

    def __init__(self, context: Context, width: int, actions: Actions, mlp: int | None = None) -> None:
        super().__init__()
        config, self.ops = context.config, context.ops
        mlp = mlp or config.network.mlp
        self.head = head(config.network.norm, [width + actions.width, mlp, mlp, width])

    def errors(self, now: Tensor, actions: Tensor, then: Tensor) -> Tensor:
        """½ |f(φ_t, a_t) - φ_{t+1}|².   now, then: [B, H], actions: [B, A] -> [B]"""
        return 0.5 * (self.ops.head(self.head, torch.cat([now, actions], 1)) - then).square().sum(1)


class RandomDistillation(nn.Module):
    """A trained network predicts a fixed random one; where it fails, observations are new to the agent's lifetime.

    Both read the policy's embeddings, or have an encoder each. Their heads are wider than those of other models, so
    that the error does not vanish early (Appendix A.5).
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        config, policy_encoder, self.ops = context.config, context.policy_encoder, context.ops
        self.options, norm = config.reward.rnd, config.network.norm
        self.policy_encoder: tuple[Encoder, ...] = ()  # in a tuple: neither trained nor saved here
        self.target_encoder: Encoder | None = None
        self.encoder: Encoder | None = None
        features, width = config.network.features, self.options.mlp or 2 * config.network.mlp
        if config.reward.embeddings == "own":
            self.target_encoder = model_encoder(context, features)
            self.encoder = model_encoder(context, features)
        elif policy_encoder is None:
            raise UserError("reward.embeddings: 'policy' needs a policy's encoder, expected 'own' without one")
        else:
            self.policy_encoder, features = (policy_encoder,), policy_encoder.features
        self.target = head(norm, [features, width, width // 2])
        self.predictor = head(norm, [features, width, width, width // 2])
        for fixed in self.fixed():
            fixed.requires_grad_(False)
        self.moments = moments(self.options.error_momentum)
        self.train()

    def fixed(self) -> list[nn.Module]:
        return [self.target] if self.target_encoder is None else [self.target, self.target_encoder]

    def train(self, mode: bool = True) -> RandomDistillation:
        """The target stays in evaluation mode: its normalisation layers must not follow the data."""
        super().train(mode)
        for fixed in self.fixed():
            fixed.eval()
        return self

    def policy_embeddings(self, rollout: Rollout) -> Tensor:
        """(e - μ)/σ of the policy's embeddings by the rollout's own moments, cut at ±5, as RND treats observations.

        Their scale moves as the policy learns, most of all with its first update, and the error would follow it. [U, F]
        """
        embeddings = embed_table(self.ops, self.policy_encoder[0], rollout.table)
        variance, mean = torch.var_mean(embeddings[rollout.next_ids.flatten()], 0, correction=0)
        return ((embeddings - mean) / (variance.sqrt() + 1e-5)).clamp(-INPUT_LIMIT, INPUT_LIMIT)

    @torch.no_grad()
    def errors(self, rollout: Rollout) -> tuple[Tensor, ForUpdate]:
        """|g(o) - ĝ(o)|² of every observation of the table [U], and what the update needs."""
        self.eval()
        if self.encoder is None or self.target_encoder is None:
            inputs = self.policy_embeddings(rollout)
            targets = self.ops.head(self.target, inputs)
            for_update = ForUpdate(embeddings=inputs, targets=targets)
        else:
            inputs = embed_table(self.ops, self.encoder, rollout.table)
            targets = self.ops.head(self.target, embed_table(self.ops, self.target_encoder, rollout.table))
            for_update = ForUpdate(targets=targets)
        return (self.ops.head(self.predictor, inputs) - targets).square().sum(1), for_update

    def normalized(self, errors: Tensor, rollout: Rollout) -> Tensor:
        """(e - μ)/σ by the moments over this and earlier rollouts' steps. errors: [U]"""
        self.moments.update(errors[rollout.next_ids[rollout.valid]])
        return self.moments.normalize(errors, 1e-8) if self.options.normalize_error else errors

    def lifelong_factor(self, rollout: Rollout) -> tuple[Tensor, ForUpdate]:
        """min{max{1 + (e - μ)/σ, 1}, L} of o_{t+1} [T, N], and what the update needs."""
        errors, for_update = self.errors(rollout)
        factors = (1 + self.normalized(errors, rollout)).clamp(1, self.options.max_factor)
        return factors[rollout.next_ids], for_update

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The error as a mean over outputs too, so that beside another loss it does not use up the gradient's norm."""
        assert batch.targets is not None and batch.next_ids is not None
        if self.encoder is not None:
            inputs = self.ops.embed(self.encoder, batch.next_observations)
        else:
            assert batch.embeddings is not None
            inputs = Shared(batch.embeddings, batch.next_ids)
        loss = self.ops.prediction_loss(self.predictor, inputs, batch.targets, batch.next_ids)
        return loss, {"rnd_loss": loss}

    def state(self) -> dict[str, Any]:
        return self.moments.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        self.moments.load_state_dict(state)
