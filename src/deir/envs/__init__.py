"""Environments of every kind through one door: `make_envs(EnvConfig(...))`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deir.config import EnvConfig
from deir.envs.base import EnvStep, VectorEnvs
from deir.errors import unknown

if TYPE_CHECKING:
    from deir.envs.minigrid.catalogue import TaskSpec

__all__ = ["EnvStep", "VectorEnvs", "check_env", "env_names", "make_envs"]

_PROCGEN_OPTIONS = ("distribution_mode", "num_levels", "start_level")


def make_envs(config: EnvConfig | str, seed: int = 0, generation: int = 0) -> VectorEnvs:
    """N environments of the task that `config` describes; a name alone takes the defaults.

    `seed` is the run's. A run resumed with environments that cannot be restored passes another `generation` for fresh
    episodes; the MiniGrid engine goes on where it was and needs none.
    """
    from deir.envs.gymnasium import GymnasiumEnvs
    from deir.envs.procgen import PREFIX, ProcgenEnvs

    config = EnvConfig(config) if isinstance(config, str) else config
    check_env(config)
    if config.id.startswith(PREFIX):
        return ProcgenEnvs(config, seed, generation)
    task = None if config.mission else _engine_task(config.id)
    if task is not None:
        from deir.envs.minigrid.engine import MiniGridEnvs

        return MiniGridEnvs(task, config, seed)
    return GymnasiumEnvs(config, seed, generation)


def check_env(config: EnvConfig) -> None:
    """Refuses unknown names and options that do not apply to the task, without making the environments."""
    from deir.envs.gymnasium import GRID_OPTIONS, find_source, is_minigrid, reject_options
    from deir.envs.minigrid.catalogue import resolve
    from deir.envs.procgen import PREFIX, check_levels, find_game

    if config.id.startswith(PREFIX):
        reject_options(config, GRID_OPTIONS, f"{config.id} is not a MiniGrid task")
        reject_options(config, ("max_steps",), "ProcGen's games have time limits of their own")
        check_levels(find_game(config.id), config)
        return
    reject_options(config, _PROCGEN_OPTIONS, f"{config.id} is not a ProcGen game")
    source = find_source(config.id)
    if source is None:
        raise unknown("env", config.id, env_names(), listing="deir list envs")
    by_name = ":" not in config.id  # what a factory makes is seen only once it has made it
    if by_name and resolve(config.id) is None and not is_minigrid(source):
        reject_options(config, GRID_OPTIONS, f"{config.id} is not a MiniGrid task")


def env_names() -> list[str]:
    """Every name `make_envs` knows beside module:factory."""
    from deir.envs.gymnasium import registered_names
    from deir.envs.minigrid.catalogue import task_names
    from deir.envs.procgen import GAMES, PREFIX

    return list(dict.fromkeys([*task_names(), *(PREFIX + game for game in GAMES), *registered_names()]))


def _engine_task(name: str) -> TaskSpec | None:
    """The MiniGrid task of this name if the batched engine covers it."""
    import deir.envs.minigrid.catalogue as catalogue

    task = catalogue.resolve(name)
    return task if task is not None and catalogue.covered(task.build()) else None
