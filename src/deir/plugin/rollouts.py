"""A user's arrays as a `Rollout`: what any training loop has, with time first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from deir.algorithm.ops import Ops
from deir.algorithm.types import ObservationTable, Rollout
from deir.errors import UserError, invalid
from deir.plugin.arrays import read_actions, read_flags, read_states
from deir.plugin.observations import ObservationFormat, PartsFormat, read_finals


def autoreset_mode(given: AutoresetMode | str) -> AutoresetMode:
    """Gymnasium's modes, by themselves or by name: SAME_STEP, same-step and SameStep are one."""
    names = {mode.name.replace("_", "").lower(): mode for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)}
    name = given.name if isinstance(given, AutoresetMode) else str(given)
    key = name.replace("_", "").replace("-", "").lower()
    if key not in names:
        raise invalid(
            "autoreset_mode", name, "'same-step' (also where your loop resets by itself) or 'next-step', as Gymnasium's"
        )
    return names[key]


@dataclass
class Episodes:
    """Where the environments stand between two rollouts."""

    starts: Tensor  # [N] bool: the next observation is the first of an episode
    pending: Tensor  # [N] bool: the next step is a dummy, which only brings the first observation (next-step resets)

    @classmethod
    def beginning(cls, n_envs: int) -> Episodes:
        return cls(torch.ones(n_envs, dtype=torch.bool), torch.zeros(n_envs, dtype=torch.bool))

    def follow(self, dones: Tensor, mode: AutoresetMode) -> tuple[Tensor, Tensor, Episodes]:
        """dones: [T, N] -> episode starts [T+1, N], genuine steps [T, N], and where the environments stand then."""
        if mode is AutoresetMode.SAME_STEP:
            starts = torch.cat([self.starts[None], dones])
            return starts, torch.ones_like(dones), Episodes(starts[-1], torch.zeros_like(self.pending))
        dummy = [self.pending]
        for done in dones:
            dummy.append(done & ~dummy[-1])
        starts = torch.stack([self.starts, *dummy[:-1]])  # a dummy step brings the first observation
        return starts, ~torch.stack(dummy[:-1]), Episodes(starts[-1], dummy[-1])


@dataclass(frozen=True)
class RolloutReader:
    """Makes rollouts of a user's arrays."""

    form: ObservationFormat | PartsFormat
    action_space: spaces.Space[Any]
    n_envs: int
    mode: AutoresetMode
    device: torch.device
    ops: Ops

    def read(
        self,
        episodes: Episodes,
        observations: Any,  # [T+1, N, *obs]
        actions: Any,  # [T, N]
        terminated: Any,  # [T, N]
        truncated: Any,  # [T, N]
        final_observations: Any = None,
        states: Any = None,  # [T+1, N]
    ) -> tuple[Rollout, Episodes]:
        """The rollout, and where the environments stand after it.

        The end of an episode whose last observation is unknown counts as a dummy step: it earns nothing and nothing is
        learned from it.
        """
        seen = self.form.read("observations", observations, ("T+1", self.n_envs))
        shape = len(seen) - 1, self.n_envs
        if shape[0] < 1:
            raise UserError("observations: got 1 step, expected (T+1, N, *obs): also what followed the last action")
        taken = read_actions(actions, shape, self.action_space)
        ended = read_flags("terminated", terminated, shape), read_flags("truncated", truncated, shape)
        starts, valid, after = episodes.follow(ended[0] | ended[1], self.mode)
        final_indices, finals = torch.zeros(0, dtype=torch.int64), seen[:0, 0]
        if self.mode is AutoresetMode.SAME_STEP:
            final_indices, finals = read_finals(final_observations, starts[1:], self.form)
            valid = ~starts[1:]
            valid.view(-1)[final_indices] = True
        elif final_observations is not None:
            raise UserError("final_observations: with next-step resets they are among the observations; leave it out")
        table, ids, final_ids = self._tabulate(seen, finals)
        rollout = Rollout(
            table=table,
            ids=ids,
            starts=starts.to(self.device),
            actions=taken.to(self.device),
            rewards=torch.zeros(shape, device=self.device),
            terminated=ended[0].to(self.device),
            truncated=ended[1].to(self.device),
            valid=valid.to(self.device),
            final_indices=final_indices.to(self.device),
            final_ids=final_ids,
            states=None if states is None else read_states(states, shape).to(self.device),
        )
        return rollout, after

    def read_alone(self, observations: Any, starts: Any = None) -> Rollout:
        """Observations [T, N', *obs] of any number of environments without actions; starts: [T, N']."""
        seen = self.form.read("observations", observations, ("T", "N"))
        shape = seen.shape[0], seen.shape[1]
        begins = read_flags("starts", starts, shape) if starts is not None else torch.zeros(shape, dtype=torch.bool)
        begins[0] = True
        table, ids, no_ids = self._tabulate(seen, seen[:0, 0])
        no = torch.zeros(shape, dtype=torch.bool, device=self.device)
        return Rollout(
            table, torch.cat([ids, ids[-1:]]), torch.cat([begins.to(self.device), no[:1]]), no.long(), no.float(),
            no, no, ~no, no_ids, no_ids,
        )  # fmt: skip

    def _tabulate(self, seen: Tensor, finals: Tensor) -> tuple[ObservationTable, Tensor, Tensor]:
        """[S, N, *obs], [K, *obs] -> the table, and the names [S, N] and [K] in it"""
        everything = torch.cat([seen.flatten(0, 1).to(self.device), finals.to(self.device)])
        table, names = self.ops.tabulate(everything, self.form.codes(everything))
        ids, final_ids = names.split([seen.shape[0] * seen.shape[1], len(finals)])
        return table, ids.view(seen.shape[:2]), final_ids
