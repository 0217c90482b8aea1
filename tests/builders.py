"""Rollouts made by hand for tests."""

import numpy as np
import torch
from gymnasium import spaces

from deir.networks import grid_padding
from deir.patches import tabulate
from deir.types import Rollout

SPACE = spaces.Box(0, 255, (7, 7, 3), np.uint8)
ACTIONS = spaces.Discrete(7)


def observation(kind: int) -> np.ndarray:
    """One of many distinct views."""
    rng = np.random.default_rng(kind)
    return np.stack([rng.integers(0, 4, (7, 7)), rng.integers(0, 3, (7, 7)), rng.integers(0, 2, (7, 7))], -1).astype(
        np.uint8
    )


def random_episodes(steps: int, envs: int, done_rate: float, seed: int, kinds: int = 30, late_resets: bool = False):
    """Yields rollouts of `steps` steps that follow each other, as a backend of either reset mode would give them."""
    rng = np.random.default_rng(seed)
    views = np.stack([observation(k) for k in range(kinds)])
    current = views[rng.integers(0, kinds, envs)]
    start = np.ones(envs, bool)
    pending = np.zeros(envs, bool)  # late resets: the next step is a dummy
    while True:
        seen, starts, actions, terminated, truncated, valid, finals, final_indices = [], [], [], [], [], [], [], []
        for t in range(steps):
            seen.append(current)
            starts.append(start)
            actions.append(rng.integers(0, 7, envs))
            valid.append(~pending)
            done = (rng.random(envs) < done_rate) & ~pending
            cut = rng.random(envs) < 0.5
            terminated.append(done & cut)
            truncated.append(done & ~cut)
            following = views[rng.integers(0, kinds, envs)]
            start = pending if late_resets else done
            if late_resets:
                pending = done
            else:
                for n in np.flatnonzero(done):
                    final_indices.append(t * envs + n)
                    finals.append(following[n])
                following = np.where(done[:, None, None, None], views[rng.integers(0, kinds, envs)], following)
            current = following
        everything = np.concatenate(
            [np.stack([*seen, current]).reshape(-1, 7, 7, 3), *([np.stack(finals)] if finals else [])]
        )
        table, names = tabulate(torch.from_numpy(everything), True, grid_padding((7, 7)))
        ids = names[: (steps + 1) * envs].view(steps + 1, envs)

        def tensor(x):
            return torch.from_numpy(np.stack(x))

        yield Rollout(
            table, ids, tensor([*starts, start]), tensor(actions), torch.zeros(steps, envs), tensor(terminated),
            tensor(truncated), tensor(valid), torch.tensor(final_indices, dtype=torch.int64),
            names[(steps + 1) * envs :],
        )  # fmt: skip
