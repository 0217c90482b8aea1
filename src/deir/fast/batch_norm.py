"""Batch normalisation with the sum before it and the ReLU after it, of batches whose rows stand for several each.

The hand-written gradient passes over memory a third as often as PyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from deir.algorithm.layers import Head
from deir.algorithm.types import Shared
from deir.compiled import Array, compiled
from deir.fast.arrays import arrays_of

# mypy: disable-error-code="override"


@compiled
def _normalise(
    table: Array,  # [M, C]
    rows: Array,  # [P, K]
    share: Array,  # [P]
    weight: Array,  # [C]
    bias: Array,  # [C]
    eps: float,
    floor: float,
) -> tuple[Array, Array, Array, Array, Array]:
    """y_p = Σ_k table[rows[p, k]], normalised by the moments of a batch of which row p is share[p]; at least `floor`.

    Gives the output and the normalised y [P, C], and the mean, the (biased) variance and 1/σ [C].
    """
    (count, terms), width, number = rows.shape, table.shape[1], table.dtype.type
    normal, out = np.empty((count, width), table.dtype), np.empty((count, width), table.dtype)
    mean, variance = np.zeros(width, table.dtype), np.zeros(width, table.dtype)
    for p in range(count):
        y, part, term = normal[p], number(share[p]), table[rows[p, 0]]
        for c in range(width):
            y[c] = term[c]
        for k in range(1, terms):
            term = table[rows[p, k]]
            for c in range(width):
                y[c] += term[c]
        for c in range(width):
            mean[c] += part * y[c]
    for p in range(count):
        y, part = normal[p], number(share[p])
        for c in range(width):
            y[c] -= mean[c]
            variance[c] += part * y[c] * y[c]
    inverse = number(1) / np.sqrt(variance + number(eps))
    lowest = number(floor)
    for p in range(count):
        y, result = normal[p], out[p]
        for c in range(width):
            y[c] *= inverse[c]
            value = y[c] * weight[c] + bias[c]
            result[c] = lowest if value < lowest else value
    return out, normal, mean, variance, inverse


@compiled
def _normalise_gradient(
    grad: Array,  # [P, C] of the output
    out: Array,  # [P, C]
    normal: Array,  # [P, C]
    rows: Array,  # [P, K]
    share: Array,  # [P]
    weight: Array,  # [C]
    inverse: Array,  # [C]
    floor: float,
    size: int,  # M
) -> tuple[Array, Array, Array]:
    """The gradients of table [M, C], weight and bias [C]: dy = γ/σ (g - s (Σ g + ŷ Σ g ŷ)), with s the row's share."""
    (count, terms), width, number = rows.shape, grad.shape[1], grad.dtype.type
    grad_weight, grad_bias = np.zeros(width, grad.dtype), np.zeros(width, grad.dtype)
    grad_table, row = np.zeros((size, width), grad.dtype), np.empty(width, grad.dtype)
    lowest, zero, scale = number(floor), number(0), weight * inverse
    for p in range(count):
        g, result, y = grad[p], out[p], normal[p]
        for c in range(width):
            passed = g[c] if result[c] > lowest else zero
            grad_bias[c] += passed
            grad_weight[c] += passed * y[c]
    for p in range(count):
        g, result, y, part = grad[p], out[p], normal[p], number(share[p])
        for c in range(width):
            passed = g[c] if result[c] > lowest else zero
            row[c] = (passed - part * (grad_bias[c] + y[c] * grad_weight[c])) * scale[c]
        for k in range(terms):
            target = grad_table[rows[p, k]]
            for c in range(width):
                target[c] += row[c]
    return grad_table, grad_weight, grad_bias


@compiled
def _track_moments(
    running_mean: Array,  # [C]
    running_variance: Array,  # [C]
    mean: Array,  # [C]
    variance: Array,  # [C]
    momentum: float,
    correction: float,
) -> None:
    """Running statistics in place: m ← (1-ρ) m + ρ mean, v ← (1-ρ) v + ρ variance × correction."""
    number = running_mean.dtype.type
    keep, join, join_variance = number(1 - momentum), number(momentum), number(momentum * correction)
    for c in range(len(mean)):
        running_mean[c] = keep * running_mean[c] + join * mean[c]
        running_variance[c] = keep * running_variance[c] + join_variance * variance[c]


