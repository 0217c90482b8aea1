"""Environments of every kind, made by one function: `make_envs(EnvConfig(...))`; the registry of backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deir.config import EnvConfig
from deir.envs.base import GRID_OPTIONS, PROCGEN_OPTIONS, Backend, EnvStep, VectorEnvs, reject_options
from deir.errors import unknown
from deir.imports import BACKEND_PREFIXES
from deir.registry import Entry, Registry

if TYPE_CHECKING:
    from deir.envs.minigrid.catalogue import TaskSpec

__all__ = ["EnvStep", "VectorEnvs", "check_env", "env_names", "has_success", "make_envs", "register_backend"]

BACKENDS: Registry[Backend] = Registry(
    "backend",
    "deir.envs.base:Backend",
    "package.module:Class of your own, or deir.register_backend",
    {"procgen": Entry("deir.envs.procgen", "ProcgenEnvs", "ProcGen's sixteen games, through EnvPool")},
)
"""By the prefix of their tasks' names (procgen:jumper). Names without one are MiniGrid's and Gymnasium's."""


def register_backend(name: str, cls: type[Backend], description: str = "") -> None:
    """Makes a user's class the backend of all tasks named `name:…`. It holds for this program."""
    BACKENDS.register(name, cls, description)
    BACKEND_PREFIXES.add(f"{name}:")


def make_envs(config: EnvConfig | str, seed: int = 0, generation: int = 0) -> VectorEnvs:
    """N environments of the task that `config` describes; a name alone takes the defaults.

    `seed` is the run's. A run resumed with environments that cannot be restored passes another `generation` for fresh
    episodes; the MiniGrid engine goes on where it was and needs none.
    """
    config = EnvConfig(config) if isinstance(config, str) else config
    check_env(config)
    backend = _backend_of(config.id)
    if backend is not None:
        return backend(config, seed, generation)
    task = None if config.mission else _engine_task(config.id)
    if task is not None:
        from deir.envs.minigrid.engine import MiniGridEnvs

        return MiniGridEnvs(task, config, seed)
    from deir.envs.gymnasium import GymnasiumEnvs

    return GymnasiumEnvs(config, seed, generation)


def check_env(config: EnvConfig) -> None:
    """Refuses unknown names and options that do not apply to the task, without making the environments."""
    from deir.envs.minigrid.catalogue import resolve
    from deir.envs.sources import find_source, is_minigrid

    backend = _backend_of(config.id)
    if backend is not None:
        backend.check(config)
        return
    reject_options(config, PROCGEN_OPTIONS, f"{config.id} is not a ProcGen game")
    if config.full_view:
        reject_options(config, ("view_size",), "env.full_view shows the whole grid")
    source = find_source(config.id)
    if source is None:
        raise unknown("env", config.id, env_names(), listing="deir list envs")
    by_name = ":" not in config.id  # what a factory makes is seen only once it has made it
    if by_name and resolve(config.id) is None and not is_minigrid(source):
        reject_options(config, GRID_OPTIONS, f"{config.id} is not a MiniGrid task")


def has_success(name: str) -> bool:
    """Whether a positive return means that the task was solved: MiniGrid's tasks pay for nothing else."""
    from deir.envs.minigrid.catalogue import resolve

    return resolve(name) is not None


def env_names() -> list[str]:
    """Every name `make_envs` knows beside module:factory."""
    from deir.envs.minigrid.catalogue import task_names
    from deir.envs.sources import registered_names

    of_backends = [f"{name}:{task}" for name in BACKENDS for task in BACKENDS.find(name).names()]
    return list(dict.fromkeys([*task_names(), *of_backends, *registered_names()]))


def _backend_of(name: str) -> type[Backend] | None:
    """The backend of a name's prefix, or the one that package.module:Class names."""
    from deir.envs.sources import find_source

    prefix, colon, _ = name.partition(":")
    if not colon:
        return None
    if prefix in BACKENDS:
        return BACKENDS.find(prefix)
    source: Any = find_source(name)
    return source if isinstance(source, type) and issubclass(source, Backend) else None


def _engine_task(name: str) -> TaskSpec | None:
    """The MiniGrid task of this name if the batched engine covers it."""
    import deir.envs.minigrid.catalogue as catalogue

    task = catalogue.resolve(name)
    return task if task is not None and catalogue.covered(task.build()) else None
