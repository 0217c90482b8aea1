"""Environments that keep the contract of `envs.base` and whose episodes end where a script says."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from builders import observation
from deir.envs.base import EnvStep

GOES_ON, TERMINATES, TRUNCATES, BOTH = range(4)
KINDS = ("views", "noise", "vectors")


class ScriptedEnvs:
    """N environments; `ends[k, n]` says how step k of environment n ends, and the script begins again at its end.

    What is seen, earned and told depends on the environment, the episode, its age and the last action, so that a wrong
    action or a step out of turn shows in everything after it. `late`: a dummy step resets, as NEXT_STEP does.
    """

    def __init__(self, kind: str, ends: NDArray[np.int64], late: bool) -> None:
        self.kind, self.ends, self.late = kind, ends, late
        self.n_envs = ends.shape[1]
        self.repeats = kind == "views"
        self.action_space = spaces.Discrete(3)
        self.observation_space = {
            "views": spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "noise": spaces.Box(-np.inf, np.inf, (7, 7, 3), np.float32),
            "vectors": spaces.Box(-1, 1, (4,), np.float32),
        }[kind]
        self.clock = 0

    def reset(self) -> NDArray[Any]:
        self.episode, self.age, self.action = np.zeros((3, self.n_envs), np.int64)
        self.over = np.zeros(self.n_envs, bool)  # late: the next step resets
        return self._seen()

    def _keys(self) -> NDArray[np.int64]:
        return 7 * np.arange(self.n_envs) + 31 * self.episode + 5 * self.age + 3 * self.action

    def _seen(self) -> NDArray[Any]:
        keys = self._keys()
        if self.kind == "vectors":
            return np.sin(keys[:, None] + np.arange(4)).astype(np.float32)
        views = np.stack([observation(int(key % 12)) for key in keys])
        if self.kind == "views":
            return views
        return (views + np.random.default_rng(self.clock).normal(0, 0.3, views.shape)).astype(np.float32)

    def step(self, actions: NDArray[np.int64]) -> EnvStep:
        dummy = self.over if self.late else np.zeros(self.n_envs, bool)
        ends = np.where(dummy, GOES_ON, self.ends[self.clock % len(self.ends)])
        self.clock += 1
        self._begin(dummy)
        self.action = np.where(dummy, 0, actions)
        self.age = self.age + ~dummy
        terminated, truncated = np.isin(ends, (TERMINATES, BOTH)), np.isin(ends, (TRUNCATES, BOTH))
        done, rewards, seen = terminated | truncated, np.where(dummy, 0.0, np.cos(self._keys())), self._seen()
        final = np.flatnonzero(done & ~np.bool_(self.late))
        last = seen[final]
        if self.late:
            self.over = done
        elif len(final):
            self._begin(done)
            seen = self._seen()
        return EnvStep(seen, rewards, terminated, truncated, ~dummy, dummy if self.late else done, final, last)

    def _begin(self, anew: NDArray[np.bool_]) -> None:
        self.episode = self.episode + anew
        self.age, self.action = np.where(anew, 0, self.age), np.where(anew, 0, self.action)

    def state_hashes(self) -> NDArray[np.uint64]:
        return self._keys().astype(np.uint64) + np.uint64(2**63)

    def positions(self) -> NDArray[np.int64]:
        return np.stack([self.episode, self.age], -1)

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> NDArray[Any]:
        raise NotImplementedError

    def render(self, index: int) -> NDArray[np.uint8]:
        raise NotImplementedError

    def close(self) -> None:
        pass
