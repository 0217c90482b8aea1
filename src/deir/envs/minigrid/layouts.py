"""The coming layouts of all environments, prepared ahead.

The k-th episode of environment i is the Farama task after `reset(seed=layout_seed(run_seed, i, k))`. A seed names its
layout, so it does not matter who makes it: one background process works ahead, and whatever it has not finished when
it is needed is made on the spot. Losing the process costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from deir.envs.minigrid.catalogue import TaskSpec
from deir.envs.minigrid.layout_maker import Layout, LayoutMaker
from deir.envs.minigrid.layout_worker import Worker

LAYOUT_STREAM, NOISE_STREAM = 0, 1  # spawn keys under the run's seed
AHEAD = 8  # episodes prepared for each environment


def layout_seed(run_seed: int, env: int, episode: int) -> int:
    """32 bits that name the layout of this episode."""
    sequence = np.random.SeedSequence(run_seed, spawn_key=(LAYOUT_STREAM, env, episode))
    return int(sequence.generate_state(1)[0])


class LayoutStock:
    """The coming layouts of N environments."""

    def __init__(
        self, spec: TaskSpec, run_seed: int, n_envs: int, *, worker: bool = True, fixed: int | None = None
    ) -> None:
        """`fixed`: the seed of the layout that every episode of every environment has."""
        self.maker = LayoutMaker(spec)
        self._n_envs = n_envs
        self._fixed = None if fixed is None else self.maker.make(fixed)
        self._worker = Worker.start(spec) if worker and fixed is None else None
        self.restart(run_seed, np.zeros(n_envs, dtype=np.int64))

    def restart(self, run_seed: int, episodes: Iterable[int]) -> None:
        """Prepares for environment i the episodes from `episodes[i]` on."""
        self._run_seed = run_seed
        nexts = [int(episode) for episode in episodes]
        if self._worker is None:
            return
        self._worker.forget()
        # The first of all environments are about to be taken in order: the worker begins at the other end, so that
        # two processes share them.
        for env in reversed(range(self._n_envs)):
            self._worker.request(layout_seed(run_seed, env, nexts[env]))
        for further in range(1, AHEAD):
            for env in range(self._n_envs):
                self._worker.request(layout_seed(run_seed, env, nexts[env] + further))
        self._worker.send()

    def take(self, env: int, episode: int) -> Layout:
        """The layout of this episode: from stock, or else made here and now."""
        if self._fixed is not None:
            return self._fixed
        seed = layout_seed(self._run_seed, env, episode)
        if self._worker is None:
            return self.maker.make(seed)
        self._worker.request(layout_seed(self._run_seed, env, episode + AHEAD))
        layout = self._worker.take(seed)
        return self.maker.make(seed) if layout is None else layout

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
