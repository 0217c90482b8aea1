"""ProcGen through EnvPool: sixteen games whose levels are generated, 64x64 colour images, fifteen actions."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from deir.config import EnvConfig
from deir.envs.base import GRID_OPTIONS, Backend, EnvStep, reject_options
from deir.envs.seeds import env_seeds
from deir.errors import UserError, invalid, unknown

PREFIX = "procgen:"
ACTIONS = (
    "left down", "left", "left up", "down", "nothing", "up", "right down", "right", "right up",
    "key D", "key A", "key W", "key S", "key Q", "key E",
)  # fmt: skip
"""As ProcGen has them; what a key does, if anything, is up to the game."""
_LARGEST_LEVEL = 2**31 - 1
_INSTALL = "pip install 'deir[procgen]'"


class ProcgenGame(NamedTuple):
    """One game, the distributions of levels it offers, and the steps after which it ends an episode itself."""

    name: str
    description: str
    modes: tuple[str, ...]
    timeout: int
    in_paper: bool = False


_GAMES = (
    ProcgenGame("bigfish", "eat smaller fish, avoid larger ones", ("easy", "hard"), 6000),
    ProcgenGame("bossfight", "shoot down a boss ship between its attacks", ("easy", "hard"), 4000),
    ProcgenGame(
        "caveflyer",
        "fly through connected caves to the exit",
        ("easy", "hard", "memory", "exploration"),
        1000,
        in_paper=True,
    ),
    ProcgenGame("chaser", "collect green orbs in a maze, chased by enemies", ("easy", "hard", "extreme"), 1000),
    ProcgenGame(
        "climber", "climb platforms and collect the stars", ("easy", "hard", "exploration"), 1000, in_paper=True
    ),
    ProcgenGame("coinrun", "run and jump past obstacles to the coin", ("easy", "hard", "exploration"), 1000),
    ProcgenGame(
        "dodgeball", "hit enemies with balls, avoid theirs, reach the exit", ("easy", "hard", "extreme", "memory"), 1000
    ),
    ProcgenGame("fruitbot", "collect fruit and avoid other food in a scrolling strip", ("easy", "hard"), 1000),
    ProcgenGame("heist", "collect keys, open locks, steal the gem", ("easy", "hard", "memory", "exploration"), 1000),
    ProcgenGame(
        "jumper",
        "find the carrot in an open world with double jumps",
        ("easy", "hard", "memory", "exploration"),
        1000,
        in_paper=True,
    ),
    ProcgenGame("leaper", "cross lanes of cars and a river of logs", ("easy", "hard", "extreme", "exploration"), 500),
    ProcgenGame("maze", "find the cheese in a maze", ("easy", "hard", "memory", "exploration"), 500),
    ProcgenGame("miner", "dig for diamonds under falling boulders, then exit", ("easy", "hard", "memory"), 1000),
    ProcgenGame(
        "ninja",
        "jump across narrow ledges past bombs to the mushroom",
        ("easy", "hard", "exploration"),
        1000,
        in_paper=True,
    ),
    ProcgenGame("plunder", "shoot enemy ships and spare friendly ones", ("easy", "hard"), 4000),
    ProcgenGame("starpilot", "shoot enemies in a side-scrolling flight", ("easy", "hard", "extreme"), 1000),
)
GAMES = {game.name: game for game in _GAMES}


def find_game(name: str) -> ProcgenGame:
    """The game that `procgen:<game>` names; case does not matter."""
    game = GAMES.get(name.removeprefix(PREFIX).lower())
    if game is None:
        raise unknown("env", name, [PREFIX + known for known in GAMES], listing="deir list envs")
    return game


def check_levels(game: ProcgenGame, config: EnvConfig) -> None:
    if config.distribution_mode not in game.modes:
        raise UserError(
            f"env.distribution_mode: {PREFIX}{game.name} has no {config.distribution_mode!r} levels "
            f"(expected one of: {', '.join(game.modes)})"
        )
    for field in ("num_levels", "start_level"):
        if getattr(config, field) < 0:
            raise invalid(f"env.{field}", getattr(config, field), "0 or more")
    if config.start_level and not config.num_levels:
        raise UserError(
            f"env.start_level: got {config.start_level} with env.num_levels 0, which draws from all levels; "
            "give env.num_levels too"
        )
    if config.start_level + config.num_levels > _LARGEST_LEVEL:
        raise invalid("env.start_level", config.start_level, f"a last level of at most {_LARGEST_LEVEL}")


def _load_qt() -> None:
    """Makes Qt 5 of the package PyQt5-Qt5 visible to EnvPool's ProcGen, which links to it by name.

    The libraries must be loaded in the order in which they need each other, and globally, so that the extension
    module finds their symbols. Without the package a system-wide Qt 5 may still serve.
    """
    package = importlib.util.find_spec("PyQt5")
    if package is None or not sys.platform.startswith("linux"):
        return
    for root in package.submodule_search_locations or ():
        libraries = Path(root) / "Qt5" / "lib"
        for stem in ("libicudata", "libicuuc", "libicui18n", "libQt5Core", "libQt5Gui"):
            for path in sorted(libraries.glob(f"{stem}.so.*")):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _import_envpool() -> Any:
    try:
        _load_qt()
        envpool = importlib.import_module("envpool")
        procgen = importlib.import_module("envpool.procgen")
        if getattr(procgen, "_PROCGEN_IMPORT_ERROR", None) is not None:
            procgen = importlib.reload(procgen)  # EnvPool was imported before Qt was there
        _ = procgen.ProcgenEnvSpec
    except (ImportError, OSError) as error:
        raise UserError(f"env: ProcGen needs EnvPool and Qt 5 ({error}). Install them with: {_INSTALL}") from None
    return envpool


def _threads(n_envs: int) -> int:
    """As many threads as can be busy; OMP_NUM_THREADS, where set, bounds them as it bounds PyTorch's."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(n_envs, cores, max(1, int(asked)) if asked.isdigit() else cores)


