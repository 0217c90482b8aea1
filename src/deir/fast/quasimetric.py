"""The quasimetric of ETD and its gradients without a tensor of all differences, of the distinct rows of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from deir.algorithm.types import Shared
from deir.compiled import Array, compiled
from deir.fast.arrays import arrays_of
from deir.fast.threads import in_parallel

# mypy: disable-error-code="override"


@compiled
def _distances(x: Array, columns: Array, half: int) -> tuple[Array, Array]:
    """Of x [A, F] and the columns [F, B] of y: the largest rise within the first half, and the squared distance of the
    second half. [A, B] each. The innermost loop is over y, which a processor can take several at a time."""
    rises = np.zeros((x.shape[0], columns.shape[1]), x.dtype)
    squares = np.zeros((x.shape[0], columns.shape[1]), x.dtype)
    for a in range(x.shape[0]):
        for k in range(half):
            for b in range(columns.shape[1]):
                rises[a, b] = max(rises[a, b], x[a, k] - columns[k, b])
        for k in range(half, x.shape[1]):
            for b in range(columns.shape[1]):
                change = x[a, k] - columns[k, b]
                squares[a, b] += change * change
    return rises, squares


@compiled
def _gradients_of_rises(x: Array, y: Array, rises: Array, grads: Array, by_x: Array, by_y: Array, half: int) -> None:
    """Adds the gradient of each rise [A, B] to that of the feature that rose most."""
    for a in range(x.shape[0]):
        for b in range(y.shape[0]):
            if rises[a, b] > 0:
                for k in range(half):
                    if x[a, k] - y[b, k] == rises[a, b]:
                        by_x[a, k] += grads[a, b]
                        by_y[b, k] -= grads[a, b]
                        break


class _Quasimetric(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        rises, squares = map(torch.from_numpy, _distances(*arrays_of(x, y.T), x.shape[1] // 2))
        ctx.kept = x.detach(), y.detach(), rises, squares.sqrt_()
        return rises + squares

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y, rises, lengths = ctx.kept
        half = x.shape[1] // 2
        shares = torch.where(lengths > 0, grad / lengths, 0.0)  # nothing at distance 0, as PyTorch's own
        by_x, by_y = torch.zeros_like(x), torch.zeros_like(y)
        by_x[:, half:] = shares.sum(1)[:, None] * x[:, half:] - shares @ y[:, half:]
        by_y[:, half:] = shares.sum(0)[:, None] * y[:, half:] - shares.T @ x[:, half:]
        _gradients_of_rises(*arrays_of(x, y, rises, grad), by_x.numpy(), by_y.numpy(), half)
        return by_x, by_y


def of_shared(x: Shared, y: Shared) -> Tensor:
    """[A, B] of the distances of the distinct rows."""
    distances = _Quasimetric.apply(x.values, y.values)
    if x.rows is not None:
        distances = distances.index_select(0, x.rows)
    return distances if y.rows is None else distances.index_select(1, y.rows)


@compiled
def _min_distances(
    queries: Array, columns: Array, steps: Array, first: Array, last: Array, half: int, found: Array
) -> None:
    """Of one environment: queries [T, F] of the `steps`, columns [F, S] of the keys, first and last [T] -> found [T]"""
    rises, squares = np.empty(columns.shape[1], columns.dtype), np.empty(columns.shape[1], columns.dtype)
    for t in steps:
        low, high = first[t], last[t] + 1
        rises[low:high] = 0
        squares[low:high] = 0
        for k in range(half):
            for s in range(low, high):
                rises[s] = max(rises[s], columns[k, s] - queries[t, k])
        for k in range(half, columns.shape[0]):
            for s in range(low, high):
                change = columns[k, s] - queries[t, k]
                squares[s] += change * change
        nearest = np.inf
        for s in range(low, high):
            nearest = min(nearest, rises[s] + np.sqrt(squares[s]))
        found[t] = nearest


def min_quasimetric(queries: Tensor, keys: Tensor, first: Tensor, last: Tensor, repeated: Tensor) -> Tensor:
    """`quasimetric.episodic_min_quasimetric`"""
    found = np.zeros(queries.shape[:2], queries.detach().numpy().dtype)
    rows, columns, begins, now, known = arrays_of(queries, keys.permute(1, 2, 0), first, last, repeated)
    half = queries.shape[2] // 2

    def search(n: int) -> None:
        steps = np.flatnonzero((begins[:, n] <= now) & ~known[:, n])
        nearest = np.zeros(len(rows), found.dtype)
        own = np.ascontiguousarray(rows[:, n])
        _min_distances(own, columns[n], steps, np.ascontiguousarray(begins[:, n]), now, half, nearest)
        found[:, n] = nearest

    in_parallel(search, range(queries.shape[1]))
    return torch.from_numpy(found)