class _GatherNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, weight: Tensor, bias: Tensor, rows: Array, share: Array, eps: float, floor: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        table_, weight_, bias_ = arrays_of(table, weight, bias)
        out, normal, mean, variance, inverse = _normalise(table_, rows, share, weight_, bias_, eps, floor)
        ctx.arrays, ctx.floor, ctx.size = (out, normal, rows, share, weight_, inverse), floor, len(table_)
        moments = torch.from_numpy(mean), torch.from_numpy(variance)
        ctx.mark_non_differentiable(*moments)
        return torch.from_numpy(out), *moments

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grads = _normalise_gradient(*arrays_of(grad), *ctx.arrays, ctx.floor, ctx.size)
        table, weight, bias = map(torch.from_numpy, grads)
        return table, weight, bias, *(None,) * 4


def gather_norm(
    table: Tensor, rows: Array, share: Array, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation of y_p = Σ_k table[rows[p, k]], of which row p makes up share[p] of the batch; then a ReLU.

    table: [M, C], rows: [P, K], share: [P] -> the output [P, C] and the batch's mean and (biased) variance [C]
    """
    return _GatherNorm.apply(table, weight, bias, rows, share, eps, 0.0 if relu else -math.inf)


class Share(NamedTuple):
    """How a batch is made of rows."""

    of_rows: Array  # [P] what part of the batch each row makes up
    total: int  # rows in the batch, repeated ones counted

    @classmethod
    def equal(cls, rows: Tensor | Array) -> Share:
        """Each row is one of the batch."""
        return cls(np.full(len(rows), 1 / len(rows)), len(rows))


def each_row(x: Tensor) -> Array:
    """The rows of x one by one, as `gathered_norm` takes them. [B, 1]"""
    return np.arange(len(x))[:, None]


def trains_by_batch(norm: nn.Module) -> bool:
    return isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.training


def gathered_norm(
    norm: nn.Module, table: Tensor, rows: Array, bias: Tensor | None, share: Share, relu: bool = True
) -> Tensor:
    """Batch normalisation of bias + Σ_k table[rows[p, k]], where row p occurs in the batch as `share` says, and a ReLU.

    table: [M, C], rows: [P, K] -> [P, C]
    """
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d))
    # the bias moves only the mean, which is subtracted: it has no gradient
    out, mean, variance = gather_norm(table, rows, share.of_rows, norm.weight, norm.bias, norm.eps, relu)
    track_moments(norm, mean if bias is None else mean + bias.detach(), variance, share.total)
    return out


def track_moments(norm: nn.BatchNorm1d | nn.BatchNorm2d, mean: Tensor, variance: Tensor, total: int) -> None:
    """Joins the mean and the (biased) variance [C] of a batch of `total` rows to the running statistics."""
    assert norm.running_mean is not None and norm.running_var is not None
    assert norm.num_batches_tracked is not None and norm.momentum is not None
    norm.num_batches_tracked += 1
    running = arrays_of(norm.running_mean, norm.running_var, mean, variance)
    _track_moments(*running, norm.momentum, total / (total - 1))


def run_head(head: Head, x: Tensor, share: Share | None = None) -> Tensor:
    """[B, F] -> [B, outputs]; `share`: how the rows make up the batch, where not each is one of it."""
    *layers, last = head
    for linear, norm in zip(layers[::3], layers[1::3], strict=True):
        if isinstance(linear, nn.Linear) and trains_by_batch(norm):
            x = gathered_norm(norm, x @ linear.weight.T, each_row(x), linear.bias, share or Share.equal(x))
        else:
            x = norm(linear(x)).relu_()
    return last(x)


def run_head_of_parts(head: Head, parts: Sequence[Shared]) -> Tensor:
    """The head on rows that are made of parts. What rows share is multiplied once, and the products are summed."""
    linear, norm = head[0], head[1]
    if not (isinstance(linear, nn.Linear) and trains_by_batch(norm)):
        return run_head(head, torch.cat([part.gather() for part in parts], 1))
    weights = linear.weight.split([part.values.shape[1] for part in parts], 1)
    products = torch.cat([part.values @ weight.T for part, weight in zip(parts, weights, strict=True)])
    begins = accumulate((len(part.values) for part in parts), initial=0)
    rows = np.stack([_rows(part) + begin for part, begin in zip(parts, begins, strict=False)], 1)  # [B, parts]
    x = gathered_norm(norm, products, rows, linear.bias, Share.equal(rows))
    return run_head(Head(*list(head)[3:]), x)


def _rows(part: Shared) -> Array:
    return np.arange(len(part.values)) if part.rows is None else part.rows.numpy()
