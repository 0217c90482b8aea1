"""What makes the environments of a name: a registered id, or a callable named module:factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

import deir.envs.minigrid.catalogue as catalogue
from deir.config import EnvConfig
from deir.envs.base import GRID_OPTIONS, reject_options
from deir.errors import UserError, invalid, unknown
from deir.imports import import_named

Factory = Callable[..., Any]


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


def is_minigrid(source: EnvSpec | Factory) -> bool:
    """Whether `source` is known, before anything is made, to make MiniGrid or BabyAI environments."""
    creator: Any = creator_of(source) if isinstance(source, EnvSpec) else source
    return isinstance(creator, type) and is_minigrid_class(creator)


def is_minigrid_class(cls: type) -> bool:
    """By name, so that tasks which have nothing to do with MiniGrid need not import it."""
    return any(base.__module__ == "minigrid.minigrid_env" and base.__name__ == "MiniGridEnv" for base in cls.__mro__)


def creator_of(spec: EnvSpec) -> Any:
    if not isinstance(spec.entry_point, str):
        return spec.entry_point
    try:
        return load_env_creator(spec.entry_point)
    except (gymnasium.error.Error, ImportError, AttributeError) as error:
        raise UserError(f"env: {spec.id} cannot be made: {error}") from None


def make_vector(source: EnvSpec | Factory, config: EnvConfig) -> VectorEnv[Any, Any, Any]:
    """`config.n_envs` of them."""
    if isinstance(source, EnvSpec):
        return _make_registered(source, config)
    return _make_from_factory(source, config)


def _make_registered(spec: EnvSpec, config: EnvConfig) -> VectorEnv[Any, Any, Any]:
    grid = is_minigrid(spec)
    if not grid:
        reject_options(config, GRID_OPTIONS, f"{spec.id} is not a MiniGrid task")
    options: dict[str, Any] = {"disable_env_checker": True}
    if "rgb_array" in (getattr(creator_of(spec), "metadata", None) or {}).get("render_modes", ()):
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
            wrappers=(partial(_varied, config=config),) if grid else None,  # type: ignore[arg-type]  # or none of it
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
        whole = f"{config.id} makes a ready vector environment"
        reject_options(config, ("full_view", "fixed_layout"), whole)
        if first.num_envs != config.n_envs:
            raise invalid("env.n_envs", config.n_envs, f"{first.num_envs}, as many as {config.id} makes")
        return first
    if not isinstance(first, gymnasium.Env):
        raise UserError(
            f"env: {config.id} returned {type(first).__name__}, expected a gymnasium.Env or gymnasium.vector.VectorEnv"
        )
    ready = [first]
    return SyncVectorEnv(
        [lambda: _varied(_limited(ready.pop() if ready else make(), config.max_steps), config)] * config.n_envs,
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


def _varied(env: gymnasium.Env[Any, Any], config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """A MiniGrid task with Farama's wrapper for the whole grid, and for one layout; others as they are."""
    if not is_minigrid_class(type(env.unwrapped)):
        return env
    from minigrid.wrappers import FullyObsWrapper, ReseedWrapper

    env = env if config.fixed_layout is None else ReseedWrapper(env, seeds=(config.fixed_layout,))
    return FullyObsWrapper(env) if config.full_view else env
