"""Steps per second of the batched MiniGrid engine and of Farama's MiniGrid in a SyncVectorEnv, in one run.

    python benchmarks/envs.py [--n-envs 16] [--seconds 3]

Random actions, resets included. Both run in this process; the engine's layouts are made in it too, unless --worker is
given, so that one core is compared with one core.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv

from deir.config import EnvConfig
from deir.envs.minigrid.catalogue import TaskSpec, resolve
from deir.envs.minigrid.engine import MiniGridEnvs

TASKS = ("DoorKey-8x8", "DoorKey-16x16", "FourRooms", "MultiRoom-N6", "KeyCorridorS6R3", "ObstructedMaze-Full")


def rate(step: Callable[[Any], Any], actions: np.ndarray, seconds: float) -> float:
    """Environment steps per second; `actions` [T, N] are repeated for as long as needed."""
    for row in actions[:20]:
        step(row)
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for row in actions[:50]:
            step(row)
        count += 50
        actions = np.roll(actions, -50, axis=0)
    return count * actions.shape[1] / passed


def farama(spec: TaskSpec, n_envs: int) -> SyncVectorEnv:
    from minigrid.wrappers import ImgObsWrapper

    return SyncVectorEnv([lambda: ImgObsWrapper(spec.build())] * n_envs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    parser.add_argument("--worker", action="store_true", help="prepare layouts in the background process")
    parser.add_argument("tasks", nargs="*", default=TASKS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    actions = np.random.default_rng(0).integers(0, 7, (2000, options.n_envs))
    print(f"{'steps/s, ' + str(options.n_envs) + ' environments':<28}{'engine':>12}{'Farama':>12}{'ratio':>9}")
    for name in options.tasks:
        spec = resolve(name)
        if spec is None:
            parser.error(f"no such MiniGrid task: {name}")
        envs = MiniGridEnvs(spec, EnvConfig(id=name, n_envs=options.n_envs, layout_worker=options.worker), 0)
        envs.reset()
        ours = rate(envs.step, actions, options.seconds)
        envs.close()
        upstream = farama(spec, options.n_envs)
        upstream.reset(seed=0)
        theirs = rate(upstream.step, actions, options.seconds)
        print(f"{name:<28}{ours:>12,.0f}{theirs:>12,.0f}{ours / theirs:>8.1f}x", flush=True)


if __name__ == "__main__":
    main()
