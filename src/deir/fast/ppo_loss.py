"""PPO's loss of a categorical policy and its gradients, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from deir.compiled import Array, compiled
from deir.fast.arrays import arrays_of

# mypy: disable-error-code="override"


@compiled
def _ppo_of_categories(
    logits: Array,  # [B, A]
    values: Array,  # [B]
    choices: Array,  # [B] int64
    old_log_probs: Array,  # [B]
    old_values: Array,  # [B]
    advantages: Array,  # [B]
    returns: Array,  # [B]
    clip: float,
    clip_value: float,  # infinite: values are not clipped
    value_coef: float,
    entropy_coef: float,
) -> tuple[Array, Array, Array]:
    """`ppo.ppo_loss` of a categorical policy: the loss and its metrics [6], and its gradients by logits and values."""
    (count, kinds), figures = logits.shape, np.zeros(6)
    grad_logits, grad_values = np.empty_like(logits), np.empty_like(values)
    log_pi, pi = np.empty(kinds), np.empty(kinds)
    for b in range(count):
        largest, total = logits[b].max(), 0.0
        for a in range(kinds):
            total += np.exp(logits[b, a] - largest)
        entropy = 0.0
        for a in range(kinds):
            log_pi[a] = logits[b, a] - largest - np.log(total)
            pi[a] = np.exp(log_pi[a])
            entropy -= pi[a] * log_pi[a]
        choice, advantage = choices[b], advantages[b]
        log_ratio = log_pi[choice] - old_log_probs[b]
        ratio = np.exp(log_ratio)
        clipped = min(max(ratio, 1 - clip), 1 + clip)
        figures[1] -= min(ratio * advantage, clipped * advantage)
        moves = ratio == clipped or ratio * advantage < clipped * advantage  # else the clipped ratio, a constant
        by_log_prob = -ratio * advantage if moves else 0.0
        for a in range(kinds):
            by_entropy = entropy_coef * pi[a] * (log_pi[a] + entropy)
            grad_logits[b, a] = (by_entropy - by_log_prob * pi[a] + (by_log_prob if a == choice else 0.0)) / count
        change = values[b] - old_values[b]
        error = old_values[b] + min(max(change, -clip_value), clip_value) - returns[b]
        grad_values[b] = 2 * value_coef * error / count if abs(change) <= clip_value else 0.0
        figures[2] += error * error
        figures[3] += entropy
        figures[4] += ratio - 1 - log_ratio
        figures[5] += abs(ratio - 1) > clip
    figures /= count
    figures[0] = figures[1] + value_coef * figures[2] - entropy_coef * figures[3]
    return figures, grad_logits, grad_values


class _PpoOfCategories(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
        tensors, numbers = settings[:5], settings[5:]
        figures, *ctx.grads = _ppo_of_categories(*arrays_of(logits, values, *tensors), *numbers)
        loss, metrics = torch.from_numpy(figures.astype(ctx.grads[0].dtype)).split([1, 5])
        ctx.mark_non_differentiable(metrics)
        return loss[0], metrics

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return *(torch.from_numpy(by) * grad for by in ctx.grads), *(None,) * 9


def ppo_of_categories(
    logits: Tensor,  # [B, A]
    values: Tensor,  # [B]
    batch: Sequence[Tensor],  # choices, old_log_probs, old_values, advantages, returns: [B] each
    clip: float,
    clip_value: float,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, Tensor]:
    """PPO's loss for a categorical policy, and its metrics [5]: policy and value loss, entropy, KL, clip fraction."""
    return _PpoOfCategories.apply(logits, values, *batch, clip, clip_value, value_coef, entropy_coef)
