"""What an episode looks like from outside, step by step: MiniGrid's states, or pictures."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deir.envs.base import VectorEnvs
from deir.envs.minigrid.engine import GridStates, MiniGridEnvs

LARGEST_FRAME = 256  # pixels of the longer side


class Camera(Protocol):
    """Looks at the environments before each step, and once more after the last."""

    def look(self) -> None: ...

    def positions(self, env: int, steps: int) -> NDArray[np.int64] | None:
        """[steps+1 or steps, 2] columns and rows of the agent, without the last where nobody tells it."""


class GridCamera:
    """All states of the MiniGrid engine, those in which episodes ended included."""

    def __init__(self, envs: MiniGridEnvs) -> None:
        self.envs = envs
        self.seen: list[GridStates] = []
        self.last: dict[int, tuple[int, GridStates]] = {}  # by environment: when its first episode ended, and how
        envs.on_end = self._ended

    def _ended(self, envs: NDArray[np.int64]) -> None:
        states = self.envs.states()
        for env in envs.tolist():
            one = GridStates._make(part[env : env + 1] for part in states)
            self.last.setdefault(env, (len(self.seen), one))

    def look(self) -> None:
        self.seen.append(self.envs.states())

    def states(self, env: int, steps: int) -> GridStates:
        """Of the first episode, time first: cells [steps+1, H, W] and so on."""
        when, last = self.last.get(env, (-1, None))
        parts = [[part[env] for part in states] for states in self.seen[: steps + 1]]
        if last is not None and when <= steps:
            parts[when:] = [[part[0] for part in last]]
        return GridStates(*(np.stack(column) for column in zip(*parts, strict=True)))

    def positions(self, env: int, steps: int) -> NDArray[np.int64]:
        states = self.states(env, steps)
        return np.stack([states.x, states.y], 1)


class FrameCamera:
    """Pictures that the environments draw of themselves, of the first `shown` of them."""

    def __init__(self, envs: VectorEnvs, shown: int, largest: int = LARGEST_FRAME) -> None:
        self.envs, self.shown, self.largest = envs, shown, largest
        self.frames: list[list[NDArray[np.uint8]]] = [[] for _ in range(shown)]
        self.places: list[NDArray[np.int64]] = []
        self.last: dict[tuple[int, int], NDArray[np.uint8]] = {}  # how episodes ended, by environment and time
        if isinstance(envs, MiniGridEnvs):
            envs.on_end = self._ended

    def _ended(self, envs: NDArray[np.int64]) -> None:
        for env in envs[envs < self.shown].tolist():
            self.last[env, len(self.frames[env])] = self._picture(env)

    def _picture(self, env: int) -> NDArray[np.uint8]:
        return smaller(self.envs.render(env), self.largest)

    def look(self) -> None:
        for env, frames in enumerate(self.frames):
            frames.append(self._picture(env))
        places = self.envs.positions()
        if places is not None:
            self.places.append(places)

    def pictures(self, env: int, begin: int, end: int, begun: bool) -> list[NDArray[np.uint8]]:
        """Of the episode of steps begin … end-1, [steps+1]. `begun`: the next episode is what one sees after them.

        Where nobody tells how it ended, the last picture stands twice.
        """
        frames = self.frames[env][begin:end]
        after = frames[-1] if begun else self.frames[env][end]
        return [*frames, self.last.get((env, end), after)]

    def positions(self, env: int, steps: int) -> NDArray[np.int64] | None:
        return np.stack(self.places)[:steps, env] if self.places else None


def smaller(frame: NDArray[np.uint8], largest: int) -> NDArray[np.uint8]:
    """Every k-th pixel, so that the longer side has at most `largest`."""
    step = -(-max(frame.shape[:2]) // largest)
    return frame[::step, ::step].copy()


def make_camera(envs: VectorEnvs, shown: int) -> GridCamera | FrameCamera:
    return GridCamera(envs) if isinstance(envs, MiniGridEnvs) else FrameCamera(envs, shown)


def repeated(envs: MiniGridEnvs, env: int) -> NDArray[Any]:
    """Puts every environment into the state of one of them; what the agents see."""
    state = envs.state_dict()
    for name, value in state.items():
        if isinstance(value, np.ndarray) and name != "episodes":
            state[name] = np.repeat(value[env : env + 1], envs.n_envs, axis=0)
    return envs.load_state_dict(state)
