"""Any Gymnasium environment: whatever `deir.envs.spaces` can lay out to see and to do."""

from __future__ import annotations

import inspect
import struct
import sys
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.spaces import Box, Space
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

import deir.envs.minigrid.catalogue as catalogue
from deir.config import EnvConfig
from deir.envs.base import EnvStep
from deir.envs.minigrid.missions import MISSIONS
from deir.envs.observations import add_noise, invisible_obstacles
from deir.envs.spaces import LARGEST_FLOAT, ActionLayout, ObservationLayout, fits_float32
from deir.errors import UserError, invalid, unknown
from deir.imports import import_named

if TYPE_CHECKING:
    from minigrid.core.world_object import WorldObj
    from minigrid.minigrid_env import MiniGridEnv

Factory = Callable[..., Any]
GRID_OPTIONS = ("view_size", "noise", "invisible_obstacles", "time_penalty", "direction", "mission")
_ENVS_STREAM = int.from_bytes(b"envs")  # keeps these seeds apart from the run's other streams


def _stream(seed: int, generation: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_ENVS_STREAM, generation, purpose)))


def env_seeds(n_envs: int, seed: int, generation: int = 0) -> list[int]:
    """[N] one distinct seed (31 bits, which every library takes) for each environment of a run.

    A resumed run that cannot restore its environments asks for another `generation`: other episodes, reproducibly.
    """
    return [int(s) for s in _stream(seed, generation, 0).choice(2**31 - 1, size=n_envs, replace=False)]


def registered_names() -> list[str]:
    return list(gymnasium.registry)


def find_source(name: str) -> EnvSpec | Factory | None:
    """What makes `name`: a registered specification, the callable behind module:factory, or None if it is unknown."""
    task = catalogue.resolve(name)  # a short name of a MiniGrid task stands for its registered id
    if task is not None:
        return gymnasium.registry[task.gym_id] if task.gym_id is not None else task.build
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        return None
    module = import_named("env", name, "package.module:factory")
    if attribute in gymnasium.registry:  # Gymnasium's own module:Id-v0: importing the module registers the id
        return gymnasium.registry[attribute]
    factory = getattr(module, attribute, None)
    if not callable(factory):
        choices = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown(f"env: factory in module {module_name!r}", attribute, choices)
    return factory  # type: ignore[no-any-return]


def suits_control(name: str) -> str | None:
    """The preset for a registered task by its spaces: continuous, control, or None for images and other names."""
    if name not in gymnasium.registry or name.startswith(("MiniGrid-", "BabyAI-")):
        return None
    try:
        env = gymnasium.make(name, disable_env_checker=True)
    except Exception:  # whatever it is, making the environments will tell
        return None
    sees, acts = env.observation_space, env.action_space
    env.close()
    if isinstance(acts, Box):
        return "continuous"
    return "control" if isinstance(sees, Box) and len(sees.shape) == 1 else None


def is_minigrid(source: EnvSpec | Factory) -> bool:
    """Whether `source` is known, before anything is made, to make MiniGrid or BabyAI environments."""
    creator: Any = _creator(source) if isinstance(source, EnvSpec) else source
    return isinstance(creator, type) and _is_minigrid_class(creator)


def _is_minigrid_class(cls: type) -> bool:
    """By name, so that tasks which have nothing to do with MiniGrid need not import it."""
    return any(base.__module__ == "minigrid.minigrid_env" and base.__name__ == "MiniGridEnv" for base in cls.__mro__)


def _creator(spec: EnvSpec) -> Any:
    if not isinstance(spec.entry_point, str):
        return spec.entry_point
    try:
        return load_env_creator(spec.entry_point)
    except (gymnasium.error.Error, ImportError, AttributeError) as error:
        raise UserError(f"env: {spec.id} cannot be made: {error}") from None


def reject_options(config: EnvConfig, fields: tuple[str, ...], reason: str) -> None:
    """An option that would have no effect is a mistake, not something to pass over."""
    default = EnvConfig()
    for field in fields:
        if getattr(config, field) != getattr(default, field):
            raise UserError(f"env.{field}: got {getattr(config, field)!r}, but {reason}; leave it out")


def _make_registered(spec: EnvSpec, config: EnvConfig) -> VectorEnv[Any, Any, Any]:
    grid = is_minigrid(spec)
    if not grid:
        reject_options(config, GRID_OPTIONS, f"{spec.id} is not a MiniGrid task")
    options: dict[str, Any] = {"disable_env_checker": True}
    if "rgb_array" in (getattr(_creator(spec), "metadata", None) or {}).get("render_modes", ()):
        options["render_mode"] = "rgb_array"
    if config.view_size is not None:
        options["agent_view_size"] = config.view_size
    if config.max_steps is not None:
        # MiniGrid counts for itself, and its reward depends on the limit.
        options["max_steps" if grid else "max_episode_steps"] = config.max_steps
    try:
        return gymnasium.make_vec(
            spec,
            num_envs=config.n_envs,
            vectorization_mode="sync",
            vector_kwargs={"copy": False, "autoreset_mode": AutoresetMode.SAME_STEP},
            **options,
        )
    except (gymnasium.error.Error, ImportError) as error:
        raise UserError(f"env: {spec.id} cannot be made: {error}") from None


