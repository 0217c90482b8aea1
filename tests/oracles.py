"""The algorithm once more, plainly: one step of one environment at a time, PyTorch's own layers, autograd and Adam.

Nothing here is fast, shared or folded. Where the package must agree with the paper, its tests compare it with this.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributions as D

from deir.algorithm.actions import BoxActions, MultiDiscreteActions
from deir.algorithm.ops import PlainOps
from deir.algorithm.policy import Policy
from deir.algorithm.types import Rollout
from deir.envs.base import EnvStep, VectorEnvs

# networks


def embed(encoder: nn.Module, observations: Tensor) -> Tensor:
    """The encoder as PyTorch's own layers compute it. [B, *obs] -> [B, F]"""
    return encoder(observations)


def through(layers: nn.Sequential, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def policy_forward(policy: Policy, observations: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[B, *obs], memories before it [B, H] -> outputs [B, A], values [B], memories after it [B, H]"""
    hidden = policy.gru(embed(policy.encoder, observations), hidden)
    outputs = through(policy.actor, hidden)
    if policy.free is not None:
        outputs = torch.cat([outputs, policy.free.expand(len(outputs), -1)], 1)
    return outputs, through(policy.critic, hidden)[:, 0], hidden


def log_prob_and_entropy(policy: Policy, outputs: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
    """[B] each, by torch.distributions. The entropy of a squashed Gaussian has no closed form: not a number."""
    kind = policy.actions
    if isinstance(kind, BoxActions):
        mean, log_std = outputs.chunk(2, -1)
        normal = D.Normal(mean, log_std.exp())
        if not kind.squashed:
            return normal.log_prob(choices).sum(-1), normal.entropy().sum(-1)
        flat = choices.double()  # 1 - tanh² is nothing in single precision where tanh is flat
        slopes = torch.where(kind.bounded, (1 - flat.tanh().square()).log(), 0.0).float()
        return (normal.log_prob(choices) - slopes).sum(-1), torch.full(outputs.shape[:1], math.nan)
    if isinstance(kind, MultiDiscreteActions):
        parts = [D.Categorical(logits=logits) for logits in outputs.split(kind.sizes, -1)]
        log_probs = [part.log_prob(drawn) for part, drawn in zip(parts, choices.unbind(-1), strict=True)]
        return sum(log_probs), sum(part.entropy() for part in parts)
    drawn = D.Categorical(logits=outputs)
    return drawn.log_prob(choices), drawn.entropy()


def shuffled(indices: Tensor, size: int, generator: torch.Generator) -> list[Tensor]:
    """One epoch's mini-batches."""
    order = torch.randperm(len(indices), generator=generator)
    return list(indices[order].tensor_split(max(1, round(len(indices) / size))))


# collection


@dataclass
class Collected:
    """T steps of N environments as they came, and what the policy thought."""

    observations: list[Any] = field(default_factory=list)  # [T+1][N, *obs] what the policy saw
    followers: list[Any] = field(default_factory=list)  # [T][N, *obs] what truly followed
    replaced: list[Any] = field(default_factory=list)  # [T][N] bool: a new episode's first observation took its place
    starts: list[Any] = field(default_factory=list)  # [T+1][N]
    states: list[Any] = field(default_factory=list)  # [T+1][N]
    positions: list[Any] = field(default_factory=list)  # [T+1][N, 2]
    steps: list[EnvStep] = field(default_factory=list)  # [T]
    choices: list[Any] = field(default_factory=list)  # [T][N]
    actions: list[Any] = field(default_factory=list)  # [T][N]
    before: list[Any] = field(default_factory=list)  # [T][N, H] memories
    after: list[Any] = field(default_factory=list)  # [T][N, H]
    log_probs: list[Any] = field(default_factory=list)  # [T][N]
    values: list[Any] = field(default_factory=list)  # [T][N]
    next_values: list[Any] = field(default_factory=list)  # [T][N]

    def stacked(self, name: str) -> Tensor:
        rows = getattr(self, name)
        return torch.stack(rows) if isinstance(rows[0], Tensor) else torch.from_numpy(np.stack(rows))

    def of_steps(self, name: str) -> Tensor:
        return torch.from_numpy(np.stack([getattr(step, name) for step in self.steps]))

    def rollout(self) -> Rollout:
        """The same as the methods read it, with every observation a row of its own."""
        seen, followers = self.stacked("observations"), self.stacked("followers")
        count = seen.shape[0] * seen.shape[1]
        table, names = PlainOps().tabulate(torch.cat([seen.flatten(0, 1), followers.flatten(0, 1)]), False)
        final = self.stacked("replaced").flatten().nonzero()[:, 0]
        states = None if self.states[0] is None else torch.from_numpy(np.stack(self.states).view(np.int64))
        return Rollout(
            table, names[:count].view(seen.shape[:2]), self.stacked("starts"), self.stacked("actions"),
            self.of_steps("rewards").float(), self.of_steps("terminated"), self.of_steps("truncated"),
            self.of_steps("valid"), final, names[count:][final], states,
        )  # fmt: skip


class NaiveCollector:
    """Plays in environments of its own, one step of one environment at a time."""

    def __init__(self, envs: VectorEnvs, policy: Policy, generator: torch.Generator) -> None:
        self.envs, self.policy, self.generator = envs, policy, generator
        self.observations = envs.reset()
        self.starts = np.ones(envs.n_envs, bool)
        self.hidden = [torch.zeros(policy.hidden_size) for _ in range(envs.n_envs)]

    def _think(self, observation: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs, values, hidden = policy_forward(self.policy, torch.from_numpy(observation[None]), hidden[None])
        return outputs[0], values[0], hidden[0]

    @torch.no_grad()
    def collect(self, steps: int) -> Collected:
        self.policy.eval()
        found, envs, kind = Collected(), range(self.envs.n_envs), self.policy.actions
        noise = kind.noise((steps, self.envs.n_envs), self.generator)
        self._look(found)
        for t in range(steps):
            choices, log_probs, values, before, after = [], [], [], [], []
            for n in envs:
                before.append(torch.zeros_like(self.hidden[n]) if self.starts[n] else self.hidden[n])
                outputs, value, self.hidden[n] = self._think(self.observations[n], before[n])
                choices.append(kind.choose(outputs, noise[t, n]))
                log_probs.append(log_prob_and_entropy(self.policy, outputs[None], choices[n][None])[0][0])
                values.append(value)
                after.append(self.hidden[n])
            taken = kind.taken(torch.stack(choices))
            step = self.envs.step(taken.numpy())
            self.observations, self.starts = step.observations, step.starts
            finals = dict(zip(step.final_indices.tolist(), step.final_observations, strict=True))
            follower = [finals.get(n, step.observations[n]) for n in envs]
            # a dummy step leads into a new episode, whose memory is empty
            memories = [after[n] if step.valid[n] else torch.zeros_like(after[n]) for n in envs]
            found.next_values.append(torch.stack([self._think(follower[n], memories[n])[1] for n in envs]))
            found.steps.append(step)
            found.followers.append(np.stack(follower))
            found.replaced.append(np.array([n in finals for n in envs]))
            for name, rows in {"choices": choices, "log_probs": log_probs, "values": values}.items():
                getattr(found, name).append(torch.stack(rows))
            found.actions.append(taken)
            found.before.append(torch.stack(before))
            found.after.append(torch.stack(after))
            self._look(found)
        return found

    def _look(self, found: Collected) -> None:
        found.observations.append(self.observations.copy())
        found.starts.append(self.starts.copy())
        found.states.append(self.envs.state_hashes())
        found.positions.append(self.envs.positions())
