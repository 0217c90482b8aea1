"""The loop: collect, reward, advantage, update. The only file that calls two stages."""

from __future__ import annotations

import copy
import logging
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from deir.algorithm.actions import actions_of
from deir.algorithm.functional import EmaMoments
from deir.algorithm.maps import ExplorationMaps
from deir.algorithm.metrics import EpisodeStatistics, ExplorationStatistics, Timer
from deir.algorithm.networks import encoder_kind, grid_padding
from deir.algorithm.policy import Policy
from deir.algorithm.ppo import advantages_and_returns, normalized_advantages, update_policy
from deir.algorithm.reward_model import RewardScale, check_finite, make_stage
from deir.algorithm.rollout import Position, collect
from deir.algorithm.types import PolicyTrace, Rollout
from deir.config import Config
from deir.envs import make_envs
from deir.envs.base import EnvStep
from deir.envs.spaces import PackedBox, packed_view
from deir.errors import invalid
from deir.fast.allocator import collecting_later, keep_freed_memory
from deir.fast.flat_adam import FlatAdam
from deir.fast.patches import ObservationTable, tabulate
from deir.fast.threads import available_threads, use_threads
from deir.seeding import derive, torch_generator

_LOGGER = logging.getLogger("deir")
PHASES = ("env", "forward", "reward", "policy_update", "model_update")


class Collected(NamedTuple):
    rollout: Rollout
    trace: PolicyTrace
    steps: list[EnvStep]
    seconds: dict[str, float]


