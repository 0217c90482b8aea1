"""A reward for any training loop: the model that `deir train` uses, fed with a user's own arrays."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

from deir.algorithm.networks import Encoder
from deir.algorithm.reward_model import RewardModel, RewardScale
from deir.algorithm.rewards import check_method
from deir.algorithm.rewards.shared import TrajectoryModel
from deir.algorithm.types import Metrics
from deir.config import Config, RewardConfig, flatten, merge, to_dict
from deir.errors import TrainingDiverged, UserError, invalid, unknown
from deir.plugin.arrays import read_flags
from deir.plugin.encoder import GivenEncoder
from deir.plugin.observations import observation_format
from deir.plugin.rollouts import Episodes, RolloutReader, autoreset_mode
from deir.runs import checkpoint
from deir.runs.presets import resolve
from deir.runs.ranges import check, check_device
from deir.runs.training import make_ops

Array = NDArray[Any] | Tensor
OPTIMISER = ("learning_rate", "adam_eps", "adam_beta1", "adam_beta2", "max_grad_norm")
ELSEWHERE = {  # what RewardConfig has for `deir train` alone
    "extrinsic_coef": "your loop adds its own reward, weighed as it likes",
    "overlap": "here the model learns when you tell it to",
}
ENDS_UNKNOWN = (
    "episodes ended, but final_observations was not given: their last steps earn nothing. Environments that reset one "
    "step later (Gymnasium's default) need make_reward(..., autoreset_mode='next-step') instead"
)
WHOLE_QUEUE = 2**31  # megabytes: what is saved is complete


class Embeddings(NamedTuple):
    observations: Any  # [T, N, F] e_obs_t
    trajectories: Any  # [T, N, H] e_traj_t: what has happened in the episode up to and with o_t


def make_reward(
    method: str,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    n_envs: int = 1,
    *,
    device: str = "cpu",
    seed: int = 0,
    preset: str = "minigrid",
    autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    channels_first: bool | None = None,
    encoder: str | Callable[[Tensor], Tensor] = "auto",
    **options: Any,
) -> Reward:
    """A method of `deir list methods` (or package.module:Class) for N environments of these spaces.

    `options` are the keys of the configuration's `reward` section (beta, normalize, epochs, deir={"queue_size": 10_000}
    and so on), `network={…}`, and learning_rate, adam_eps, adam_beta1, adam_beta2 and max_grad_norm of the optimiser.
    What is not given comes from the preset, β included: `rewards + reward.compute(…)` is what `deir train` would pay.

    `encoder` is the kind of the model's own encoder or, for the methods that can read a policy's embeddings, a callable
    from observations [B, *obs] to embeddings [B, F]. `channels_first` is seen from the shape if not given.
    """
    overrides: dict[str, Any] = {"reward": {"embeddings": "own"}, "ppo": {}, "network": options.pop("network", {})}
    choices = [field.name for field in fields(RewardConfig) if field.name not in ELSEWHERE]
    for name, value in options.items():
        if name in ELSEWHERE:
            raise UserError(f"option: {name!r} is an option of `deir train` only; {ELSEWHERE[name]}")
        if name not in (*choices, *OPTIMISER):
            raise unknown("option", name, [*choices, *OPTIMISER, "network"])
        overrides["ppo" if name in OPTIMISER else "reward"][name] = value
    if isinstance(encoder, str):
        overrides["reward"]["encoder"] = encoder
    elif "embeddings" not in options:
        overrides["reward"]["embeddings"] = "policy"
    check_method(method)
    config = merge(resolve(replace(Config(), method=method, preset=preset)), overrides)
    config = merge(config, {"env": {"n_envs": n_envs}, "device": device, "seed": seed})
    own = None if isinstance(encoder, str) else encoder
    reward = Reward(config, observation_space, action_space, autoreset_mode, channels_first, own)
    if own is not None and not reward.model.reads_policy:
        raise UserError(f"encoder: method {method!r} with these options reads no embeddings but its own; leave it out")
    return reward


class Reward:
    """The reward of N environments, rollout after rollout: `compute`, then `update`."""

    def __init__(
        self,
        config: Config,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        channels_first: bool | None = None,
        encoder: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """With the configuration of a `deir train` run it begins where that run began, to the last bit."""
        check(config)
        check_device(config.device)
        self._made_with = observation_space, action_space, mode, channels_first, encoder
        self._diverged = ""  # how, once it has
        self.config = replace(config, checkpoint=replace(config.checkpoint, max_queue_mb=WHOLE_QUEUE))
        form = observation_format(observation_space, channels_first)
        device = torch.device(config.device)
        ops = make_ops(config)
        self.reader = RolloutReader(form, action_space, config.env.n_envs, autoreset_mode(mode), device, ops)
        given = encoder if encoder is None or isinstance(encoder, Encoder) else GivenEncoder(encoder, form, device)
        # the caller's random numbers stay as they were, and what is made here can learn, whatever mode it is made in
        with torch.random.fork_rng(), torch.inference_mode(False):
            self.model = RewardModel(self.config, form.space, action_space, ops, given)
        if self.model.reads_policy and given is None:
            raise UserError(
                f"encoder: method {config.method!r} with embeddings='policy' reads a policy's embeddings, expected a "
                "callable from observations to them, or embeddings='own'"
            )
        self.scale = RewardScale(config.reward)
        self.episodes = Episodes.beginning(config.env.n_envs)
        self.figures: Metrics = {}

    @property
    def method(self) -> str:
        return self.config.method

    def compute(
        self,
        observations: Array | Mapping[str, Array],  # [T+1, N, *obs], of a dictionary one for each part
        actions: Array,  # [T, N]
        terminated: Array,  # [T, N]
        truncated: Array,  # [T, N]
        final_observations: Any = None,
        states: Array | None = None,  # [T+1, N]
    ) -> Any:
        """The intrinsic reward [T, N] of a rollout that follows the last one, in the kind of array that came.

        With same-step resets the last observation of an ended episode is not among the observations; give it as
        `final_observations`, either [T, N, *obs], of which only the rows of ended steps are read, or a mapping from
        (t, n) to an observation. Where it is missing, that step earns nothing. `states` are names (or hashes) of the
        full states behind the observations, for the methods that count them.
        """
        self._check_sound()
        needed = self.model.reward.needs_states
        if needed != (states is not None):
            said = "is made from full states, expected whole numbers (T+1, N)" if needed else "reads none; leave it out"
            raise UserError(f"states: method {self.method!r} {said}")
        with torch.inference_mode(False):
            rollout, episodes = self.reader.read(
                self.episodes, observations, actions, terminated, truncated, final_observations, states
            )
            raw = self.model.compute(rollout, self.scale.average)  # [T, N]
            self.episodes = episodes
        if final_observations is None and self.reader.mode is AutoresetMode.SAME_STEP and not rollout.valid.all():
            warnings.warn(ENDS_UNKNOWN, stacklevel=2)
        rewards, genuine = self.scale(raw, rollout.valid), raw[rollout.valid]
        self.figures = {
            "intrinsic_reward_mean": float(genuine.mean()) if len(genuine) else 0.0,
            "intrinsic_reward_std": float(genuine.std(unbiased=False)) if len(genuine) else 0.0,
        }
        return _like(rewards, observations)

    def update(self) -> Metrics:
        """Lets the model learn from what `compute` saw last. Figures to log; the intrinsic reward's are of raw ones."""
        if self.model.rollout is None:
            raise UserError("update: nothing to learn from; call compute() first, once before each update()")
        try:
            with torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller's loop is in
                return {**self.figures, **self.model.update()}
        except TrainingDiverged as error:
            self._diverged = str(error)
            raise

    def _check_sound(self) -> None:
        if self._diverged:
            raise TrainingDiverged(
                f"the reward model has diverged ({self._diverged}): go on from a saved state with load_state_dict(), "
                "or make a new reward with a smaller learning_rate"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """For copy.deepcopy and pickle: one like it in the same state. A rollout not yet learned from is left out."""
        return _made_again, (self.config, self._made_with, self.state_dict(), self._diverged)

    def reset(self, envs: Any = None) -> None:
        """The environments (or those where `envs` [N] is true) were reset from outside: episodes begin there."""
        n_envs = self.config.env.n_envs
        reset = torch.ones(n_envs, dtype=torch.bool)
        if envs is not None:
            reset = read_flags("envs", np.asarray(envs)[None], (1, n_envs))[0]
        self.episodes = Episodes(self.episodes.starts | reset, self.episodes.pending & ~reset)

    def embed(self, observations: Array | Mapping[str, Array], starts: Array | None = None) -> Embeddings:
        """Embeddings of observations [T, N', *obs] for other uses; nothing is remembered.

        starts: [T, N'] where episodes begin; the first step always begins one.
        """
        model = self.model.reward
        if not isinstance(model, TrajectoryModel):
            raise UserError(f"embed: method {self.method!r} learns no embeddings; 'deir', 'icm' and 'ngu' do")
        rollout = self.reader.read_alone(observations, starts)
        with torch.no_grad():
            found = model.embed(rollout, model.initial_state(rollout.shape[1]))
        return Embeddings(_like(found.obs, observations), _like(found.after, observations))

    def state_dict(self) -> dict[str, Any]:
        """All that the next rollout's rewards depend on. A rollout not yet learned from is not part of it."""
        return copy.deepcopy(
            {
                "config": to_dict(self.config),
                "stage": self.model.state_dict(),
                "moments": self.scale.moments.state_dict(),
                "starts": self.episodes.starts,
                "pending": self.episodes.pending,
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on exactly where the other reward stood; call `reset` if the environments begin anew."""
        if not isinstance(state, Mapping) or "config" not in state or "stage" not in state:
            raise invalid("state", sorted(map(str, state)), "what Reward.state_dict() gave")
        saved = merge(Config(), state["config"])
        for name, theirs, ours in (
            ("method", saved.method, self.method),
            ("n_envs", saved.env.n_envs, self.config.env.n_envs),
        ):
            if theirs != ours:
                raise invalid(name, ours, f"{theirs!r}, which the saved reward was made with")
        try:
            self.model.load_state_dict(state["stage"])
        except RuntimeError:
            raise UserError(f"state: the saved reward has {_difference(saved, self.config)}") from None
        self.model.rollout, self._diverged = None, ""
        self.scale.moments.load_state_dict(state["moments"])
        self.episodes = Episodes(state["starts"].clone(), state["pending"].clone())

    def load_learned(self, stage: dict[str, Any], moments: dict[str, float]) -> None:
        """What a run's checkpoint holds of the reward, for other environments: their episodes begin anew."""
        self.model.load_state_dict({**stage, "carry": None})
        self.scale.moments.load_state_dict(moments)

    def save(self, path: str | Path) -> None:
        """One safetensors file, written whole or not at all."""
        checkpoint.save(self.state_dict(), Path(path))

    def load(self, path: str | Path) -> None:
        self.load_state_dict(read_saved(path))


def _made_again(config: Config, made_with: tuple[Any, ...], state: dict[str, Any], diverged: str) -> Reward:
    reward = Reward(config, *made_with)
    reward.load_state_dict(state)
    reward._diverged = diverged
    return reward


def _difference(saved: Config, ours: Config) -> str:
    """Why parameters of the one do not fit the other, by the options that decide shapes."""
    theirs, here = (flatten({"network": to_dict(c.network), "reward": to_dict(c.reward)}) for c in (saved, ours))
    names = [name for name in theirs if theirs[name] != here[name]]
    listed = ", ".join(f"{name} {theirs[name]!r} (here {here[name]!r})" for name in names)
    return f"other options than this one: {listed}" if listed else "other spaces than this one"


def read_saved(path: str | Path) -> dict[str, Any]:
    if not Path(path).is_file():
        raise invalid("path", str(path), "a file written by Reward.save")
    try:
        return checkpoint.load(Path(path))
    except checkpoint.DamagedCheckpoint as error:
        raise UserError(f"path: {error}") from None


def _like(tensor: Tensor, given: Any) -> Any:
    given = next(iter(given.values())) if isinstance(given, Mapping) else given
    return tensor.to(given.device) if isinstance(given, Tensor) else tensor.cpu().numpy()
