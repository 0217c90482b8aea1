"""The reward model with all that belongs to it."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from deir.algorithm.functional import moments
from deir.algorithm.networks import Encoder, encoder_kind, make_encoder
from deir.algorithm.ops import Ops, PlainOps
from deir.algorithm.rewards import make_reward
from deir.algorithm.rewards.base import Context
from deir.algorithm.types import Metrics, Rollout
from deir.config import Config, RewardConfig
from deir.errors import TrainingDiverged
from deir.seeding import derive, torch_generator


class RewardScale:
    """What the policy is paid for raw rewards: β (r - μ)/(σ + 1e-5), by the moving, corrected moments over rollouts."""

    def __init__(self, config: RewardConfig) -> None:
        self.beta, self.normalize = config.beta, config.normalize
        self.moments = moments(config.momentum, corrected=True)

    @property
    def average(self) -> float:
        """The running mean of raw rewards so far."""
        return self.moments.mean

    def __call__(self, raw: Tensor, valid: Tensor) -> Tensor:
        """raw, valid: [T, N] -> [T, N], zero on dummy steps"""
        self.moments.update(raw[valid])
        return self.beta * (self.moments.normalize(raw) if self.normalize else raw) * valid


class RewardModel:
    """The reward method, its optimiser and its state from rollout to rollout: `compute`, then `update`."""

    def __init__(
        self,
        config: Config,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        ops: Ops | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        """`encoder`: for the methods that read a policy's embeddings; without it a copy that `compute` refreshes."""
        self.config = config
        self.ops: Ops = ops or PlainOps()
        self.device = torch.device(config.device)
        torch.manual_seed(derive(config.seed, "init", "reward"))
        kind = encoder_kind(config.network.encoder, observation_space, images="impala")
        own = make_encoder(kind, observation_space, config.network.features, config.network.norm)
        self.encoder = (encoder or own).to(self.device)
        context = Context(observation_space, action_space, config, self.ops, self.encoder)
        self.reward = make_reward(context).to(self.device)
        self.optimizer = self.ops.optimizer(self.reward, config.ppo, "reward model") if self.reward.learns else None
        self.generator = torch_generator(config.seed, "model")
        self.state = self.reward.initial_state(config.env.n_envs)
        self.rollout: Rollout | None = None

    @property
    def reads_policy(self) -> bool:
        return any(getattr(module, "policy_encoder", ()) for module in self.reward.modules())

    def compute(self, rollout: Rollout, average: float, encoder: Encoder | None = None) -> Tensor:
        """Raw rewards [T, N]; `average` is the running mean of earlier ones, `encoder` the policy's."""
        if self.reads_policy and encoder is not None:
            self.encoder.load_state_dict(encoder.state_dict())
        raw, self.state = self.reward.compute(rollout, self.state)
        self.reward.remember(rollout, raw, average)
        self.rollout = rollout
        return raw

    def update(self) -> Metrics:
        """Learns from the rollout just computed."""
        config, rollout = self.config.reward, self.rollout
        metrics: Metrics = {}
        enough = rollout is not None and len(rollout.valid_indices()) > 1  # batch normalisation needs two
        if self.optimizer is not None and rollout is not None and enough:
            self.reward.train()
            with self.ops.undisturbed():
                batches = self.reward.batches(rollout, self.state, config.epochs, config.minibatch_size, self.generator)
                metrics = self.ops.train_model(self.reward, self.optimizer, batches)
            check_finite(self.reward, "reward model")
        self.state, self.rollout = self.state.after_update(), None
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {
            "reward": self.reward.state_dict(),
            "extra": self.reward.extra_state(),
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            "generator": self.generator.get_state(),
            "carry": self.state.tensors(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A carry of None stands for fresh episodes."""
        self.reward.load_state_dict(state["reward"])
        self.reward.load_extra_state(state["extra"])
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        if state["carry"] is not None:
            self.state = self.state.restored({name: tensor.to(self.device) for name, tensor in state["carry"].items()})


def check_finite(network: torch.nn.Module, owner: str) -> None:
    if torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).sum().isfinite():
        return
    for name, parameter in network.named_parameters():
        if not parameter.isfinite().all():
            raise TrainingDiverged(f"the {owner}'s parameter {name} is not finite")