def _make_from_factory(factory: Factory, config: EnvConfig) -> VectorEnv[Any, Any, Any]:
    reject_options(config, ("view_size",), f"{config.id} makes its environments itself and decides their view")
    make = partial(factory, **_accepted(factory, config))
    first = make()
    if isinstance(first, VectorEnv):
        reject_options(config, ("max_steps",), f"{config.id} makes a ready vector environment with limits of its own")
        if first.num_envs != config.n_envs:
            raise invalid("env.n_envs", config.n_envs, f"{first.num_envs}, as many as {config.id} makes")
        return first
    if not isinstance(first, gymnasium.Env):
        raise UserError(
            f"env: {config.id} returned {type(first).__name__}, expected a gymnasium.Env or gymnasium.vector.VectorEnv"
        )
    ready = [first]
    return SyncVectorEnv(
        [lambda: _limited(ready.pop() if ready else make(), config.max_steps)] * config.n_envs,
        copy=False,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


def _accepted(factory: Factory, config: EnvConfig) -> dict[str, Any]:
    """The keyword arguments, of those offered, that the factory has parameters for."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables of C extensions tell no signature
        return {}
    offers = {"num_envs": config.n_envs, "render_mode": "rgb_array"}
    accepted = {key: value for key, value in offers.items() if key in signature.parameters}
    try:
        signature.bind(**accepted)
    except TypeError as error:
        raise UserError(
            f"env: factory {config.id} must need no arguments but num_envs and render_mode ({error})"
        ) from None
    return accepted


def _limited(env: gymnasium.Env[Any, Any], max_steps: int | None) -> gymnasium.Env[Any, Any]:
    if max_steps is None:
        return env
    own = env.spec.max_episode_steps if env.spec is not None else None
    if own is not None and own < max_steps:
        raise invalid("env.max_steps", max_steps, f"at most {own}, the limit the factory itself sets")
    return TimeLimit(env, max_steps)


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


def _code(thing: WorldObj | None) -> bytes:
    """Type, colour and state; a box is followed by what it holds."""
    if thing is None:
        return b"\1\0\0"  # MiniGrid's code of an empty cell
    code = bytes(thing.encode())
    return code + _code(thing.contains) if thing.type == "box" else code


def state_hash(env: MiniGridEnv) -> int:
    """A 64-bit number of the full state: all cells, contents of boxes, the agent's place, heading and load."""
    cells = b"".join([_code(thing) for thing in env.grid.grid])
    x, y = env.agent_pos
    agent = struct.pack("<4i", env.grid.width, x, y, env.agent_dir)
    return int.from_bytes(blake2b(cells + agent + _code(env.carrying), digest_size=8).digest(), "little")


class GymnasiumEnvs:
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
        make = _make_registered if isinstance(source, EnvSpec) else _make_from_factory
        self._vector: VectorEnv[Any, Any, Any] = make(source, config)  # type: ignore[arg-type]
        self._mode = _autoreset_mode(self._vector, self._name)
        self._config = config
        self._seeds: list[int] | None = env_seeds(config.n_envs, seed, generation)
        self._noise_rng = _stream(seed, generation, 1)
        self._ended = np.zeros(config.n_envs, np.bool_)  # [N] NEXT_STEP: the next step resets this one

        self._actions = ActionLayout(self._vector.single_action_space, self._name)
        self._singles: list[gymnasium.Env[Any, Any]] = list(getattr(self._vector.unwrapped, "envs", ()))
        _silence_babyai()
        self._grids: list[Any] = [e.unwrapped for e in self._singles if _is_minigrid_class(type(e.unwrapped))]
        self._layout = self._observation_layout()
        if not self._shows_grid_codes():
            reject_options(config, GRID_OPTIONS, f"{self._name} does not show MiniGrid's views")

        self.n_envs = config.n_envs
        self.action_space = self._actions.space
        self.observation_space: Space[Any] = self._layout.space
        self.repeats = self._shows_grid_codes() and not config.noise

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
        return bool(self._grids) and all(shape == (g.agent_view_size, g.agent_view_size, 3) for g in self._grids)

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

    def state_dict(self) -> dict[str, Any] | None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> NDArray[Any]:
        raise NotImplementedError(
            "Gymnasium environments cannot be restored; make them with another generation instead"
        )

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
