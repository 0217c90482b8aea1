"""Plays episodes of a trained agent and keeps all that the agent and its reward model thought of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from deir.agent import Agent
from deir.algorithm.actions import DiscreteActions
from deir.algorithm.explanation import Explanation
from deir.algorithm.rewards.base import IntrinsicReward
from deir.algorithm.rollout import over_time, told_over_time
from deir.algorithm.types import Rollout
from deir.envs import make_envs
from deir.envs.base import EnvStep, VectorEnvs
from deir.errors import UserError
from deir.experiments.replay.cameras import Camera
from deir.seeding import derive, torch_generator

STREAM = "replay"


@dataclass(frozen=True)
class Recording:
    """The first episode (or first few) of each of N environments, cut at T steps; what comes after does not count."""

    rollout: Rollout  # [T, N]
    lengths: NDArray[np.int64]  # [N] steps that count
    ended: NDArray[np.bool_]  # [N] within T steps
    values: Tensor  # [T, N]
    probabilities: Tensor | None  # [T, N, A] of Discrete actions
    raw: Tensor  # [T, N] the intrinsic reward
    camera: Camera

    def returns(self) -> NDArray[np.float64]:
        """[N]"""
        rewards = self.rollout.rewards.double().numpy()
        return np.array([rewards[:length, n].sum() for n, length in enumerate(self.lengths)])


def generator_of(seed: int) -> torch.Generator:
    """Of the sampled actions, the same for all runs."""
    return torch_generator(seed, STREAM)


def environments(agent: Agent, n_envs: int, seed: int, task: str | None = None) -> VectorEnvs:
    """Of the run's task, or of another that looks the same to the agent. Runs meet the same layouts by a seed."""
    config = replace(agent.config.env, n_envs=n_envs, layout_worker=False)
    envs = make_envs(replace(config, id=task) if task else config, derive(seed, STREAM) % 2**31)
    policy = agent.policy
    for name, theirs, ours in (
        ("observations", envs.observation_space, policy.observation_space),
        ("actions", envs.action_space, agent.reward.reader.action_space),
    ):
        if theirs != ours:
            envs.close()
            raise UserError(f"env: {task} has the {name} {theirs}, expected {ours}, which the run was trained with")
    return envs


@torch.no_grad()
def record(
    agent: Agent,
    envs: VectorEnvs,
    camera: Camera,
    observations: NDArray[Any],
    generator: torch.Generator,
    greedy: bool,
    limit: int,
    episodes: int = 1,
) -> Recording:
    """Until every environment has ended so many episodes, or for `limit` steps.

    observations: [N, *obs] of the first steps of episodes
    """
    policy, n_envs = agent.policy, envs.n_envs
    acting, kind = policy.ops.acting(policy, envs.repeats, None), policy.actions
    start, hidden = np.ones(n_envs, np.bool_), policy.initial_hidden(n_envs)
    starts, outputs, memories, actions, steps = [start], [], [], [], list[EnvStep]()
    states, positions = [envs.state_hashes()], [envs.positions()]
    lengths, played = np.zeros(n_envs, np.int64), np.zeros(n_envs, np.int64)
    while len(steps) < limit and (lengths == 0).any():
        camera.look()
        hidden = hidden * torch.from_numpy(~start)[:, None]
        output, hidden = acting.step(observations, hidden)
        outputs.append(output)
        memories.append(hidden)
        actions.append(kind.taken(kind.mode(output) if greedy else kind.sample(output, generator)))
        steps.append(envs.step(actions[-1].numpy()))
        observations, start = steps[-1].observations, steps[-1].starts
        starts.append(start)
        states.append(envs.state_hashes())
        positions.append(envs.positions())
        done = (steps[-1].terminated | steps[-1].truncated) & steps[-1].valid
        played += done
        lengths[done & (played == episodes)] = len(steps)
    camera.look()
    finals = np.concatenate([step.final_observations for step in steps])
    table, ids, final_ids = acting.table(observations, finals)
    final_indices, columns = over_time(steps)
    rewards, terminated, truncated, valid = map(torch.from_numpy, columns)
    rollout = Rollout(
        table, ids, torch.from_numpy(np.stack(starts)), torch.stack(actions), rewards.float(),
        terminated, truncated, valid, torch.from_numpy(final_indices), final_ids, _told(states), _told(positions),
    )  # fmt: skip
    logits = torch.stack(outputs)  # [T, N, A]
    return Recording(
        rollout,
        np.where(lengths == 0, len(steps), lengths),
        lengths > 0,
        policy.values(torch.stack(memories).flatten(0, 1)).view(len(steps), n_envs),
        F.softmax(logits, -1) if isinstance(kind, DiscreteActions) else None,
        raw_rewards(agent, rollout),
        camera,
    )


def _told(rows: list[NDArray[Any] | None]) -> Tensor | None:
    told = told_over_time(rows)
    return None if told is None else torch.from_numpy(told.view(np.int64))


@contextmanager
def left_as_it_was(method: IntrinsicReward) -> Iterator[None]:
    """Puts back what the method learns while it computes: statistics in its buffers, and what is beside them."""
    before, buffers = copy.deepcopy(method.extra_state()), [buffer.clone() for buffer in method.buffers()]
    try:
        yield
    finally:
        method.load_extra_state(before)
        for buffer, kept in zip(method.buffers(), buffers, strict=True):
            buffer.copy_(kept)


@torch.no_grad()
def raw_rewards(agent: Agent, rollout: Rollout) -> Tensor:
    """The intrinsic reward [T, N] as the method's stage computes it; the method is left as it was."""
    method = agent.reward.model.reward
    method.check(rollout.states is not None)
    with left_as_it_was(method):
        return method.compute(rollout, method.initial_state(rollout.shape[1]))[0]


@torch.no_grad()
def explained(agent: Agent, rollout: Rollout, env: int) -> Explanation:
    method = agent.reward.model.reward
    with left_as_it_was(method):
        return method.explain(rollout, env)


def paid(agent: Agent, raw: Tensor) -> Tensor:
    """What the policy would be paid for raw rewards, by the moments of its training: β (r - μ)/(σ + 1e-5)."""
    scale = agent.reward.scale
    return scale.beta * (scale.moments.normalize(raw) if scale.normalize else raw)
