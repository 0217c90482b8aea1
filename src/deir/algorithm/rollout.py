"""Collects T steps of N environments with frozen parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deir.algorithm.metrics import Timer
from deir.algorithm.policy import Policy
from deir.algorithm.types import ObservationTable, PolicyTrace, Rollout
from deir.envs.base import EnvStep, VectorEnvs

OverTime = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


@dataclass(frozen=True)
class Position:
    """Where collection stands between two rollouts."""

    observations: NDArray[Any]  # [N, *obs] what the policy sees next
    starts: NDArray[np.bool_]  # [N] it is the first of an episode
    hidden: Tensor  # [N, H] the policy's memory before it
    known: ObservationTable | None = None  # observations likely to come again

    @classmethod
    def at_episode_starts(cls, observations: NDArray[Any], policy: Policy) -> Position:
        n_envs = len(observations)
        return cls(observations, np.ones(n_envs, np.bool_), policy.initial_hidden(n_envs, policy.device))


class Played(NamedTuple):
    """T steps of N environments as they came, and what the policy thought. K of the steps ended an episode whose last
    observation is not what the policy saw next."""

    table: ObservationTable
    ids: Tensor  # [T+1, N] rows of the table: o_t
    final_indices: Tensor  # [K] flat index t*N+n
    final_ids: Tensor  # [K] rows of the table: the true o_{t+1}
    starts: NDArray[np.bool_]  # [T+1, N]
    before: Tensor  # [T, N, H] memory before o_t, zero at episode starts
    after: Tensor  # [T, N, H] memory after it
    outputs: Tensor  # [T, N, A] of the policy's head
    choices: Tensor  # [T, N, …]
    actions: Tensor  # [T, N, …] what the environments were given
    rewards: NDArray[np.float64]  # [T, N], likewise below as in `EnvStep`
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    states: NDArray[Any] | None  # [T+1, N] hashes of full states, None where the backend tells none
    positions: NDArray[Any] | None  # [T+1, N, 2] likewise
    observations: NDArray[Any]  # [N, *obs] o_T
    after_last: Tensor  # [N, H] memory after o_T
    after_finals: Tensor  # [K, H] memory after the true o_{t+1}
    known: ObservationTable | None  # observations likely to come again


class Collected(NamedTuple):
    rollout: Rollout
    trace: PolicyTrace
    position: Position  # after it
    played: Played


@torch.no_grad()
def collect(
    envs: VectorEnvs,
    policy: Policy,
    position: Position,
    steps: int,
    generator: torch.Generator,
    bootstrap: bool,
    timer: Timer,
) -> Collected:
    """`bootstrap`: value the last observation of truncated episodes too."""
    with timer("forward"):
        noise = policy.actions.noise((steps, envs.n_envs), generator).to(position.hidden.device)
        played = policy.ops.play(envs, policy.eval(), position, noise)
    if played is None:
        played = step_by_step(envs, policy, position, noise, timer)
    with timer("forward"):
        rollout = _rollout(played, position.hidden.device)
        trace = _trace(policy, played, bootstrap)
    memory = played.after[-1].clone()  # without a hold on those of all other steps
    after = Position(played.observations, played.starts[-1], memory, played.known)
    return Collected(rollout, trace, after, played)


def step_by_step(envs: VectorEnvs, policy: Policy, position: Position, noise: Tensor, timer: Timer) -> Played:
    """noise: [T, N, …] of the choices"""
    with timer("forward"):
        acting, kind = policy.ops.acting(policy, envs.repeats, position.known), policy.actions
    device = position.hidden.device
    starts, actions, choices, outputs, before, after, env_steps = [], [], [], [], [], [], []
    states, positions = [envs.state_hashes()], [envs.positions()]
    observations, start, hidden = position.observations, position.starts, position.hidden
    for t in range(len(noise)):
        with timer("forward"):
            starts.append(start)
            before.append(_continued(hidden, start))
            output, hidden = acting.step(observations, before[-1])
            after.append(hidden)
            outputs.append(output)
            choices.append(kind.choose(output, noise[t]))
            actions.append(kind.taken(choices[-1]))
        with timer("env"):
            env_steps.append(envs.step(actions[-1].cpu().numpy()))
            observations, start = env_steps[-1].observations, env_steps[-1].starts
            states.append(envs.state_hashes())
            positions.append(envs.positions())
    with timer("forward"):
        finals = np.concatenate([step.final_observations for step in env_steps])
        table, ids, final_ids = acting.table(observations, finals)
        places, stacked = over_time(env_steps)
        final_indices = torch.from_numpy(places).to(device)
        memories = torch.stack(after)
        last = policy.advance(table.rows(ids[-1]), _continued(hidden, start))
        ended = memories.flatten(0, 1)[final_indices]
        return Played(
            table, ids, final_indices, final_ids, np.stack([*starts, start]), torch.stack(before), memories,
            torch.stack(outputs), torch.stack(choices), torch.stack(actions), *stacked, told_over_time(states),
            told_over_time(positions), observations, last,
            policy.advance(table.rows(final_ids), ended) if len(final_ids) else ended, acting.known,
        )  # fmt: skip


def _continued(hidden: Tensor, start: NDArray[np.bool_]) -> Tensor:
    """The memory [N, H] without that of episodes that are over."""
    return hidden * torch.from_numpy(~start).to(hidden.device)[:, None] if start.any() else hidden


def over_time(env_steps: Sequence[EnvStep]) -> tuple[NDArray[np.int64], OverTime]:
    """Flat indices t*N+n of the final observations [K]; rewards, terminated, truncated and valid, [T, N] each."""
    places = [t * len(step.rewards) + step.final_indices for t, step in enumerate(env_steps)]
    columns = zip(*(step[1:5] for step in env_steps), strict=True)
    rewards, terminated, truncated, valid = (np.stack(column) for column in columns)
    return np.concatenate(places), (rewards, terminated, truncated, valid)


def told_over_time(rows: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """[T+1, N, …] of what the backend told of each step, None where it tells nothing."""
    told = [row for row in rows if row is not None]
    return np.stack(told) if told else None


def _rollout(played: Played, device: torch.device) -> Rollout:
    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Rollout(
        table=played.table,
        ids=played.ids,
        starts=tensor(played.starts),
        actions=played.actions,
        rewards=tensor(played.rewards).float(),
        terminated=tensor(played.terminated),
        truncated=tensor(played.truncated),
        valid=tensor(played.valid),
        final_indices=played.final_indices,
        final_ids=played.final_ids,
        states=None if played.states is None else tensor(played.states.view(np.int64)),
        positions=None if played.positions is None else tensor(played.positions),
    )


def _trace(policy: Policy, played: Played, bootstrap: bool) -> PolicyTrace:
    """Log-probabilities and values of all steps at once."""
    shape = played.starts[1:].shape
    log_probs = policy.actions.log_prob(played.outputs, played.choices)
    values = policy.values(torch.cat([played.after.flatten(0, 1), played.after_last]))
    next_values = values[shape[1] :]
    if bootstrap and len(played.final_indices):
        next_values = next_values.index_copy(0, played.final_indices, policy.values(played.after_finals))
    return PolicyTrace(
        played.before, log_probs, values[: -shape[1]].view(shape), next_values.view(shape), played.choices
    )
