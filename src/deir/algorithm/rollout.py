"""Collects T steps of N environments with frozen parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deir.algorithm.metrics import Timer
from deir.algorithm.networks import grid_padding
from deir.algorithm.policy import Policy
from deir.algorithm.recurrent import Gates
from deir.algorithm.types import PolicyTrace, Rollout
from deir.envs.base import EnvStep, VectorEnvs
from deir.envs.spaces import packed_view
from deir.fast.acting import FrozenPolicy, ObservationCache
from deir.fast.patches import ObservationTable, tabulate


@dataclass
class Position:
    """Where collection stands between two rollouts."""

    observations: NDArray[Any]  # [N, *obs] what the policy sees next
    starts: NDArray[np.bool_]  # [N] it is the first of an episode
    hidden: Tensor  # [N, H] the policy's memory before it


@torch.no_grad()
def collect(
    envs: VectorEnvs,
    policy: Policy,
    position: Position,
    steps: int,
    generator: torch.Generator,
    bootstrap: bool,
    known: ObservationTable | None,
    timer: Timer,
) -> tuple[Rollout, PolicyTrace, Position, list[EnvStep]]:
    """`bootstrap`: value the last observation of truncated episodes too. `known`: observations likely to come again."""
    with timer("forward"):
        frozen = FrozenPolicy(policy)
        cache = ObservationCache(frozen, known) if envs.repeats else None
        kind = policy.actions
        noise = kind.noise((steps, envs.n_envs), generator).to(position.hidden.device)
    device = position.hidden.device
    seen: list[Any] = []  # names, or the observations themselves where nothing repeats
    starts, actions, choices, outputs, hidden_before, hidden_after, env_steps = [], [], [], [], [], [], []
    states, positions = [envs.state_hashes()], [envs.positions()]
    observations, start, hidden = position.observations, position.starts, position.hidden
    for t in range(steps):
        with timer("forward"):
            if cache is None:
                seen.append(torch.from_numpy(observations))
                gates = frozen.gates(seen[-1].to(device))
            else:
                seen.append(cache.lookup(observations))
                gates = Gates(cache.gates, seen[-1])
            starts.append(start)
            hidden_before.append(hidden * torch.from_numpy(~start).to(device)[:, None] if start.any() else hidden)
            output, hidden = frozen.step(gates, hidden_before[-1])
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
        table, ids, final_ids = _tabulate(envs, cache, seen, observations, env_steps, device)
        rollout = _assemble(table, ids, final_ids, [*starts, start], torch.stack(actions), env_steps, device)
        rollout = replace(rollout, states=_stacked(states, device), positions=_stacked(positions, device))
        trace = _trace(
            policy, rollout, torch.stack(outputs), torch.stack(choices), torch.stack(hidden_before),
            torch.stack(hidden_after), bootstrap,
        )  # fmt: skip
    return rollout, trace, Position(observations, start, hidden), env_steps


def _tabulate(
    envs: VectorEnvs,
    cache: ObservationCache | None,
    seen: list[Tensor],
    last: NDArray[Any],
    env_steps: list[EnvStep],
    device: torch.device,
) -> tuple[ObservationTable, Tensor, Tensor]:
    """The rollout's table, the names [T+1, N] of what was seen, and the names [K] of the final observations."""
    finals = np.concatenate([step.final_observations for step in env_steps])
    shape = (len(seen) + 1, envs.n_envs)
    if cache is None:
        everything = torch.cat([*seen, torch.from_numpy(np.ascontiguousarray(last)), torch.from_numpy(finals)])
        table, names = tabulate(everything.to(device), False)
        ids, final_ids = names.split([shape[0] * shape[1], len(finals)])
        return table, ids.view(shape), final_ids
    ids = torch.stack([*seen, cache.lookup(last)])
    final_ids = cache.lookup(finals) if len(finals) else ids.new_zeros(0)
    used, names = torch.cat([ids.flatten(), final_ids]).unique(return_inverse=True)
    distinct = torch.from_numpy(np.stack(cache.observations))[used]
    view = packed_view(envs.observation_space)
    table, renamed = tabulate(distinct.to(device), True, grid_padding(view or tuple(distinct.shape[1:])), view)
    names = renamed[names.to(device)]
    ids, final_ids = names.split([shape[0] * shape[1], len(finals)])
    return table, ids.view(shape), final_ids


def _assemble(
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


def _stacked(rows: Sequence[NDArray[Any] | None], device: torch.device) -> Tensor | None:
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
    values = policy.critic(after.flatten(0, 1)).view(rollout.shape)
    last = after[-1] * ~rollout.starts[-1][:, None]
    _, last_values, _ = policy(rollout.table.rows(rollout.ids[-1]), last)
    next_values = torch.cat([values[1:], last_values[None]])
    if bootstrap and len(rollout.final_indices):
        memory = after.flatten(0, 1)[rollout.final_indices]
        _, final_values, _ = policy(rollout.table.rows(rollout.final_ids), memory)
        next_values = next_values.flatten().index_copy(0, rollout.final_indices, final_values).view(rollout.shape)
    return PolicyTrace(before, log_probs, values, next_values, choices)
