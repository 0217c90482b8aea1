"""The loop: collect, reward, advantage, update. The only file that calls two stages."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from deir.config import Config
from deir.envs import make_envs
from deir.errors import TrainingDiverged
from deir.functional import EmaMoments, moments
from deir.metrics import EpisodeStatistics, ExplorationStatistics, Timer
from deir.networks import grid_padding
from deir.optim import FlatAdam
from deir.patches import ObservationTable, tabulate
from deir.policy import Policy
from deir.ppo import MeanMetrics, advantages_and_returns, normalized_advantages, update_policy
from deir.rewards import make_reward
from deir.rewards.base import between_rollouts
from deir.rollout import Position, collect
from deir.seeding import derive, torch_generator
from deir.types import Metrics, PolicyTrace, Rollout

PHASES = ("env", "forward", "reward", "policy_update", "model_update")


class Trainer:
    """One run in memory. It computes; `run.py` reads and writes."""

    def __init__(self, config: Config, generation: int = 0) -> None:
        self.config = config
        set_threads(config.threads)
        self.device = torch.device(config.device)
        self.envs = make_envs(config.env, config.seed, generation)
        spaces = self.envs.observation_space, self.envs.action_space
        torch.manual_seed(derive(config.seed, "init"))
        self.policy = Policy(*spaces, config.network).to(self.device)
        self.reward = make_reward(config, *spaces, self.policy.encoder).to(self.device)
        self.policy_optimizer = FlatAdam(self.policy, config.ppo, "policy")
        self.reward_optimizer = FlatAdam(self.reward, config.ppo, "reward model") if self.reward.learns else None
        self.generators = {name: torch_generator(config.seed, name) for name in ("actions", "policy", "model")}
        self.reward_moments = moments(config.reward.momentum)
        self.advantage_moments = EmaMoments(config.ppo.advantage_momentum)
        self.episodes = EpisodeStatistics(config.env.n_envs)
        self.exploration = ExplorationStatistics(config.env.n_envs)
        self.carry = self.reward.initial_carry(config.env.n_envs)
        self.iteration = 0
        self.frames = 0
        observations = self.envs.reset()
        self.reward.check(self.envs.state_hashes() is not None)
        self.position = self._at_episode_starts(observations)
        self.known: ObservationTable | None = None

    def _at_episode_starts(self, observations: Any) -> Position:
        n_envs = self.config.env.n_envs
        starts = torch.ones(n_envs, dtype=torch.bool).numpy()
        return Position(observations, starts, self.policy.initial_hidden(n_envs, self.device))

    @property
    def finished(self) -> bool:
        return self.frames >= self.config.steps

    def iterate(self) -> dict[str, float | None]:
        """One rollout and one update; returns the figures of this iteration."""
        timer = Timer()
        rollout, trace = self._collect(timer)
        with timer("reward"):
            raw = self._intrinsic_rewards(rollout)
            rewards = self._total_rewards(rollout, raw)
            advantages, returns = advantages_and_returns(rollout, trace, rewards, self.config.ppo)
            advantages = normalized_advantages(advantages, rollout.valid, self.config.ppo, self.advantage_moments)
        with timer("policy_update"):
            policy_metrics = update_policy(
                self.policy, self.policy_optimizer.step, rollout, trace, advantages, returns,
                self.config.ppo, self.generators["policy"],
            )  # fmt: skip
        with timer("model_update"):
            model_metrics = self._update_model(rollout)
        self._check_finite()
        self.iteration += 1
        self.frames += int(rollout.valid.sum())
        return {
            **self.episodes.summary(),
            **self.exploration.update(rollout),
            "intrinsic_reward_mean": float(raw[rollout.valid].mean()),
            "intrinsic_reward_std": float(raw[rollout.valid].std(unbiased=False)),
            **policy_metrics,
            **model_metrics,
            **{f"seconds_{phase}": timer.seconds.get(phase, 0.0) for phase in PHASES},
        }

    def _collect(self, timer: Timer) -> tuple[Rollout, PolicyTrace]:
        ppo = self.config.ppo
        rollout, trace, self.position, steps = collect(
            self.envs, self.policy, self.position, ppo.rollout_steps, self.generators["actions"],
            ppo.truncation == "bootstrap", self.known, timer,
        )  # fmt: skip
        self.known = rollout.table if self.envs.repeats else None
        self.episodes.update(steps)
        return rollout, trace

    def _intrinsic_rewards(self, rollout: Rollout) -> Tensor:
        """Raw intrinsic rewards [T, N]."""
        raw, self.carry = self.reward.compute(rollout, self.carry)
        self.reward.remember(rollout, raw, self.reward_moments.mean)
        return raw

    def _total_rewards(self, rollout: Rollout, raw: Tensor) -> Tensor:
        """r = c r_E + β (r_I - μ)/σ, the last term only on genuine steps. [T, N]"""
        config = self.config.reward
        self.reward_moments.update(raw[rollout.valid])
        intrinsic = self.reward_moments.normalize(raw) if config.normalize else raw
        return config.extrinsic_coef * rollout.rewards + config.beta * intrinsic * rollout.valid

    def _update_model(self, rollout: Rollout) -> Metrics:
        config, collected = self.config.reward, MeanMetrics()
        if self.reward_optimizer is not None:
            self.reward.train()
            for batch in self.reward.batches(
                rollout, self.carry, config.epochs, config.minibatch_size, self.generators["model"]
            ):
                loss, metrics = self.reward.loss(batch)
                self.reward_optimizer.step(loss)
                collected.add({"model_loss": loss, **metrics})
        self.carry = between_rollouts(self.carry)
        return collected.mean()

    def _check_finite(self) -> None:
        for owner, network in {"policy": self.policy, "reward model": self.reward}.items():
            for name, parameter in network.named_parameters():
                if not parameter.isfinite().all():
                    raise TrainingDiverged(f"the {owner}'s parameter {name} is not finite")

    def state_dict(self) -> dict[str, Any]:
        """Everything the next iteration depends on: nested dictionaries of tensors, arrays, numbers and text."""
        return {
            "iteration": self.iteration,
            "frames": self.frames,
            "policy": self.policy.state_dict(),
            "reward": self.reward.state_dict(),
            "reward_extra": self.reward.extra_state(),
            "policy_optimizer": self.policy_optimizer.state_dict(),
            "reward_optimizer": self.reward_optimizer.state_dict() if self.reward_optimizer else None,
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
            "reward_moments": self.reward_moments.state_dict(),
            "advantage_moments": self.advantage_moments.state_dict(),
            "episodes": self.episodes.state_dict(),
            "exploration": self.exploration.state_dict(),
            "carry": dict(self.carry),
            "envs": self.envs.state_dict(),
            "hidden": self.position.hidden,
            "starts": self.position.starts,
            "known": self.known.distinct if self.known else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration, self.frames = int(state["iteration"]), int(state["frames"])
        self.policy.load_state_dict(state["policy"])
        self.reward.load_state_dict(state["reward"])
        self.reward.load_extra_state(state["reward_extra"])
        self.policy_optimizer.load_state_dict(state["policy_optimizer"])
        if self.reward_optimizer:
            self.reward_optimizer.load_state_dict(state["reward_optimizer"])
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        self.reward_moments.load_state_dict(state["reward_moments"])
        self.advantage_moments.load_state_dict(state["advantage_moments"])
        self.episodes.load_state_dict(state["episodes"])
        self.exploration.load_state_dict(state["exploration"])
        self.known = self._tabulated(state["known"])
        if state["envs"] is None:  # fresh episodes: these environments cannot be saved
            self.episodes.forget_running()
            self.exploration.forget_running()
            return
        observations = self.envs.load_state_dict(state["envs"])
        self.position = Position(observations, state["starts"], state["hidden"].to(self.device))
        self.carry = {name: tensor.to(self.device) for name, tensor in state["carry"].items()}

    def _tabulated(self, distinct: Tensor | None) -> ObservationTable | None:
        if distinct is None:
            return None
        return tabulate(distinct.to(self.device), True, grid_padding(tuple(distinct.shape[1:])))[0]

    def close(self) -> None:
        self.envs.close()


def set_threads(threads: int | None) -> None:
    """All cores unless told otherwise; OMP_NUM_THREADS is respected by PyTorch itself."""
    if threads is not None:
        torch.set_num_threads(threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(os.cpu_count() or 1)
