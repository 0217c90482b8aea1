"""MiniGrid for N environments at once: Farama's own layouts, and its rules on plain integer arrays.

Same seeds and actions give exactly what the Farama task gives: observation, reward, terminated and truncated at every
step. There is no Python loop over environments but over those that begin a new episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

import deir.envs.minigrid.cells as cells
from deir.config import EnvConfig
from deir.envs.base import GRID_ACTIONS, EnvStep
from deir.envs.minigrid.boards import Board
from deir.envs.minigrid.catalogue import TaskSpec
from deir.envs.minigrid.cells import EMPTY
from deir.envs.minigrid.layouts import NOISE_STREAM, LayoutStock
from deir.envs.minigrid.rules import DONE, act, look, state_hashes, survey
from deir.envs.observations import invisible_obstacles, largest_codes, with_noise
from deir.envs.spaces import PackedBox
from deir.errors import UserError, invalid

_FORWARD_X = np.array([1, 0, -1, 0])  # by direction: right, down, left, up
_FORWARD_Y = np.array([0, 1, 0, -1])
_LARGEST_PICTURE = 640  # pixels, where the tiles' 32 would be more

Indices = NDArray[np.int64]


class GridStates(NamedTuple):
    """The full states of all N environments but their step counts; cells and carried objects are codes of `cells`."""

    cells: NDArray[np.uint16]  # [N, H, W]
    x: Indices  # [N] of the agent
    y: Indices  # [N]
    directions: Indices  # [N]
    carrying: NDArray[np.uint16]  # [N] EMPTY: nothing


class MiniGridEnvs:
    """N copies of one MiniGrid task; a `VectorEnvs` that resets within the step."""

    action_names: tuple[str, ...] = GRID_ACTIONS

    def __init__(self, spec: TaskSpec, config: EnvConfig, seed: int) -> None:
        if config.view_size is not None and (config.view_size < 3 or config.view_size % 2 == 0):
            raise invalid("env.view_size", config.view_size, "an odd number of at least 3, such as 3, 5, 7 or 9")
        self._spec, self._config, self._seed = spec, config, seed
        self.n_envs = config.n_envs
        self._layouts = LayoutStock(spec, seed, config.n_envs, worker=config.layout_worker, fixed=config.fixed_layout)
        env = self._layouts.maker.env
        self._view: int = config.view_size or env.agent_view_size
        shape = (env.width, env.height, 3) if config.full_view else (self._view, self._view, 3)
        self._view_shape = shape
        view = spaces.Box(-np.inf, np.inf, shape, np.float32) if config.noise else spaces.Box(0, 255, shape, np.uint8)
        self._packed = PackedBox({"image": view, "direction": spaces.Box(0, 1, (4,), np.uint8)})
        self.observation_space: spaces.Space[Any] = self._packed if config.direction else view
        self.action_space: spaces.Space[Any] = spaces.Discrete(DONE + 1)
        self.repeats = config.noise == 0
        self._max_steps = config.max_steps or env.max_steps
        self._any_pickup_ends = bool(self._layouts.maker.ending.any_pickup)
        self._see_through = bool(env.see_through_walls)
        # Invisible obstacles change each cell on its own, so changing the table changes every view.
        self._channels = invisible_obstacles(cells.CHANNELS) if config.invisible_obstacles else cells.CHANNELS
        self._noise = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(NOISE_STREAM,)))
        self.on_end: Callable[[Indices], None] | None = None  # told who ends, while `states` is still of that episode
        self._allocate(env.width, env.height)

    def _allocate(self, width: int, height: int) -> None:
        self._everyone = np.arange(self.n_envs)
        n, pad = self.n_envs, self._view - 1  # a view never reaches further than that over the border
        self._width, self._height = width, height
        stride = width + 2 * pad
        self._padded = np.full((n, height + 2 * pad, stride), cells.WALL, dtype=np.uint16)
        self._cells = self._padded[:, pad : pad + height, pad : pad + width]  # [N, H, W] view without the border
        self._flat = self._padded.reshape(-1)
        self._stride, self._pad = stride, pad
        self._origins = np.arange(n) * self._padded[0].size + pad * stride + pad  # [N] flat index of cell (0, 0)
        y, x = np.divmod(np.arange(height * stride), stride)
        self._numbers = y * width + x  # flat distance from cell (0, 0) -> number of the cell whatever the view's size
        self._positions = self._origins.copy()  # [N] flat index of the agent's cell
        self._directions = np.zeros(n, dtype=np.int64)
        self._carrying = np.full(n, EMPTY, dtype=np.uint16)  # EMPTY: nothing
        self._steps = np.zeros(n, dtype=np.int64)
        self._episodes = np.zeros(n, dtype=np.int64)  # [N] number of the next episode
        self._grid_hashes = np.zeros(n, dtype=np.uint64)
        self._observations: NDArray[Any] = np.zeros((n, *self.observation_space.shape), self.observation_space.dtype)  # type: ignore[misc]
        ahead = _FORWARD_X + _FORWARD_Y * stride  # [4] flat step forward
        right = -_FORWARD_Y + _FORWARD_X * stride  # [4] flat step to the agent's right
        self._ahead = ahead
        column, row = np.mgrid[: self._view, : self._view]  # [V, V] MiniGrid's image is indexed [column, row]
        forward, sideways = self._view - 1 - row, column - self._view // 2
        self._window = ahead[:, None, None] * forward + right[:, None, None] * sideways  # [4, V, V]

    def reset(self) -> NDArray[Any]:
        """Begins the next episode in every environment."""
        self._observations = self.begin(self._everyone)
        return self._observations.copy()

    def step(self, actions: NDArray[np.int64]) -> EnvStep:
        success, terminated = self._act(np.asarray(actions))
        truncated = self._steps >= self._max_steps
        rewards = self._rewards(success)
        observations = self._observe(self._everyone, self.draw_noise(1)[0])
        starts = terminated | truncated
        ended = np.flatnonzero(starts)
        finals = observations[ended]
        if ended.size:
            if self.on_end is not None:
                self.on_end(ended)
            observations[ended] = self.begin(ended)
        self._observations = observations
        valid = np.ones(self.n_envs, dtype=np.bool_)
        return EnvStep(observations.copy(), rewards, terminated, truncated, valid, starts, ended, finals)

    def _act(self, actions: Indices) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Moves all agents; [N] success, [N] terminated."""
        if actions.shape != (self.n_envs,) or actions.min() < 0 or actions.max() > DONE:
            raise ValueError(f"expected {self.n_envs} actions from 0 to {DONE}, got {actions!r}")
        self._steps += 1
        return act(
            actions, self._flat, self._origins, self._numbers, self._ahead, self._positions, self._directions,
            self._carrying, self._grid_hashes, self._any_pickup_ends,
        )  # fmt: skip

    def _rewards(self, success: NDArray[np.bool_]) -> NDArray[np.float64]:
        """1 - 0.9 t / T on success, or 1 without the time penalty."""
        if not self._config.time_penalty:
            return success.astype(np.float64)
        return success * (1 - 0.9 * (self._steps / self._max_steps))

    def begin(self, envs: Indices) -> NDArray[Any]:
        """A new episode in each of `envs`; [K, *obs] their first observations."""
        for env in envs.tolist():
            layout = self._layouts.take(env, int(self._episodes[env]))
            self._cells[env] = layout.cells.reshape(self._height, self._width)
            self._positions[env] = self._origins[env] + layout.y * self._stride + layout.x
            self._directions[env] = layout.direction
        self._episodes[envs] += 1
        self._carrying[envs] = EMPTY
        self._steps[envs] = 0
        self._rehash(envs)
        return self._observe(envs, self._first_noise(envs))

    def draw_noise(self, steps: int) -> NDArray[np.float32]:
        """[steps, N, *view] standard normal draws for the views after that many steps; as many steps one by one draw
        the same. Without noise there are none."""
        shape = (steps, self.n_envs, *self._view_shape) if self._config.noise else (steps, 0)
        return self._noise.standard_normal(shape, dtype=np.float32)

    def _first_noise(self, envs: Indices) -> NDArray[np.float32]:
        """[K, *view] draws for first observations. Environment and episode name them, as they name the layout: so who
        ends when does not change what others are given."""
        if not self._config.noise:
            return np.zeros((len(envs), 0), np.float32)
        keys = [(NOISE_STREAM, env, int(self._episodes[env])) for env in envs.tolist()]
        streams = [np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=key)) for key in keys]
        return np.stack([stream.standard_normal(self._view_shape, dtype=np.float32) for stream in streams])

    def _observe(self, envs: Indices, drawn: NDArray[np.float32]) -> NDArray[Any]:
        """[K, *obs] of `envs`: the view, with noise and direction where asked for. drawn: [K, *view] for the noise"""
        config = self._config
        if config.full_view:
            views = survey(envs, self._cells, *self._coordinates(), self._directions, self._channels)
        else:
            views = look(
                envs, self._flat, self._positions, self._directions, self._carrying, self._window, self._channels,
                self._see_through,
            )  # fmt: skip
        seen = with_noise(views, config.noise, config.noise_units, drawn) if config.noise else views
        if not config.direction:
            return seen
        return self._packed.pack({"image": seen, "direction": np.eye(4, dtype=np.uint8)[self._directions[envs]]})

    def board(self, envs: slice) -> Board | None:
        """Some environments for compiled loops, which change them in place and end with `played`. None where something
        must happen at each step that they do not do."""
        if self._config.direction or self.on_end is not None:
            return None
        config = self._config
        return Board(
            self._flat, self._cells[envs], self._origins[envs], self._positions[envs], self._directions[envs],
            self._carrying[envs], self._grid_hashes[envs], self._steps[envs], self._numbers, self._ahead, self._window,
            self._channels, largest_codes(config.noise_units), self._stride, int(self._max_steps), float(config.noise),
            config.full_view, self._see_through, self._any_pickup_ends, config.time_penalty,
        )  # fmt: skip

    def played(self, observations: NDArray[Any]) -> None:
        """[N, *obs] what is seen now, after compiled loops."""
        self._observations = observations.copy()

    def state_hashes(self) -> NDArray[np.uint64]:
        """Grid with box contents, agent and carried object; not the step count."""
        return state_hashes(
            self._grid_hashes, self._origins, self._numbers, self._positions, self._directions, self._carrying
        )

    def positions(self) -> NDArray[np.int64]:
        return np.stack(self._coordinates(), 1)

    def _rehash(self, envs: Indices) -> None:
        hashes = cells.mix(np.arange(self._width * self._height) << 16 | self._cells[envs].reshape(len(envs), -1))
        self._grid_hashes[envs] = np.bitwise_xor.reduce(hashes, axis=1)

    def _coordinates(self) -> tuple[Indices, Indices]:
        y, x = np.divmod(self._positions - self._origins, self._stride)
        return x, y

    def states(self) -> GridStates:
        """What stands behind the observations at this moment, for analysis; a copy."""
        return GridStates(self._cells.copy(), *self._coordinates(), self._directions.copy(), self._carrying.copy())

    def state_dict(self) -> dict[str, Any]:
        return {
            "task": self._spec.name,
            "seed": self._seed,
            **self.states()._asdict(),
            "steps": self._steps.copy(),
            "episodes": self._episodes.copy(),
            "observations": self._observations.copy(),  # with noise they cannot be made again
            "noise": self._noise.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> NDArray[Any]:
        observations = np.asarray(state["observations"])
        if state["task"] != self._spec.name or observations.shape != self._observations.shape:
            raise UserError(
                f"saved environments: {observations.shape[0]} of {state['task']} with views {observations.shape[1:]}, "
                f"expected {self.n_envs} of {self._spec.name} with views {self._observations.shape[1:]}"
            )
        self._seed = int(state["seed"])
        self._cells[...] = state["cells"]
        self._positions[...] = self._origins + np.asarray(state["y"]) * self._stride + np.asarray(state["x"])
        self._directions[...] = state["directions"]
        self._carrying[...] = state["carrying"]
        self._steps[...] = state["steps"]
        self._episodes[...] = state["episodes"]
        self._noise.bit_generator.state = state["noise"]
        self._rehash(self._everyone)
        self._layouts.restart(self._seed, self._episodes)
        self._observations = observations.copy()
        return observations.copy()

    def render(self, index: int) -> NDArray[np.uint8]:
        """The whole grid by Farama's renderer, what the agent sees highlighted."""
        from minigrid.core.grid import Grid

        env = self._layouts.maker.env  # every new layout begins with a new grid, so this one is free
        env.grid = Grid(self._width, self._height)
        env.grid.grid = [cells.decode(code) for code in self._cells[index].reshape(-1).tolist()]
        x, y = self._coordinates()
        env.agent_pos, env.agent_dir = (int(x[index]), int(y[index])), int(self._directions[index])
        env.carrying = cells.decode(int(self._carrying[index]))
        env.agent_view_size = self._view
        tile = min(32, _LARGEST_PICTURE // max(self._width, self._height))
        return np.asarray(env.get_frame(highlight=True, tile_size=tile), dtype=np.uint8)

    def close(self) -> None:
        self._layouts.close()
