"""The loop: collect, reward, advantage, update. The only file that calls two stages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from torch import Tensor

from deir.algorithm.functional import EmaMoments
from deir.algorithm.maps import ExplorationMaps
from deir.algorithm.metrics import EpisodeStatistics, ExplorationStatistics, Timer
from deir.algorithm.overlap import InTurn, Overlap, Pending
from deir.algorithm.policy import Policy
from deir.algorithm.ppo import advantages_and_returns, normalized_advantages, update_policy
from deir.algorithm.reward_model import RewardModel, RewardScale, check_finite
from deir.algorithm.rollout import Collected, Position, collect
from deir.algorithm.types import Metrics, ObservationTable, Rollout
from deir.config import Config
from deir.envs.base import VectorEnvs
from deir.envs.spaces import described, packed_view
from deir.errors import TrainingDiverged, invalid
from deir.seeding import torch_generator

PHASES = ("env", "forward", "reward", "policy_update", "model_update")
Hook = Callable[[Rollout, RewardModel], None]  # called before the rewards of a rollout are computed


class Ahead(NamedTuple):
    """The next rollout, collected while the model was learning."""

    collected: Collected
    before: dict[str, Any]  # where collection stood before it: a resumed run collects it again


class Trainer:
    """One run in memory, of parts that are handed in. It computes; `run.py` reads and writes."""

    def __init__(
        self,
        config: Config,
        envs: VectorEnvs,
        policy: Policy,
        model: RewardModel,
        overlap: Overlap | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        """It closes the environments and `overlap`, which says when the model works (in turn, if not given)."""
        self.config, self.envs, self.policy, self.model, self.hooks = config, envs, policy, model, hooks
        self.overlap = overlap or InTurn()
        self.ops, self.device = policy.ops, policy.device
        self.optimizer = self.ops.optimizer(self.policy, config.ppo, "policy")
        self.generators = {name: torch_generator(config.seed, name) for name in ("actions", "policy")}
        self.scale = RewardScale(config.reward)
        self.advantage_moments = EmaMoments(config.ppo.advantage_momentum)
        self.episodes = EpisodeStatistics(config.env.n_envs)
        self.exploration = ExplorationStatistics(config.env.n_envs)
        self.maps = ExplorationMaps() if config.maps else None
        self.iteration = 0
        self.frames = 0
        observations = self.envs.reset()
        self.model.reward.check(self.envs.state_hashes() is not None)
        if config.maps and self.envs.positions() is None:
            raise invalid("maps", True, f"a task on a grid; {config.env.id} does not tell where the agent stands")
        self.position = Position.at_episode_starts(observations, policy)
        self.ahead: Ahead | None = None
        self.updating: Pending[Metrics] | None = None

    @property
    def finished(self) -> bool:
        return self.frames >= self.config.steps

    def iterate(self) -> dict[str, float | None]:
        """One rollout and one update; returns the figures of this iteration."""
        with self.ops.undisturbed():
            return self._iterate()

    def _iterate(self) -> dict[str, float | None]:
        timer = Timer()
        rollout, trace, self.position, played = self.ahead.collected if self.ahead else self._collect(timer)
        self.ahead = None
        with timer("reward"):
            for hook in self.hooks:
                hook(rollout, self.model)
            average, encoder = self.scale.average, self.policy.encoder
            exploring = self.ops.aside(lambda: self.exploration.update(rollout))
            computing = self.overlap.ask(lambda: self.model.compute(rollout, average, encoder))
            self.episodes.update(played.rewards, played.terminated | played.truncated, played.valid)
            raw = computing.result()  # [T, N]
            self.updating = self.overlap.ask_beside(self.model.update)
            if self.maps:
                self.maps.update(rollout, raw)
            rewards = self.config.reward.extrinsic_coef * rollout.rewards + self.scale(raw, rollout.valid)
            advantages, returns = advantages_and_returns(rollout, trace, rewards, self.config.ppo)
            advantages = normalized_advantages(advantages, rollout.valid, self.config.ppo, self.advantage_moments)
        with timer("policy_update"):
            policy_metrics = update_policy(
                self.policy, self.optimizer, rollout, trace, advantages, returns,
                self.config.ppo, self.generators["policy"],
            )  # fmt: skip
            check_finite(self.policy, "policy")
        self.iteration += 1
        self.frames += int(rollout.valid.sum())
        if self.overlap.overlaps and not self.finished:  # uses the time the model still needs
            before = self._collection_state()
            self.ahead = Ahead(self._collect(timer), before)
        with timer("model_update"):
            model_metrics = self._finish_update()
        return {
            **self.episodes.summary(),
            **exploring(),
            "intrinsic_reward_mean": float(raw[rollout.valid].mean()),
            "intrinsic_reward_std": float(raw[rollout.valid].std(unbiased=False)),
            **policy_metrics,
            **model_metrics,
            **{f"seconds_{phase}": timer.seconds.get(phase, 0.0) for phase in PHASES},
        }

    def _collect(self, timer: Timer) -> Collected:
        ppo = self.config.ppo
        bootstrap = ppo.truncation == "bootstrap"
        generator = self.generators["actions"]
        return collect(self.envs, self.policy, self.position, ppo.rollout_steps, generator, bootstrap, timer)

    def _finish_update(self) -> Metrics:
        updating, self.updating = self.updating, None
        return updating.result() if updating is not None else {}

    def keep(self) -> None:
        """Remembers the present state as the last good one, for the case that training diverges."""
        state = self.state_dict()
        never_changed = {id(tensor): tensor for tensor in self.model.state.tensors().values()}  # only replaced
        self.good = copy.deepcopy(state, never_changed)

    def kept(self) -> dict[str, Any]:
        return self.good

    def state_dict(self) -> dict[str, Any]:
        """Everything the next iteration depends on: nested dictionaries of tensors, arrays, numbers and text."""
        with suppress(TrainingDiverged):  # of an update that nobody waits for any more, since the iteration broke off
            self._finish_update()
        return {
            "iteration": self.iteration,
            "frames": self.frames,
            "spaces": {name: described(getattr(self.envs, f"{name}_space")) for name in ("observation", "action")},
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "shuffles": self.generators["policy"].get_state(),
            "reward_moments": self.scale.moments.state_dict(),
            "advantage_moments": self.advantage_moments.state_dict(),
            "episodes": self.episodes.state_dict(),
            "exploration": self.exploration.state_dict(),
            "maps": self.maps.state_dict() if self.maps else None,
            "collection": self._collection_state() if self.ahead is None else self.ahead.before,
            "stage": self.model.state_dict(),
        }

    def _collection_state(self) -> dict[str, Any]:
        return {
            "envs": self.envs.state_dict(),
            "actions": self.generators["actions"].get_state(),
            "hidden": self.position.hidden,
            "starts": self.position.starts.copy(),
            "known": self.position.known.distinct if self.position.known else None,
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
        fresh = collection["envs"] is None  # these environments cannot be saved: new episodes begin
        self.model.load_state_dict({**state["stage"], **({"carry": None} if fresh else {})})
        if fresh:
            self.episodes.forget_running()
            self.exploration.forget_running()
            return
        observations = self.envs.load_state_dict(collection["envs"])
        hidden, known = collection["hidden"].to(self.device), self._tabulated(collection["known"])
        self.position = Position(observations, collection["starts"], hidden, known)

    def _tabulated(self, distinct: Tensor | None) -> ObservationTable | None:
        if distinct is None:
            return None
        return self.ops.tabulate(distinct.to(self.device), True, packed_view(self.envs.observation_space))[0]

    def close(self) -> None:
        self.overlap.close()
        self.envs.close()
