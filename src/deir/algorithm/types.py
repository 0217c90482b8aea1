"""What flows between the stages. Time-major: T steps of N environments; `*obs` is the shape of one observation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Metrics = dict[str, float]  # figures to log


@dataclass(frozen=True)
class ObservationTable:
    """The observations of one iteration; an `Ops` may keep more about them than this."""

    distinct: Tensor  # [U, *obs]

    def rows(self, ids: Tensor) -> Rows:
        return Rows(self, ids)


class Rows(NamedTuple):
    """A batch of observations, as rows of a table."""

    table: ObservationTable
    ids: Tensor  # [B]

    def __len__(self) -> int:
        return len(self.ids)

    def gather(self) -> Tensor:
        """[B, *obs]"""
        return self.table.distinct[self.ids]


def concatenate(parts: list[Rows | Tensor]) -> Rows | Tensor:
    """One batch of several, which stay rows when all are of one table."""
    rows = [part for part in parts if isinstance(part, Rows)]
    if len(rows) == len(parts) and all(part.table is rows[0].table for part in rows):
        return Rows(rows[0].table, torch.cat([part.ids for part in rows]))
    return torch.cat([part.gather() if isinstance(part, Rows) else part for part in parts])


class Shared(NamedTuple):
    """A batch of vectors, of which several rows may share one."""

    values: Tensor  # [u, F]
    rows: Tensor | None = None  # [B] which of them each row of the batch has; None: its own

    def gather(self) -> Tensor:
        """[B, F]"""
        return self.values if self.rows is None else self.values.index_select(0, self.rows)

    def split(self, sizes: list[int]) -> list[Shared]:
        """The parts of the batch."""
        if self.rows is None:
            return [Shared(part) for part in self.values.split(sizes)]
        return [Shared(self.values, part) for part in self.rows.split(sizes)]


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments, collected with frozen parameters.

    Observations stand once in `table`; ids[t, n] names o_t of environment n.
    """

    table: ObservationTable  # distinct: [U, *obs]
    ids: Tensor  # [T+1, N] rows of the table; the last is what the next rollout starts with
    starts: Tensor  # [T+1, N] bool: o_t is the first observation of an episode
    actions: Tensor  # [T, N] int64 for Discrete, [T, N, A] for others: what the environments were given
    rewards: Tensor  # [T, N] extrinsic
    terminated: Tensor  # [T, N] bool
    truncated: Tensor  # [T, N] bool
    valid: Tensor  # [T, N] bool: False on the dummy steps of a backend that resets one step late
    final_indices: Tensor  # [K] flat index t*N+n of the transitions whose true o_{t+1} is not o[t+1, n]
    final_ids: Tensor  # [K] the table's row of that true last observation
    states: Tensor | None = None  # [T+1, N] int64 hash of the full state behind o_t, where the backend can tell
    positions: Tensor | None = None  # [T+1, N, 2] int64 the agent's column and row on its grid, likewise

    @property
    def shape(self) -> tuple[int, int]:
        steps, envs = self.actions.shape[:2]
        return steps, envs

    @property
    def dones(self) -> Tensor:  # [T, N] bool
        return self.terminated | self.truncated

    @property
    def next_ids(self) -> Tensor:
        """[T, N] rows of the true o_{t+1}, also where the episode ended."""
        ids = self.ids[1:].flatten().clone()
        ids[self.final_indices] = self.final_ids
        return ids.view(self.actions.shape[:2])

    def valid_indices(self) -> Tensor:
        """[V] flat indices t*N+n of the genuine transitions."""
        return self.valid.flatten().nonzero()[:, 0]


@dataclass(frozen=True)
class PolicyTrace:
    """What the policy thought while collecting a rollout."""

    hidden: Tensor  # [T, N, H] its memory before each step, zero at episode starts
    log_probs: Tensor  # [T, N]
    values: Tensor  # [T, N]
    next_values: Tensor  # [T, N] V(o_{t+1}) of the true next observation
    choices: Tensor | None = None  # [T, N, …] what it drew, of which the actions were made; the actions if not given


@dataclass(frozen=True)
class PolicyBatch:
    """B steps for one gradient step of the policy."""

    rows: Rows  # [B, *obs]
    hidden: Tensor  # [B, H] the memory before each
    choices: Tensor  # [B, …]
    old_log_probs: Tensor  # [B]
    old_values: Tensor  # [B]
    advantages: Tensor  # [B] normalised
    returns: Tensor  # [B]


@dataclass(frozen=True)
class Batch:
    """B transitions for one gradient step of a reward model."""

    observations: Rows  # [B, *obs] o_t
    actions: Tensor  # [B, …]
    next_observations: Rows  # [B, *obs] the true o_{t+1}
    hidden: Tensor | None = None  # [B, H] the model's memory before o_t
    fakes: Rows | Tensor | None = None  # [B, *obs] an observation offered in place of o_{t+1}
    fake_differs: Tensor | None = None  # [B] bool: it does differ from o_{t+1}
    next_ids: Tensor | None = None  # [B] the rollout's table row of o_{t+1}, which counts in the two below
    embeddings: Tensor | None = None  # [U, F] the policy's embeddings of the table, as they were before its update
    targets: Tensor | None = None  # [U, G] what random distillation predicts of the table
    indices: Tensor | None = None  # [B] flat index t*N+n of each transition in the rollout
    later: Rows | None = None  # [B, *obs] an observation that comes later in the episode
    draws: Tensor | None = None  # [K, B] rows of the batch that each model of an ensemble learns from


def no_indices() -> Tensor:
    return torch.zeros(0, dtype=torch.int64)
