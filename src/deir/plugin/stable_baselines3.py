"""Stable-Baselines3: one line adds a reward to PPO, A2C, RecurrentPPO and their kin.

    add_reward(model, "deir")

The reward joins the rollout before returns and advantages are computed, so novelty propagates back in time as the
task's own reward does. It sees the observations that the policy sees: transposed, stacked, normalised by VecNormalize.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import (
    VecEnv,
    VecEnvWrapper,
    VecTransposeImage,
    is_vecenv_wrapped,
    unwrap_vec_normalize,
)
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from deir.config import Config, merge, with_old_keys
from deir.errors import UserError, invalid
from deir.imports import check_trusted
from deir.plugin.reward import Reward, make_reward, read_saved

ENTRY = "deir_reward.safetensors"  # in the model's zip file, beside what Stable-Baselines3 writes
Model = TypeVar("Model", bound=BaseAlgorithm)


def add_reward(model: OnPolicyAlgorithm, method: str = "deir", **options: Any) -> Reward:
    """Gives `model` an intrinsic reward; `options` are those of `deir.make_reward` (beta, seed, device, …).

    From then on `model.learn` computes and trains it, `model.save` writes it into the model's file, and `load` of this
    module brings both back.
    """
    _check(model)
    assert model.env is not None
    if "autoreset_mode" in options:
        raise UserError("option: 'autoreset_mode' is not for Stable-Baselines3, which resets within the step always")
    defaults = {"seed": model.seed or 0, "device": str(model.device), "channels_first": _channels_first(model.env)}
    reward = make_reward(
        method, observed_space(model), model.action_space, model.env.num_envs, **{**defaults, **options}
    )
    _attach(model, reward)
    return reward


def load(
    cls: type[Model], path: str | Path | io.BufferedIOBase, env: Any = None, *, trust: bool = False, **options: Any
) -> Model:
    """`cls.load(path, env, …)` with the reward that was saved with the model; its episodes begin anew.

    `trust`: whether a method that the file names as package.module:Class may be imported. SB3's own part of the file
    may hold pickles, which run code whenever they are loaded.
    """
    model = cls.load(path, env=env, **options)  # type: ignore[arg-type]
    _check(model)
    state = _read_entry(path)
    if model.env is None:
        return model  # for prediction only
    config = merge(merge(Config(), with_old_keys(state["config"])), {"device": str(model.device)})
    check_trusted(config, str(path), trust)
    if model.env.num_envs != config.env.n_envs:
        raise invalid(
            "env", f"{model.env.num_envs} environments", f"{config.env.n_envs}, which the reward was saved with"
        )
    reward = Reward(config, observed_space(model), model.action_space, channels_first=_channels_first(model.env))
    reward.load_state_dict(state)
    reward.reset()
    _attach(model, reward)
    return model


def _check(model: Any) -> None:
    if not isinstance(model, OnPolicyAlgorithm):
        raise invalid(
            "model", type(model).__name__, "an on-policy algorithm of Stable-Baselines3: PPO, A2C, RecurrentPPO, …"
        )
    if hasattr(model, "intrinsic"):
        raise UserError("model: it has an intrinsic reward already")


def _attach(model: Any, reward: Reward) -> None:
    model.__class__ = _exploring(type(model))
    model.intrinsic = reward


def observed_space(model: Any) -> spaces.Space[Any]:
    """The space of what the policy sees: VecNormalize makes any Box a Box of floats."""
    space, normalize = model.observation_space, unwrap_vec_normalize(model.env)
    if normalize is None or not normalize.norm_obs:
        return space

    def normalized(box: Any) -> spaces.Box:
        return spaces.Box(-normalize.clip_obs, normalize.clip_obs, box.shape, np.float32)

    if isinstance(space, spaces.Dict):
        keys = normalize.norm_obs_keys or []
        return spaces.Dict({key: normalized(part) if key in keys else part for key, part in space.spaces.items()})
    return normalized(space) if isinstance(space, spaces.Box) else space


def _channels_first(env: VecEnv) -> bool | None:
    """Known where Stable-Baselines3 transposed the images itself; otherwise seen from the shape."""
    transposed = is_vecenv_wrapped(env, VecTransposeImage) and len(env.observation_space.shape or ()) == 3
    return True if transposed else None


class _Recorder(VecEnvWrapper):
    """Remembers of each step what the rollout buffer does not keep."""

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        self.begin()

    def begin(self) -> None:
        self.actions: list[Any] = []  # [N, *action] each, as the environment was given them
        self.dones: list[Any] = []  # [N]
        self.truncated: list[Any] = []  # [N]
        self.finals: dict[tuple[int, int], Any] = {}  # true last observations
        self.last: Any = None  # [N, *obs]

    def reset(self) -> VecEnvObs:
        return self.venv.reset()

    def step_async(self, actions: Any) -> None:
        self.actions.append(np.array(actions))
        super().step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        self.last, rewards, dones, infos = self.venv.step_wait()
        for n in np.flatnonzero(dones):
            if infos[n].get("terminal_observation") is not None:
                self.finals[len(self.dones), int(n)] = infos[n]["terminal_observation"]
        self.truncated.append(np.array([info.get("TimeLimit.truncated", False) for info in infos]) & dones)
        self.dones.append(np.array(dones))
        return self.last, rewards, dones, infos


def _exploring(cls: Any) -> Any:
    """The algorithm's class with the reward in it. (Python lets an object change to a class of this one base.)"""

    class Exploring(cls):  # type: ignore[misc]
        intrinsic: Reward
        recorder: _Recorder | None = None

        def collect_rollouts(
            self, env: VecEnv, callback: Any, rollout_buffer: RolloutBuffer, *args: Any, **more: Any
        ) -> bool:
            if self.recorder is None or self.recorder.venv is not env:
                self.recorder = _Recorder(env)
            self.recorder.begin()
            with _rewarding(rollout_buffer, self.recorder, self.intrinsic):
                complete = bool(super().collect_rollouts(self.recorder, callback, rollout_buffer, *args, **more))
            if complete:
                for name, figure in self.intrinsic.update().items():
                    self.logger.record(f"deir/{name}", figure)
            return complete

        def _excluded_save_params(self) -> list[str]:
            return [*super()._excluded_save_params(), "intrinsic", "recorder"]

        def save(self, path: Any, *args: Any, **more: Any) -> None:
            """The model's zip file with the reward's safetensors file in it; nothing of the reward is pickled."""
            super().save(path, *args, **more)
            _write_entry(path, self.intrinsic)

    Exploring.__name__, Exploring.__qualname__, Exploring.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Exploring


