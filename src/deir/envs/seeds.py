"""Seeds of environments that have generators of their own."""

from __future__ import annotations

import numpy as np

_ENVS_STREAM = int.from_bytes(b"envs")  # keeps these seeds apart from the run's other streams


def stream(seed: int, generation: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_ENVS_STREAM, generation, purpose)))


def env_seeds(n_envs: int, seed: int, generation: int = 0) -> list[int]:
    """[N] one distinct seed (31 bits, which every library takes) for each environment of a run.

    A resumed run that cannot restore its environments asks for another `generation`: other episodes, reproducibly.
    """
    return [int(s) for s in stream(seed, generation, 0).choice(2**31 - 1, size=n_envs, replace=False)]
