"""What several tests are made of: rollouts made by hand, and networks that are not fresh."""

import numpy as np
import torch
from gymnasium import spaces

from deir.algorithm.policy import Policy
from deir.algorithm.types import Rollout, no_indices
from deir.fast.patches import tabulate

SPACE = spaces.Box(0, 255, (7, 7, 3), np.uint8)
ACTIONS = spaces.Discrete(7)


def observation(kind: int) -> np.ndarray:
    """One of many distinct views."""
    rng = np.random.default_rng(kind)
    return np.stack([rng.integers(0, 4, (7, 7)), rng.integers(0, 3, (7, 7)), rng.integers(0, 2, (7, 7))], -1).astype(
        np.uint8
    )


def random_episodes(steps: int, envs: int, done_rate: float, seed: int, kinds: int = 30, late_resets: bool = False):
    """Yields rollouts of `steps` steps that follow each other, as a backend of either reset mode would give them.

    Observations of kinds 2k and 2k+1 share the state k.
    """
    rng = np.random.default_rng(seed)
    views = np.stack([observation(k) for k in range(kinds)])
    state_of = {view.tobytes(): k // 2 for k, view in enumerate(views)}
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
        table, names = tabulate(torch.from_numpy(everything))
        ids = names[: (steps + 1) * envs].view(steps + 1, envs)

        def tensor(x):
            return torch.from_numpy(np.stack(x))

        yield Rollout(
            table, ids, tensor([*starts, start]), tensor(actions), torch.zeros(steps, envs), tensor(terminated),
            tensor(truncated), tensor(valid), torch.tensor(final_indices, dtype=torch.int64),
            names[(steps + 1) * envs :],
            torch.tensor([[state_of[view.tobytes()] for view in row] for row in [*seen, current]]),
        )  # fmt: skip


def walk(steps: int, envs: int, kinds: int = 10, seed: int = 0) -> Rollout:
    """One endless episode each in a world where action a leads from view k to view k+a, modulo `kinds`."""
    rng = np.random.default_rng(seed)
    actions = torch.from_numpy(rng.integers(0, 7, (steps, envs)))
    begin = torch.arange(envs)[None] % kinds
    places = torch.cat([begin, begin + actions.cumsum(0)]) % kinds
    views = torch.stack([torch.from_numpy(observation(int(k))) for k in places.flatten()])
    table, names = tabulate(views)
    starts = torch.zeros(steps + 1, envs, dtype=torch.bool)
    starts[0] = True
    no = torch.zeros(steps, envs, dtype=torch.bool)
    return Rollout(
        table, names.view(steps + 1, envs), starts, actions, torch.zeros(steps, envs), no, no, ~no,
        no_indices(), no_indices(), places,
    )  # fmt: skip


def awakened(policy: Policy, observations: torch.Tensor) -> Policy:
    """A policy that prefers some actions, expects something and has seen data, in place.

    A fresh one has zero heads and unit statistics, which would hide what happens to memories and normalisation.
    """
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for last in (policy.actor[-1], policy.critic[-1]):
            last.weight.normal_(0, 1, generator=generator)
            last.bias.normal_(0, 1, generator=generator)
        policy.train()
        batch = torch.cat([observations, observations])
        memories = torch.randn(len(batch), policy.hidden_size, generator=generator)
        for _ in range(5):
            policy(batch, memories)
    return policy