def _make_pool(game: ProcgenGame, config: EnvConfig, seeds: list[int]) -> Any:
    return _import_envpool().make(
        f"{game.name.capitalize()}{config.distribution_mode.capitalize()}-v0",
        env_type="gymnasium",
        num_envs=config.n_envs,
        num_threads=_threads(config.n_envs),
        seed=seeds,
        num_levels=config.num_levels,
        start_level=config.start_level,
        channel_first=False,
    )


_HASH_WEIGHTS = np.random.default_rng(0x9E3779B9).integers(0, 2**63, 64 * 64 * 3 // 8, dtype=np.uint64) * 2 + 1


def hash_images(images: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """[N, 64, 64, 3] -> [N] a 64-bit number for each image, the same in every process.

    Each word of eight bytes is folded, multiplied with its place's odd weight and folded again before the sum, so that
    neither equal words in different places nor changes in the high bits alone cancel out.
    """
    words = np.ascontiguousarray(images).reshape(len(images), -1).view(np.uint64)  # [N, 1536]
    mixed = (words ^ (words >> np.uint64(32))) * _HASH_WEIGHTS
    mixed ^= mixed >> np.uint64(29)
    total: NDArray[np.uint64] = mixed.sum(axis=1, dtype=np.uint64)
    return total ^ (total >> np.uint64(32))


class ProcgenEnvs(Backend):
    """N copies of one game. Levels differ between the copies and from episode to episode.

    EnvPool resets on the step after the end of an episode (NEXT_STEP): the last observation of an episode is the true
    one, and the step that follows ignores its action and is marked as not valid. An episode that runs into the game's
    own time limit is truncated, every other end is a termination.
    """

    action_names = ACTIONS

    def __init__(self, config: EnvConfig, seed: int = 0, generation: int = 0) -> None:
        game = find_game(config.id)
        check_levels(game, config)
        self.n_envs = config.n_envs
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(15)
        self._pool = _make_pool(game, config, env_seeds(config.n_envs, seed, generation))
        self._observations = np.zeros((self.n_envs, 64, 64, 3), np.uint8)
        self._ended = np.zeros(self.n_envs, np.bool_)  # [N] the next step resets this one

    @classmethod
    def check(cls, config: EnvConfig) -> None:
        reject_options(config, GRID_OPTIONS, f"{config.id} is not a MiniGrid task")
        reject_options(config, ("max_steps",), "ProcGen's games have time limits of their own")
        check_levels(find_game(config.id), config)

    @classmethod
    def names(cls) -> list[str]:
        return list(GAMES)

    def reset(self) -> NDArray[np.uint8]:
        """Begins the next level in every environment."""
        self._observations, _ = self._pool.reset()
        self._ended = np.zeros(self.n_envs, np.bool_)
        return self._observations

    def step(self, actions: NDArray[np.int64]) -> EnvStep:
        observations, rewards, terminated, truncated, _ = self._pool.step(np.asarray(actions, np.int32))
        dummy = self._ended  # [N]
        self._observations = observations  # EnvPool hands out a new array at every step
        self._ended = terminated | truncated
        return EnvStep(
            observations=observations,
            rewards=rewards.astype(np.float64),
            terminated=terminated,
            truncated=truncated,
            valid=~dummy,
            starts=dummy,
            final_indices=np.empty(0, np.int64),
            final_observations=np.empty((0, 64, 64, 3), np.uint8),
        )

    def state_hashes(self) -> NDArray[np.uint64]:
        """The game's state cannot be read; what it shows stands for it."""
        return hash_images(self._observations)

    def render(self, index: int) -> NDArray[np.uint8]:
        return np.array(self._observations[index], np.uint8)

    def close(self) -> None:
        self._pool.close()
