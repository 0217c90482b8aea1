"""What an episode has visited: exact keys of observations or full states, compared over rollouts."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from deir.algorithm.episodic import earlier_occurrences, episode_first_positions, first_occurrences
from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.types import Rollout


def no_visits(n_envs: int, device: torch.device | str = "cpu") -> EpisodicHistory:
    """The history of keys before the first rollout."""
    return EpisodicHistory(
        {"keys": (torch.zeros(0, n_envs, dtype=torch.int64, device=device),)},
        torch.zeros(n_envs, dtype=torch.int64, device=device),
    )


def observation_keys(observations: Tensor) -> Tensor:
    """[U, *obs] -> [U] a 64-bit hash of each; equal observations and, but for 1 in 10¹⁹ pairs, only those share one."""
    rows = observations.cpu().numpy()
    digests = b"".join(blake2b(np.ascontiguousarray(row).data, digest_size=8).digest() for row in rows)
    return torch.from_numpy(np.frombuffer(digests, np.int64).copy()).to(observations.device)


def next_states(rollout: Rollout) -> tuple[Tensor, Tensor]:
    """The states behind o_{t+1} [T, N], and where they are known [T, N]: not where the new episode's took its place."""
    assert rollout.states is not None
    return rollout.states[1:], genuine_arrivals(rollout)


def genuine_arrivals(rollout: Rollout) -> Tensor:
    """[T, N] bool: what the backend tells of time t+1 belongs to the transition's own episode."""
    known = rollout.valid.flatten().clone()
    known[rollout.final_indices] = False
    return known.view(rollout.shape)


def first_visits(
    history: EpisodicHistory,
    keys: Tensor,  # [T, N] of o_t
    queries: Tensor,  # [T, N]
    starts: Tensor,  # [T+1, N] bool
    including_now: bool,
) -> tuple[Tensor, EpisodicHistory]:
    """Which queries [T, N] equal no earlier key of their episode, and the history after the rollout.

    including_now: o_t itself counts as earlier (the queries are about o_{t+1}).
    """
    extended, episodes, first = _with_history(history, keys, starts)
    earliest = first_occurrences(extended, episodes, queries, first)  # [T, N]
    now = torch.arange(len(keys), device=keys.device)[:, None] + history.depth
    advanced = history.advanced({"keys": keys}, first[-1], starts[-1])
    return (earliest > now if including_now else earliest >= now), advanced


def first_times(history: EpisodicHistory, keys: Tensor, starts: Tensor) -> tuple[Tensor, EpisodicHistory]:
    """Which keys [T, N] equal no earlier key of their episode, and the history after the rollout: what `first_visits`
    says of the keys themselves, by one sort.   starts: [T+1, N] bool"""
    extended, episodes, first = _with_history(history, keys, starts)
    # environment by environment in the order of time: equal keys of an episode come one after the other when sorted
    rows, envs = extended.shape
    belongs = (episodes.T.flatten() >= 0).nonzero()[:, 0]
    ordered, order = extended.T.flatten()[belongs].sort(stable=True)
    numbers = torch.arange(envs, device=keys.device)[:, None] * rows + episodes.T  # of episodes; none has fewer rows
    numbers = numbers.flatten()[belongs][order]
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = (ordered[1:] != ordered[:-1]) | (numbers[1:] != numbers[:-1])
    found = torch.zeros(rows * envs, dtype=torch.bool, device=keys.device)
    found[belongs[order]] = new
    return found.view(envs, rows).T[history.depth :], history.advanced({"keys": keys}, first[-1], starts[-1])


def visit_counts(
    history: EpisodicHistory,
    keys: Tensor,  # [T, N] of o_t
    queries: Tensor,  # [T, N] of o_{t+1}
    starts: Tensor,  # [T+1, N] bool
) -> tuple[Tensor, EpisodicHistory]:
    """How many of the episode's keys at 0 … t equal each query [T, N], and the history after the rollout."""
    extended, episodes, first = _with_history(history, keys, starts)
    counts = earlier_occurrences(extended, episodes, queries, first)
    return counts, history.advanced({"keys": keys}, first[-1], starts[-1])


def _with_history(history: EpisodicHistory, keys: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The keys after those of the history [L+T, N], the episode of each by its first row (-1: none) [L+T, N], and that
    of the rollout's steps alone [T, N]."""
    first = episode_first_positions(starts[:-1], history.lengths)
    carried = torch.arange(history.depth, device=keys.device)[:, None]
    began = history.depth - history.lengths  # [N]
    carried_first = torch.where(carried >= began, began, -1)  # [L, N]
    return history.extended("keys", keys), torch.cat([carried_first, first]), first
