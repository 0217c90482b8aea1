"""The reward model with all that belongs to it, and its place beside the policy.

The policy's and the model's updates do not depend on each other. Where each is made of many small operations, which
leave a second core idle, the model learns in a thread of its own while the policy learns and collects the next rollout.
"""

from __future__ import annotations

import copy
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from deir.algorithm.functional import moments
from deir.algorithm.networks import Encoder, encoder_kind, make_encoder
from deir.algorithm.ppo import MeanMetrics
from deir.algorithm.rewards import make_reward
from deir.algorithm.rewards.base import between_rollouts
from deir.algorithm.types import Metrics, Rollout
from deir.config import Config, RewardConfig
from deir.errors import TrainingDiverged
from deir.fast.allocator import collecting_later
from deir.fast.flat_adam import FlatAdam
from deir.fast.threads import another_party, one_party_less
from deir.seeding import derive, torch_generator

State = dict[str, Any]


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


class LocalStage:
    """The reward model, which works when it is waited for."""

    overlaps = False

    def __init__(
        self,
        config: Config,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        encoder: Encoder | None = None,
    ) -> None:
        """`encoder`: for the methods that read a policy's embeddings; without it a copy that `compute` refreshes."""
        self.config = config
        self.device = torch.device(config.device)
        torch.manual_seed(derive(config.seed, "init", "reward"))
        kind = encoder_kind(config.network.encoder, observation_space, images="impala")
        own = make_encoder(kind, observation_space, config.network.features, config.network.norm)
        self.encoder = (encoder or own).to(self.device)
        self.reward = make_reward(config, observation_space, action_space, self.encoder).to(self.device)
        self.optimizer = FlatAdam(self.reward, config.ppo, "reward model") if self.reward.learns else None
        self.generator = torch_generator(config.seed, "model")
        self.carry = self.reward.initial_carry(config.env.n_envs)
        self.rollout: Rollout | None = None
        self.good: State = {}

    @property
    def reads_policy(self) -> bool:
        return any(getattr(module, "policy_encoder", ()) for module in self.reward.modules())

    def check(self, states_known: bool) -> None:
        self.reward.check(states_known)

    def begin_compute(self, rollout: Rollout, average: float, encoder: Encoder) -> None:
        """Asks for rewards; `average` is the running mean of earlier ones, `encoder` the policy's."""
        self.raw = self.compute(rollout, average, encoder)

    def finish_compute(self) -> Tensor:
        """Raw rewards [T, N] of the rollout asked for."""
        return self.raw

    def compute(self, rollout: Rollout, average: float, encoder: Encoder | None = None) -> Tensor:
        if self.reads_policy and encoder is not None:
            self.encoder.load_state_dict(encoder.state_dict())
        raw, self.carry = self.reward.compute(rollout, self.carry)
        self.reward.remember(rollout, raw, average)
        self.rollout = rollout
        return raw

    def begin_update(self) -> None:
        """Lets the model learn from the rollout just computed, if it can do so by itself."""

    @collecting_later()
    def finish_update(self) -> Metrics:
        config, collected, rollout = self.config.reward, MeanMetrics(), self.rollout
        enough = rollout is not None and len(rollout.valid_indices()) > 1  # batch normalisation needs two
        if self.optimizer is not None and rollout is not None and enough:
            self.reward.train()
            for batch in self.reward.batches(rollout, self.carry, config.epochs, config.minibatch_size, self.generator):
                loss, metrics = self.reward.loss(batch)
                self.optimizer.step(loss)
                collected.add({"model_loss": loss, **metrics})
            check_finite(self.reward, "reward model")
        self.carry, self.rollout = between_rollouts(self.carry), None
        return collected.mean()

    def keep(self) -> None:
        """Remembers the present state as the last good one."""
        self.good = copy.deepcopy(self.state_dict())

    def kept(self) -> State:
        return self.good

    def state_dict(self) -> State:
        return {
            "reward": self.reward.state_dict(),
            "extra": self.reward.extra_state(),
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            "generator": self.generator.get_state(),
            "carry": dict(self.carry),
        }

    def load_state_dict(self, state: State) -> None:
        """A carry of None stands for fresh episodes."""
        self.reward.load_state_dict(state["reward"])
        self.reward.load_extra_state(state["extra"])
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        if state["carry"] is not None:
            self.carry = {name: tensor.to(self.device) for name, tensor in state["carry"].items()}

    def close(self) -> None:
        """Nothing to release."""


def check_finite(network: torch.nn.Module, owner: str) -> None:
    for name, parameter in network.named_parameters():
        if not parameter.isfinite().all():
            raise TrainingDiverged(f"the {owner}'s parameter {name} is not finite")


class ThreadStage(LocalStage):
    """The same in a thread: `begin_…` sets it to work, `finish_…` waits for it."""

    overlaps = True

    def __init__(self, config: Config, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        super().__init__(config, observation_space, action_space)
        self.worker = ThreadPoolExecutor(1, "deir-model")
        self.computing: Future[Tensor] | None = None
        self.updating: Future[Metrics] | None = None

    def begin_compute(self, rollout: Rollout, average: float, encoder: Encoder) -> None:
        self.computing = self.worker.submit(self.compute, rollout, average, encoder)

    def finish_compute(self) -> Tensor:
        assert self.computing is not None
        return self.computing.result()

    def begin_update(self) -> None:
        self.updating = self.worker.submit(self._update)

    def _update(self) -> Metrics:
        with another_party():
            return super().finish_update()

    def finish_update(self) -> Metrics:
        assert self.updating is not None
        updating, self.updating = self.updating, None
        with one_party_less():
            return updating.result()

    def state_dict(self) -> State:
        self._settle()
        return super().state_dict()

    def load_state_dict(self, state: State) -> None:
        self._settle()
        super().load_state_dict(state)

    def _settle(self) -> None:
        """Lets an update end that nobody waits for any more, since the iteration broke off."""
        if self.updating is not None:
            with suppress(TrainingDiverged):
                self.finish_update()

    def close(self) -> None:
        self.worker.shutdown(cancel_futures=True)


def make_stage(
    config: Config, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], beside: bool
) -> LocalStage:
    """`beside`: it may have a thread of its own."""
    wanted = beside and config.reward.overlap and config.method != "none"
    return (ThreadStage if wanted else LocalStage)(config, observation_space, action_space)
