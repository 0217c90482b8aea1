"""Collects T steps of N environments with frozen parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deir.algorithm.metrics import Timer
from deir.algorithm.policy import Policy
from deir.algorithm.types import ObservationTable, PolicyTrace, Rollout
from deir.envs.base import EnvStep, VectorEnvs


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


class Collected(NamedTuple):
    rollout: Rollout
    trace: PolicyTrace
    position: Position  # after it
    steps: list[EnvStep]


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
        acting = policy.ops.acting(policy, envs.repeats, position.known)
        kind = policy.actions
        noise = kind.noise((steps, envs.n_envs), generator).to(position.hidden.device)
    device = position.hidden.device
    starts, actions, choices, outputs, hidden_before, hidden_after, env_steps = [], [], [], [], [], [], []
    states, positions = [envs.state_hashes()], [envs.positions()]
    observations, start, hidden = position.observations, position.starts, position.hidden
    for t in range(steps):
        with timer("forward"):
            starts.append(start)
            hidden_before.append(hidden * torch.from_numpy(~start).to(device)[:, None] if start.any() else hidden)
            output, hidden = acting.step(observations, hidden_before[-1])
            hidden_after.append(hidden)
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
        rollout = assemble(table, ids, final_ids, [*starts, start], torch.stack(actions), env_steps, device)
        rollout = replace(rollout, states=stacked_rows(states, device), positions=stacked_rows(positions, device))
        trace = _trace(
            policy, rollout, torch.stack(outputs), torch.stack(choices), torch.stack(hidden_before),
            torch.stack(hidden_after), bootstrap,
        )  # fmt: skip
    return Collected(rollout, trace, Position(observations, start, hidden, acting.known), env_steps)


def assemble(
    table: ObservationTable,
    ids: Tensor,
    final_ids: Tensor,
    starts: list[NDArray[np.bool_]],
    actions: Tensor,
    env_steps: list[EnvStep],
    device: torch.device,
) -> Rollout:
    def stacked(name: str) -> Tensor:
        return torch.from_numpy(np.stack([getattr(step, name) for step in env_steps])).to(device)

    n_envs = ids.shape[1]
    final_indices = np.concatenate([t * n_envs + step.final_indices for t, step in enumerate(env_steps)])
    return Rollout(
        table=table,
        ids=ids,
        starts=torch.from_numpy(np.stack(starts)).to(device),
        actions=actions,
        rewards=stacked("rewards").float(),
        terminated=stacked("terminated"),
        truncated=stacked("truncated"),
        valid=stacked("valid"),
        final_indices=torch.from_numpy(final_indices).to(device),
        final_ids=final_ids,
    )


def stacked_rows(rows: Sequence[NDArray[Any] | None], device: torch.device) -> Tensor | None:
    """[T+1, N, …] int64 of what the backend told of each step, None where it tells nothing."""
    told = [row for row in rows if row is not None]
    return torch.from_numpy(np.stack(told).view(np.int64)).to(device) if told else None


def _trace(
    policy: Policy,
    rollout: Rollout,
    outputs: Tensor,  # [T, N, A]
    choices: Tensor,  # [T, N, …]
    before: Tensor,  # [T, N, H]
    after: Tensor,  # [T, N, H]
    bootstrap: bool,
) -> PolicyTrace:
    """Log-probabilities and values of all steps at once."""
    log_probs = policy.actions.log_prob(outputs, choices)
    values = policy.values(after.flatten(0, 1)).view(rollout.shape)
    last = after[-1] * ~rollout.starts[-1][:, None]
    _, last_values, _ = policy(rollout.table.rows(rollout.ids[-1]), last)
    next_values = torch.cat([values[1:], last_values[None]])
    if bootstrap and len(rollout.final_indices):
        memory = after.flatten(0, 1)[rollout.final_indices]
        _, final_values, _ = policy(rollout.table.rows(rollout.final_ids), memory)
        next_values = next_values.flatten().index_copy(0, rollout.final_indices, final_values).view(rollout.shape)
    return PolicyTrace(before, log_probs, values, next_values, choices)
