"""Proximal policy optimisation on single shuffled steps with stored memories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from deir.algorithm.actions import Actions, DiscreteActions
from deir.algorithm.functional import EmaMoments, explained_variance, gae, minibatches
from deir.algorithm.types import Metrics, PolicyBatch, PolicyTrace, Rollout
from deir.config import PPOConfig

if TYPE_CHECKING:
    from deir.algorithm.ops import Optimizer
    from deir.algorithm.policy import Policy

METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def advantages_and_returns(
    rollout: Rollout, trace: PolicyTrace, rewards: Tensor, config: PPOConfig
) -> tuple[Tensor, Tensor]:
    """[T, N] each. A dummy step ends nothing and earns nothing: no advantage passes through it."""
    cut = rollout.dones if config.truncation == "terminate" else rollout.terminated
    next_values = trace.next_values * ~cut
    advantages = gae(
        rewards, trace.values, next_values, rollout.dones | ~rollout.valid, config.gamma, config.gae_lambda
    )
    return advantages, advantages + trace.values


def normalized_advantages(advantages: Tensor, valid: Tensor, config: PPOConfig, moments: EmaMoments) -> Tensor:
    if config.advantage_norm != "ema":
        return advantages
    moments.update(advantages[valid])
    return moments.normalize(advantages, 1e-8)


def ppo_loss(
    outputs: Tensor,  # [B, A] of the policy's head
    values: Tensor,  # [B]
    choices: Tensor,  # [B, …]
    old_log_probs: Tensor,  # [B]
    old_values: Tensor,  # [B]
    advantages: Tensor,  # [B]
    returns: Tensor,  # [B]
    config: PPOConfig,
    actions: Actions | None = None,  # their kind; Discrete if not given
) -> tuple[Tensor, dict[str, Tensor]]:
    """L = -E min(ρ A, clip(ρ, 1±c) A) + c_v E (V - R)² - c_e E H(π),  ρ = π(a)/π_old(a)"""
    actions = actions or DiscreteActions(outputs.shape[-1])
    log_probs, entropies = actions.judge(outputs, choices)
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)
    policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
    if config.clip_range_value is not None:
        values = old_values + (values - old_values).clamp(-config.clip_range_value, config.clip_range_value)
    value_loss = F.mse_loss(values, returns)
    entropy = entropies.mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()
        clip_fraction = ((ratio - 1).abs() > config.clip_range).float().mean()
    return loss, dict(zip(METRICS, (policy_loss, value_loss, entropy, approx_kl, clip_fraction), strict=True))


def update_policy(
    policy: Policy,
    optimizer: Optimizer,
    rollout: Rollout,
    trace: PolicyTrace,
    advantages: Tensor,  # [T, N] normalised
    returns: Tensor,  # [T, N]
    config: PPOConfig,
    generator: torch.Generator,
) -> Metrics:
    policy.train()
    choices = rollout.actions if trace.choices is None else trace.choices
    steps = (rollout.ids[:-1], trace.hidden, choices, trace.log_probs, trace.values, advantages, returns)
    batches = policy_batches(rollout, [x.flatten(0, 1) for x in steps], config, generator)
    metrics, valid = policy.ops.train_policy(policy, optimizer, batches, config), rollout.valid
    return {**metrics, "explained_variance": explained_variance(trace.values[valid], returns[valid])}


def policy_batches(
    rollout: Rollout, steps: list[Tensor], config: PPOConfig, generator: torch.Generator
) -> Iterator[PolicyBatch]:
    """The rollout's genuine steps, shuffled anew each epoch. steps: [T*N, …], the fields of a batch in their order"""
    for _ in range(config.epochs):
        parts = minibatches(rollout.valid_indices(), config.minibatch_size, generator)
        order, sizes = torch.cat(parts), [len(part) for part in parts]
        shuffled = (x.index_select(0, order).split(sizes) for x in steps)
        for ids, hidden, choices, log_probs, values, advantages, returns in zip(*shuffled, strict=True):
            if config.advantage_norm == "minibatch":
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            rows = rollout.table.rows(ids)
            yield PolicyBatch(rows, hidden, choices, log_probs, values, advantages, returns)


class MeanMetrics:
    """Means of the metrics of many gradient steps, brought to the host once."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def add(self, metrics: dict[str, Tensor]) -> None:
        for name, value in metrics.items():
            self.sums[name] = self.sums[name] + value.detach() if name in self.sums else value.detach()
        self.count += 1

    def mean(self) -> Metrics:
        return {name: float(total) / self.count for name, total in self.sums.items()}