@contextmanager
def _rewarding(buffer: RolloutBuffer, recorder: _Recorder, reward: Reward) -> Iterator[None]:
    """Within it, the buffer adds the intrinsic reward before it computes returns and advantages."""
    plain = buffer.compute_returns_and_advantage

    def with_intrinsic(*args: Any, **more: Any) -> None:
        buffer.rewards += _intrinsic_rewards(buffer, recorder, reward)
        plain(*args, **more)

    buffer.compute_returns_and_advantage = with_intrinsic  # type: ignore[method-assign]
    try:
        yield
    finally:
        del buffer.compute_returns_and_advantage


def _intrinsic_rewards(buffer: RolloutBuffer, recorder: _Recorder, reward: Reward) -> Any:
    """[T, N] of what was collected"""
    reward.reset(buffer.episode_starts[0] > 0)
    dones, truncated = np.stack(recorder.dones), np.stack(recorder.truncated)  # [T, N]
    observations = _followed(buffer.observations, recorder.last)  # [T+1, N, *obs]
    return reward.compute(
        observations, np.stack(recorder.actions), dones & ~truncated, truncated, final_observations=recorder.finals
    )


def _followed(observations: Any, last: Any) -> Any:
    """[T, N, *obs] and [N, *obs] -> [T+1, N, *obs], of a dictionary part by part"""
    if isinstance(observations, dict):
        return {key: _followed(part, last[key]) for key, part in observations.items()}
    return np.concatenate([observations, last[None]])


def _write_entry(path: Any, reward: Reward) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / ENTRY
        reward.save(file)
        with zipfile.ZipFile(_with_suffix(path) if _is_path(path) else path, "a") as archive:
            archive.write(file, ENTRY)


def _is_path(path: Any) -> bool:
    return isinstance(path, (str, Path))


def _with_suffix(path: str | Path) -> Path:
    """Where Stable-Baselines3 writes: `agent` stands for agent.zip."""
    return Path(path) if Path(path).suffix else Path(f"{path}.zip")


def _read_entry(path: Any) -> dict[str, Any]:
    if _is_path(path):
        source = path if Path(path).is_file() else f"{path}.zip"
    else:
        source = path
        source.seek(0)
    with zipfile.ZipFile(source) as archive, tempfile.TemporaryDirectory() as directory:
        if ENTRY not in archive.namelist():
            raise invalid("path", str(path), "a model saved after add_reward; plain ones load with their class's load")
        archive.extract(ENTRY, directory)
        return read_saved(Path(directory) / ENTRY)