class Trainer:
    """One run in memory. It computes; `run.py` reads and writes."""

    def __init__(self, config: Config, generation: int = 0) -> None:
        keep_freed_memory()
        self.config = config
        threads = available_threads(config.threads)
        self.device = torch.device(config.device)
        self.envs = make_envs(config.env, config.seed, generation)
        spaces = self.envs.observation_space, self.envs.action_space
        beside = threads > 1 and self.device.type == "cpu" and shares_patches(config, spaces[0], self.envs.repeats)
        self.stage = make_stage(config, *spaces, beside)
        self.overlaps = self.stage.overlaps
        use_threads(threads, self.overlaps)
        torch.manual_seed(derive(config.seed, "init", "policy"))
        self.policy = Policy(*spaces, config.network).to(self.device)
        self.networks = networks_of(config, *spaces)
        _LOGGER.info(self.networks)
        self.optimizer = FlatAdam(self.policy, config.ppo, "policy")
        self.generators = {name: torch_generator(config.seed, name) for name in ("actions", "policy")}
        self.scale = RewardScale(config.reward)
        self.advantage_moments = EmaMoments(config.ppo.advantage_momentum)
        self.episodes = EpisodeStatistics(config.env.n_envs)
        self.exploration = ExplorationStatistics(config.env.n_envs)
        self.maps = ExplorationMaps() if config.maps else None
        self.iteration = 0
        self.frames = 0
        observations = self.envs.reset()
        self.stage.check(self.envs.state_hashes() is not None)
        if config.maps and self.envs.positions() is None:
            raise invalid("maps", True, f"a task on a grid; {config.env.id} does not tell where the agent stands")
        self.position = self._at_episode_starts(observations)
        self.known: ObservationTable | None = None
        self.ahead: Collected | None = None  # the next rollout, collected while the model was learning
        self.before_ahead: dict[str, Any] = {}  # where collection stood before it

    def _at_episode_starts(self, observations: Any) -> Position:
        n_envs = self.config.env.n_envs
        starts = np.ones(n_envs, np.bool_)
        return Position(observations, starts, self.policy.initial_hidden(n_envs, self.device))

    @property
    def finished(self) -> bool:
        return self.frames >= self.config.steps

    @collecting_later()
    def iterate(self) -> dict[str, float | None]:
        """One rollout and one update; returns the figures of this iteration."""
        rollout, trace, steps, seconds = self.ahead or self._collect()
        self.ahead = None
        timer = Timer(seconds)
        with timer("reward"):
            self.stage.begin_compute(rollout, self.scale.average, self.policy.encoder)
            self.episodes.update(steps)
            explored = self.exploration.update(rollout)
            raw = self.stage.finish_compute()
            self.stage.begin_update()
            if self.maps:
                self.maps.update(rollout, raw)
            rewards = self.config.reward.extrinsic_coef * rollout.rewards + self.scale(raw, rollout.valid)
            advantages, returns = advantages_and_returns(rollout, trace, rewards, self.config.ppo)
            advantages = normalized_advantages(advantages, rollout.valid, self.config.ppo, self.advantage_moments)
        with timer("policy_update"):
            policy_metrics = update_policy(
                self.policy, self.optimizer.step, rollout, trace, advantages, returns,
                self.config.ppo, self.generators["policy"],
            )  # fmt: skip
            check_finite(self.policy, "policy")
        self.iteration += 1
        self.frames += int(rollout.valid.sum())
        if self.overlaps and not self.finished:
            self._collect_ahead()
        with timer("model_update"):
            model_metrics = self.stage.finish_update()
        return {
            **self.episodes.summary(),
            **explored,
            "intrinsic_reward_mean": float(raw[rollout.valid].mean()),
            "intrinsic_reward_std": float(raw[rollout.valid].std(unbiased=False)),
            **policy_metrics,
            **model_metrics,
            **{f"seconds_{phase}": timer.seconds.get(phase, 0.0) for phase in PHASES},
        }

    def _collect(self) -> Collected:
        ppo, timer = self.config.ppo, Timer()
        rollout, trace, self.position, steps = collect(
            self.envs, self.policy, self.position, ppo.rollout_steps, self.generators["actions"],
            ppo.truncation == "bootstrap", self.known, timer,
        )  # fmt: skip
        self.known = rollout.table if self.envs.repeats else None
        return Collected(rollout, trace, steps, timer.seconds)

    def _collect_ahead(self) -> None:
        """Uses the time the model still needs. A checkpoint stands before it, and a resumed run collects it again."""
        self.before_ahead = self._collection_state()
        self.ahead = self._collect()

    def keep(self) -> None:
        """Remembers the present state as the last good one, for the case that training diverges."""
        self.stage.keep()
        self.good = copy.deepcopy(self._own_state())

    def kept(self) -> dict[str, Any]:
        return {**self.good, "stage": self.stage.kept()}

    def state_dict(self) -> dict[str, Any]:
        """Everything the next iteration depends on: nested dictionaries of tensors, arrays, numbers and text."""
        return {**self._own_state(), "stage": self.stage.state_dict()}

    def _own_state(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "frames": self.frames,
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "shuffles": self.generators["policy"].get_state(),
            "reward_moments": self.scale.moments.state_dict(),
            "advantage_moments": self.advantage_moments.state_dict(),
            "episodes": self.episodes.state_dict(),
            "exploration": self.exploration.state_dict(),
            "maps": self.maps.state_dict() if self.maps else None,
            "collection": self._collection_state() if self.ahead is None else self.before_ahead,
        }

    def _collection_state(self) -> dict[str, Any]:
        return {
            "envs": self.envs.state_dict(),
            "actions": self.generators["actions"].get_state(),
            "hidden": self.position.hidden,
            "starts": self.position.starts.copy(),
            "known": self.known.distinct if self.known else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration, self.frames = int(state["iteration"]), int(state["frames"])
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generators["policy"].set_state(state["shuffles"])
        self.scale.moments.load_state_dict(state["reward_moments"])
        self.advantage_moments.load_state_dict(state["advantage_moments"])
        self.episodes.load_state_dict(state["episodes"])
        self.exploration.load_state_dict(state["exploration"])
        if self.maps and state.get("maps"):
            self.maps.load_state_dict(state["maps"])
        collection = state["collection"]
        self.generators["actions"].set_state(collection["actions"])
        self.known = self._tabulated(collection["known"])
        fresh = collection["envs"] is None  # these environments cannot be saved: new episodes begin
        self.stage.load_state_dict({**state["stage"], **({"carry": None} if fresh else {})})
        if fresh:
            self.episodes.forget_running()
            self.exploration.forget_running()
            return
        observations = self.envs.load_state_dict(collection["envs"])
        self.position = Position(observations, collection["starts"], collection["hidden"].to(self.device))

    def _tabulated(self, distinct: Tensor | None) -> ObservationTable | None:
        if distinct is None:
            return None
        view = packed_view(self.envs.observation_space)
        return tabulate(distinct.to(self.device), True, grid_padding(view or tuple(distinct.shape[1:])), view)[0]

    def close(self) -> None:
        self.stage.close()
        self.envs.close()


def shares_patches(config: Config, observations: Space[Any], repeats: bool) -> bool:
    """Whether the networks work on distinct patches, in operations too small for several threads each.

    Whole convolutions keep every thread busy by themselves. On vectors operations are so small that two threads of
    Python would only take turns.
    """
    kinds = encoder_kind(config.network.encoder, observations, images="impala").split("+")
    return repeats and "grid" in kinds and config.network.norm != "layer"


def networks_of(config: Config, observations: Space[Any], actions: Space[Any]) -> str:
    """What was chosen from the spaces, in words."""
    policy = encoder_kind(config.network.encoder, observations, images="impala")
    model = encoder_kind(config.reward.encoder, observations, images="dqn")
    parts = observations.parts.values() if isinstance(observations, PackedBox) else [observations]
    shapes = "+".join("x".join(map(str, part.shape or ())) for part in parts)
    kind = type(actions_of(actions)).__name__.removesuffix("Actions")
    return f"observations {shapes}: encoder {policy} of the policy, {model} of the reward model; {kind} actions"
