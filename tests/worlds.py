"""Small Gymnasium worlds of every kind of space; a configuration names them `worlds:…`."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=3),
    "multi": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
}
OBSERVATION_SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-np.inf, np.inf, (5,), np.float32),
    "image": spaces.Box(0, 255, (3, 8, 9), np.uint8),
    "dict": spaces.Dict(
        camera=spaces.Box(0, 255, (8, 8, 3), np.uint8), speed=spaces.Box(-1e3, 1e3, (2,)), gear=spaces.Discrete(3)
    ),
}


class World(gymnasium.Env[Any, Any]):
    """Any spaces: a random walk through samples of the observation space, steered by the seed and the actions."""

    def __init__(self, observations: str, actions: str) -> None:
        self.observation_space, self.action_space = OBSERVATION_SPACES[observations], ACTION_SPACES[actions]
        self.place, self.steps = 0, 0

    def _see(self) -> Any:
        self.observation_space.seed(self.place)
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(20)), 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.place = (self.place + 1 + int(np.sum(np.abs(action)))) % 20
        self.steps += 1
        return self._see(), float(self.place == 7), self.place == 7, self.steps >= 15, {}


for _observations in OBSERVATION_SPACES:
    for _actions in ACTION_SPACES:  # worlds:vector_box and so on
        globals()[f"{_observations}_{_actions}"] = partial(World, _observations, _actions)


def late_dictionaries(num_envs: int) -> VectorEnv:
    """A vector environment that resets one step after an episode's end."""
    return SyncVectorEnv([partial(World, "dict", "box")] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def late_cartpoles(num_envs: int) -> VectorEnv:
    late = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    return gymnasium.make_vec("CartPole-v1", num_envs, "sync", vector_kwargs=late, max_episode_steps=9)
