"""An environment of one's own, trained on by its name.

python examples/custom_env.py [FRAMES]
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import deir


class Cliff(gymnasium.Env[Any, Any]):
    """A narrow path: the one safe action of each step is fixed, any other ends the episode; the end pays 1."""

    LENGTH, ACTIONS = 12, 3

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (self.LENGTH + 1,), np.float32)
        self.action_space = spaces.Discrete(self.ACTIONS)
        self.safe = np.random.default_rng(0).integers(self.ACTIONS, size=self.LENGTH)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        fell = action != self.safe[self.place]
        self.place += not fell
        arrived = self.place == self.LENGTH
        return self._seen(), float(arrived), bool(fell or arrived), False, {}

    def _seen(self) -> Any:
        return np.eye(self.LENGTH + 1, dtype=np.float32)[self.place]


if __name__ == "__main__":
    # From the command line, in this directory: deir train --env custom_env:Cliff
    frames = sys.argv[1] if len(sys.argv) > 1 else "100k"
    run = deir.train("custom_env:Cliff", steps=frames, ppo={"rollout_steps": 128})
    print("mean return", run.final["return_mean"])
