"""What the probes must find in the embeddings: key, door and goal, read from the engine's full states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from deir.config import EnvConfig
from deir.envs import make_envs
from deir.envs.base import EnvStep, VectorEnvs
from deir.envs.minigrid import cells
from deir.envs.minigrid.engine import GridStates, MiniGridEnvs
from deir.errors import invalid

LABELS = ("key", "door", "key_distance", "door_distance", "goal_distance")
BINARY = 2  # the first labels are 0 or 1, the rest distances
EXPECTED = "a MiniGrid task with one key, one door and one goal, such as DoorKey-8x8"

Labels = NDArray[np.float32]


def labels_of(states: GridStates) -> Labels:
    """[N, 5] in the order of LABELS.

    key: the agent holds it; door: it is open. Distances are |dx| + |dy| from the agent over width + height; a key in
    the agent's hand is at distance 0.
    """
    kinds = states.cells & 0xF  # [N, H, W]
    height, width = kinds.shape[1:]
    held = (states.carrying & 0xF) == cells.KEY
    door_y, door_x = _places(kinds, cells.DOOR)
    doors = states.cells[np.arange(len(kinds)), door_y, door_x]
    is_open = cells.CHANNELS[doors, 2] == cells.OPEN

    def distance(places: tuple[NDArray[np.int64], NDArray[np.int64]]) -> NDArray[np.float64]:
        y, x = places
        return (np.abs(states.x - x) + np.abs(states.y - y)) / (width + height)

    to_key = np.where(held, 0.0, distance(_places(kinds, cells.KEY)))
    columns = [held, is_open, to_key, distance((door_y, door_x)), distance(_places(kinds, cells.GOAL))]
    return np.stack(columns, axis=-1).astype(np.float32)


def _places(kinds: NDArray[Any], kind: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of the first cell of this kind in each environment; (0, 0) where there is none."""
    first = (kinds == kind).reshape(len(kinds), -1).argmax(1)
    row, column = np.divmod(first, kinds.shape[2])
    return row, column


class LabelledEnvs:
    """Environments that write down the labels of each state before it is acted in."""

    def __init__(self, envs: MiniGridEnvs, task: str) -> None:
        self.envs, self.task, self.labels = envs, task, list[Labels]()

    def reset(self) -> NDArray[Any]:
        """Refuses a task that has no such labels, by its first layouts."""
        observations = self.envs.reset()
        kinds = self.envs.states().cells & 0xF
        for kind in (cells.KEY, cells.DOOR, cells.GOAL):
            if not ((kinds == kind).sum((1, 2)) == 1).all():
                raise invalid("env", self.task, EXPECTED)
        return observations

    def step(self, actions: NDArray[np.int64]) -> EnvStep:
        self.labels.append(labels_of(self.envs.states()))
        return self.envs.step(actions)

    def take(self) -> Labels:
        """[T, N, 5] of the steps since the last call."""
        taken, self.labels = np.stack(self.labels), []
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self.envs, name)


def labelled(envs: VectorEnvs, task: str) -> LabelledEnvs:
    """`envs` with labels."""
    if not isinstance(envs, MiniGridEnvs):
        raise invalid("env", task, EXPECTED)
    return LabelledEnvs(envs, task)


def check_task(config: EnvConfig) -> None:
    """Refuses a task that has no such labels, by its first layout."""
    envs = make_envs(replace(config, n_envs=1, layout_worker=False))
    try:
        labelled(envs, config.id).reset()
    finally:
        envs.close()


def as_envs(recorded: LabelledEnvs) -> VectorEnvs:
    """It keeps the whole contract, though a type checker cannot see that."""
    return cast(VectorEnvs, recorded)
