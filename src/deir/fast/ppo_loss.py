"""PPO's loss of a categorical policy and its gradients, in one pass, for PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from deir.fast import losses
from deir.fast.arrays import arrays_of

# mypy: disable-error-code="override"


class _PpoOfCategories(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
        arrays, numbers = arrays_of(logits, values, *settings[:5]), np.array(settings[5:], np.float64)
        figures, ctx.grads = np.zeros(6), [np.empty_like(arrays[0]), np.empty_like(arrays[1])]
        losses.ppo_of_categories(*arrays, numbers, *ctx.grads, figures, 0, len(logits))
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
