"""Seed -> layout: Farama's generator of a task as a function."""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import deir.envs.minigrid.cells as cells
from deir.envs.minigrid.catalogue import TaskSpec, ending_of, target_of
from deir.envs.minigrid.random_integers import Draws, UnknownDraw
from deir.envs.minigrid.room_chain import compile_rooms

_HEAD = struct.Struct("<HHB")  # x, y, direction


class Layout(NamedTuple):
    """The first state of an episode."""

    cells: NDArray[np.uint16]  # [H * W], row by row
    x: int
    y: int
    direction: int


class LayoutMaker:
    """Farama's generator of one task, as a function from seed to layout."""

    def __init__(self, spec: TaskSpec) -> None:
        self.env: Any = spec.build()
        ending = ending_of(self.env)
        if ending is None:
            raise ValueError(f"{spec.name} is not a task the batched engine covers")
        self.ending = ending
        self.env.gen_obs = dict  # type: ignore[method-assign]  # the engine makes the observations
        self._draws: Draws | None = Draws()
        compile_rooms(self.env, self._draws)

    def make(self, seed: int) -> Layout:
        self._reset(seed)
        env = self.env
        is_target = target_of(env, self.ending)
        codes = [cells.EMPTY if obj is None else cells.encode(obj, is_target) for obj in env.grid.grid]
        x, y = env.agent_pos
        return Layout(np.array(codes, dtype=np.uint16), int(x), int(y), int(env.agent_dir))

    def _reset(self, seed: int) -> None:
        """`env.reset(seed=seed)`; the same random numbers come faster where the task draws nothing but integers."""
        if self._draws is not None:
            self._draws.seed(seed)
            self.env._np_random = self._draws
            self.env._rand_int = self._draws.between
            try:
                self.env.reset()
                return
            except UnknownDraw:
                self._draws = None
                del self.env._rand_int
                vars(self.env).pop("_placeRoom", None)
        self.env.reset(seed=seed)


def pack(layout: Layout) -> bytes:
    """Compressed, so that a pipe holds hundreds of them."""
    head = _HEAD.pack(layout.x, layout.y, layout.direction)
    return head + zlib.compress(layout.cells.astype("<u2").tobytes(), 1)


def unpack(packed: bytes) -> Layout:
    x, y, direction = _HEAD.unpack_from(packed)
    codes = np.frombuffer(zlib.decompress(packed[_HEAD.size :]), "<u2").astype(np.uint16)
    return Layout(codes, x, y, direction)
