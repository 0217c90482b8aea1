"""Any Gymnasium environment: whatever `deir.envs.layout` can lay out to see and to do."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from deir.config import EnvConfig
from deir.envs.base import GRID_ACTIONS, GRID_OPTIONS, Backend, EnvStep, reject_options
from deir.envs.layout import LARGEST_FLOAT, ActionLayout, ObservationLayout, fits_float32
from deir.envs.minigrid.missions import MISSIONS
from deir.envs.minigrid.state_hash import state_hash
from deir.envs.observations import add_noise, invisible_obstacles
from deir.envs.seeds import env_seeds, stream
from deir.envs.sources import Factory, find_source, is_minigrid_class, make_vector, registered_names
from deir.errors import UserError, unknown


def _silence_babyai() -> None:
    """BabyAI prints a line for every layout it draws again, which would tear the progress display."""
    level = sys.modules.get("minigrid.envs.babyai.core.roomgrid_level")
    if level is not None:
        vars(level)["print"] = lambda *_: None  # hides the built-in for that module alone


def _autoreset_mode(vector: VectorEnv[Any, Any, Any], name: str) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        modes = ", ".join(m.value for m in AutoresetMode)
        raise UserError(
            f"env: {name} does not say when it resets; set metadata['autoreset_mode'] to one of: {modes} (got {mode!r})"
        ) from None


class GymnasiumEnvs(Backend):
    """Keeps the contract for what `config.id` names, or for what `factory` makes.

    A factory returns one `gymnasium.Env` at every call, or a ready `VectorEnv` of `config.n_envs` (it is given
    `num_envs` and `render_mode` if it has parameters of these names). Environments are reset within the step that ends
    an episode; a ready vector environment may reset one step later (NEXT_STEP), which makes a dummy step, or not at all
    (DISABLED), in which case it is reset here.
    """

    def __init__(self, config: EnvConfig, seed: int = 0, generation: int = 0, factory: Factory | None = None) -> None:
        source = factory or find_source(config.id)
        if source is None:
            raise unknown("env", config.id, registered_names(), listing="deir list envs")
        self._name = config.id if factory is None else getattr(factory, "__name__", repr(factory))
        self._vector: VectorEnv[Any, Any, Any] = make_vector(source, config)
        self._mode = _autoreset_mode(self._vector, self._name)
        self._config = config
        fixed = config.fixed_layout is not None  # seeded by itself at every reset
        self._seeds: list[int] | None = None if fixed else env_seeds(config.n_envs, seed, generation)
        self._noise_rng = stream(seed, generation, 1)
        self._ended = np.zeros(config.n_envs, np.bool_)  # [N] NEXT_STEP: the next step resets this one

        self._actions = ActionLayout(self._vector.single_action_space, self._name)
        self._singles: list[gymnasium.Env[Any, Any]] = list(getattr(self._vector.unwrapped, "envs", ()))
        _silence_babyai()
        self._grids: list[Any] = [e.unwrapped for e in self._singles if is_minigrid_class(type(e.unwrapped))]
        self._layout = self._observation_layout()
        if not self._shows_grid_codes():
            reject_options(config, GRID_OPTIONS, f"{self._name} does not show MiniGrid's views")

        self.n_envs = config.n_envs
        self.action_space = self._actions.space
        self.observation_space: Space[Any] = self._layout.space
        self.repeats = self._shows_grid_codes() and not config.noise
        self.action_names = GRID_ACTIONS if self._grids else ()

    def _observation_layout(self) -> ObservationLayout:
        """Of MiniGrid's dictionaries the view alone, unless more is asked for; all parts of others."""
        config, only = self._config, None
        if self._grids:
            only = ["image", *(name for name in ("direction", "mission") if getattr(config, name))]
        layout = ObservationLayout.of(self._vector.single_observation_space, self._name, only, MISSIONS)
        view = next(iter(layout.parts.values()))
        if config.noise:
            view = Box(-np.inf, np.inf, view.shape, np.float32)
        return layout.with_change(view, self._alter) if config.noise or config.invisible_obstacles else layout

    def _shows_grid_codes(self) -> bool:
        """MiniGrid's own views of codes, not pictures of them as some wrappers give."""
        shape = next(iter(self._layout.parts.values())).shape
        whole = self._config.full_view
        sides = [(g.width, g.height) if whole else (g.agent_view_size, g.agent_view_size) for g in self._grids]
        return bool(sides) and all(shape == (*side, 3) for side in sides)

    def reset(self) -> NDArray[Any]:
        """Begins the next episode in every environment; the first call seeds them."""
        try:
            raw, _ = self._vector.reset(seed=self._take_seeds())
        except (gymnasium.error.Error, ImportError, OSError) as error:  # such as files a package does not ship
            raise UserError(f"env: {self._name} cannot begin an episode: {error}") from error
        self._ended = np.zeros(self.n_envs, np.bool_)
        return self._layout.batch(raw)

    def _take_seeds(self) -> Any:
        seeds, self._seeds = self._seeds, None
        # A vector environment that does not consist of single ones has one generator, hence one seed.
        takes_list = isinstance(self._vector.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        return seeds if takes_list or seeds is None else seeds[0]

    def step(self, actions: NDArray[np.int64]) -> EnvStep:
        raw, raw_rewards, raw_terminated, raw_truncated, infos = self._vector.step(self._actions.native(actions))
        dummy = self._ended  # [N]
        rewards = np.where(dummy, 0.0, np.asarray(raw_rewards, np.float64))
        self._check_rewards(rewards)
        if not self._config.time_penalty:
            rewards[rewards > 0] = 1.0
        terminated = np.asarray(raw_terminated, np.bool_) & ~dummy
        truncated = np.asarray(raw_truncated, np.bool_) & ~dummy
        done = terminated | truncated

        if self._mode is AutoresetMode.NEXT_STEP:
            self._ended, starts = done, dummy
            indices = np.empty(0, np.int64)
            observations, finals = self._layout.batch(raw), self._layout.rows(raw, indices)
        else:
            starts, indices = done, np.flatnonzero(done)
            observations, finals = self._reset_within_step(raw, infos, indices)
        return EnvStep(
            observations=observations,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            valid=~dummy,
            starts=starts,
            final_indices=indices,
            final_observations=finals,
        )

    def _check_rewards(self, rewards: NDArray[np.float64]) -> None:
        """Named here, where it comes from: later it would only be a loss that is not finite."""
        bad = np.flatnonzero(~fits_float32(rewards))
        if len(bad):
            raise UserError(
                f"env: {self._name} gave the reward {rewards[bad[0]]} in environment {bad[0]}, expected a finite "
                f"number of at most {LARGEST_FLOAT:.3g}"
            )

    def _reset_within_step(
        self, raw: Any, infos: dict[str, Any], indices: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """-> first observations of the new episodes where one ended [N, *obs], last ones of the old [K, *obs]."""
        if not len(indices):
            return self._layout.batch(raw), self._layout.rows(raw, indices)
        if self._mode is AutoresetMode.SAME_STEP:
            if "final_obs" not in infos:
                raise UserError(f"env: {self._name} resets within the step but gives no infos['final_obs']")
            return self._layout.batch(raw), self._layout.rows(infos["final_obs"], indices)
        observations, finals = self._layout.batch(raw), self._layout.rows(raw, indices)
        mask = np.isin(np.arange(self.n_envs), indices)
        fresh, _ = self._vector.reset(options={"reset_mask": mask})
        observations[indices] = self._layout.rows(fresh, indices)
        return observations, finals

    def _alter(self, observations: NDArray[Any]) -> NDArray[Any]:
        """The variants of MiniGrid's views."""
        if self._config.invisible_obstacles:
            observations = invisible_obstacles(observations)
        if self._config.noise:
            observations = add_noise(observations, self._config.noise, self._config.noise_units, self._noise_rng)
        return observations

    def state_hashes(self) -> NDArray[np.uint64] | None:
        if not self._grids:
            return None
        return np.array([state_hash(grid) for grid in self._grids], np.uint64)

    def positions(self) -> NDArray[np.int64] | None:
        return np.array([grid.agent_pos for grid in self._grids], np.int64) if self._grids else None

    def render(self, index: int) -> NDArray[np.uint8]:
        try:
            frame = self._frame(index)
        except (gymnasium.error.Error, ImportError, NotImplementedError) as error:
            reason = str(error) or "it has no render method"
            raise UserError(f"env: {self._name} cannot be drawn: {reason}") from None
        if not isinstance(frame, np.ndarray):
            raise UserError(
                f"env: {self._name} draws no pictures; its factory must make it with render_mode='rgb_array'"
            )
        return frame.astype(np.uint8)

    def _frame(self, index: int) -> Any:
        if self._grids:
            return self._grids[index].get_frame(highlight=True, tile_size=self._grids[index].tile_size)
        if self._singles:
            return self._singles[index].render()
        frames = self._vector.render()
        return None if frames is None else frames[index]

    def close(self) -> None:
        self._vector.close()
