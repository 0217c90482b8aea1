"""A GRU over inputs that rows share: compiled loops, and hand-written gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from deir.algorithm.types import Shared
from deir.compiled import Array, compiled
from deir.fast.addresses import exponential
from deir.fast.arrays import arrays_of
from deir.fast.blas import multiply, product

# mypy: disable-error-code="override"


@compiled
def _gates_before(from_input: Array, rows: Array, from_memory: Array) -> Array:
    """What the gates r and z of a GRU are the sigmoids of. [B, 2H]

    Row b of the batch takes row rows[b] of from_input [U, 3H], and row b mod M of from_memory [M, 3H]; likewise below.
    """
    count, memories, width = len(rows), len(from_memory), from_memory.shape[1] // 3 * 2
    gates = np.empty((count, width), from_memory.dtype)
    for b in range(count):
        result, first, second = gates[b], from_input[rows[b]], from_memory[b % memories]
        for c in range(width):
            result[c] = first[c] + second[c]
    return gates


@compiled
def _new_before(from_input: Array, rows: Array, from_memory: Array, gates: Array) -> Array:
    """What the new memory n is the tanh of. [B, H]"""
    count, memories, width = len(rows), len(from_memory), from_memory.shape[1] // 3
    new = np.empty((count, width), from_memory.dtype)
    for b in range(count):
        result, first, second, gate = new[b], from_input[rows[b]], from_memory[b % memories], gates[b]
        for c in range(width):
            result[c] = first[2 * width + c] + gate[c] * second[2 * width + c]
    return new


@compiled
def _mix(gates: Array, new: Array, hidden: Array) -> Array:
    """h' = n + z (h - n).   gates: [B, 2H], new: [B, H], hidden: [M, H] -> [B, H]"""
    (count, width), memories = new.shape, len(hidden)
    out = np.empty((count, width), hidden.dtype)
    for b in range(count):
        result, gate, n, h = out[b], gates[b], new[b], hidden[b % memories]
        for c in range(width):
            result[c] = n[c] + gate[width + c] * (h[c] - n[c])
    return out


@compiled
def _gradient(
    grad: Array,  # [B, H] of h'
    gates: Array,  # [B, 2H]
    new: Array,  # [B, H]
    rows: Array,  # [B]
    from_memory: Array,  # [M, 3H]
    hidden: Array,  # [M, H]
    size: int,  # U
) -> tuple[Array, Array, Array]:
    """The gradients of from_input [U, 3H], from_memory [M, 3H] and hidden [M, H]."""
    (memories, width), one = hidden.shape, grad.dtype.type(1)
    grad_input = np.zeros((size, 3 * width), grad.dtype)
    grad_memory, grad_hidden = np.zeros((memories, 3 * width), grad.dtype), np.zeros((memories, width), grad.dtype)
    for b in range(len(rows)):
        m = b % memories
        g, gate, n, memory, h = grad[b], gates[b], new[b], from_memory[m], hidden[m]
        to_memory, to_hidden, to_input = grad_memory[m], grad_hidden[m], grad_input[rows[b]]
        for c in range(width):
            reset, update = gate[c], gate[width + c]
            to_new = g[c] * (one - update) * (one - n[c] * n[c])  # through the tanh
            to_reset = to_new * memory[2 * width + c] * reset * (one - reset)
            to_update = g[c] * (h[c] - n[c]) * update * (one - update)
            to_hidden[c] += g[c] * update
            to_memory[c] += to_reset
            to_memory[width + c] += to_update
            to_memory[2 * width + c] += to_new * reset
            to_input[c] += to_reset
            to_input[width + c] += to_update
            to_input[2 * width + c] += to_new
    return grad_input, grad_memory, grad_hidden


@compiled
def advance_row(x: Array, h: Array, memory: Array, after: Array) -> None:
    """h' of one row. x: [3H] W x + b, h: [H], memory: [3H] U h + c"""
    width, one, two = len(h), h.dtype.type(1), h.dtype.type(2)
    for c in range(2 * width):
        memory[c] = one / (one + exponential(-(x[c] + memory[c])))
    for c in range(width):
        new = two / (one + exponential(-two * (x[2 * width + c] + memory[c] * memory[2 * width + c]))) - one
        after[c] = new + memory[width + c] * (h[c] - new)


@compiled
def _affine(gemm: int, x: Array, weight: Array, bias: Array) -> Array:
    """x weight + bias.   x: [N, I], weight: [I, O], bias: [O] -> [N, O]"""
    out = np.empty((len(x), len(bias)), x.dtype)
    out[:] = bias
    multiply(gemm, x, False, weight, False, out, 1.0)
    return out


@compiled
def _scan(
    gemm: int,
    gates: Array,  # [U, 3H] W x + b
    rows: Array,  # [T, N] which of them each step has
    hidden: Array,  # [N, H] the memory before the first step
    starts: Array,  # [T, N] bool: an episode begins, without memory
    weight: Array,  # [H, 3H]
    bias: Array,  # [3H]
) -> tuple[Array, Array]:
    """A GRU over time: the memory before each step and after it, [T, N, H] each."""
    (steps, envs), width = rows.shape, hidden.shape[1]
    before, after = np.zeros((steps, envs, width), hidden.dtype), np.empty((steps, envs, width), hidden.dtype)
    for t in range(steps):
        for n in range(envs):
            if not starts[t, n]:
                before[t, n] = after[t - 1, n] if t else hidden[n]
        memory = _affine(gemm, before[t], weight, bias)
        for n in range(envs):
            advance_row(gates[rows[t, n]], before[t, n], memory[n], after[t, n])
    return before, after


@compiled
def act_recurrently(
    gemm: int,
    gates: Array,  # [U, 3H] W x + b
    rows: Array,  # [N] which of them each environment has
    hidden: Array,  # [N, H] the memory before
    from_memory: tuple[Array, Array],  # of a GRU: [H, 3H], [3H]
    features: tuple[Array, Array],  # the actor's first layer: [H, F], [F]
    last: tuple[Array, Array],  # its last: [F, A], [A]
) -> tuple[Array, Array]:
    """One step of a policy: outputs [N, A] and the memory after [N, H]."""
    after, memory = np.empty_like(hidden), _affine(gemm, hidden, from_memory[0], from_memory[1])
    for n in range(len(hidden)):
        advance_row(gates[rows[n]], hidden[n], memory[n], after[n])
    first = _affine(gemm, after, features[0], features[1])
    return _affine(gemm, np.maximum(first, first.dtype.type(0)), last[0], last[1]), after


class _GruUpdate(Function):
    @staticmethod
    def forward(ctx: Any, from_input: Tensor, rows: Tensor, from_memory: Tensor, hidden: Tensor) -> Tensor:
        inputs, rows_, memory, before = arrays_of(from_input, rows, from_memory, hidden)
        gates = _gates_before(inputs, rows_, memory)
        torch.from_numpy(gates).sigmoid_()
        new = _new_before(inputs, rows_, memory, gates)
        torch.from_numpy(new).tanh_()
        ctx.arrays, ctx.size = (gates, new, rows_, memory, before), len(inputs)
        return torch.from_numpy(_mix(gates, new, before))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = _gradient(*arrays_of(grad), *ctx.arrays, ctx.size)
        from_input, from_memory, hidden = map(torch.from_numpy, grads)
        return from_input, None, from_memory, hidden


def gru_update(from_input: Tensor, from_memory: Tensor, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
    """The elementwise part of a GRU: r, z = σ(·), n = tanh(W x + r (U h)), h' = (1-z) n + z h.

    from_input = W x + b [U, 3H] and from_memory = U h + c [M, 3H], in PyTorch's order r, z, n; hidden [M, H] -> [B, H]
    rows [B]: which row of from_input each row of the batch takes, if not its own. Row b continues memory b mod M.
    """
    rows = torch.arange(len(from_input), device="cpu") if rows is None else rows
    return _GruUpdate.apply(from_input, rows, from_memory, hidden)


def gru_gates(cell: nn.GRUCell, embedded: Shared) -> Shared:
    """What a GRU takes of its inputs: W x + b, once for each distinct one. [u, 3H]"""
    return Shared(F.linear(embedded.values, cell.weight_ih, cell.bias_ih), embedded.rows)


def gru_step(cell: nn.GRUCell, gates: Shared, hidden: Tensor) -> Tensor:
    """hidden: [M, H] -> [B, H]; row b continues memory b mod M."""
    return gru_update(gates.values, F.linear(hidden, cell.weight_hh, cell.bias_hh), hidden, gates.rows)


@torch.no_grad()
def gru_scan(cell: nn.GRUCell, gates: Shared, hidden: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """gates of T*N steps, hidden [N, H], starts [T, N] -> the memory before each step and after it, [T, N, H] each."""
    rows = torch.arange(starts.numel(), device="cpu") if gates.rows is None else gates.rows
    rows, gemm = rows.view(starts.shape), product(hidden.dtype)
    if gemm is None:
        befores, afters = [], [hidden]
        for row, start in zip(rows, starts, strict=True):
            befores.append(afters[-1] * ~start[:, None])
            afters.append(gru_step(cell, Shared(gates.values, row), befores[-1]))
        return torch.stack(befores), torch.stack(afters[1:])
    arrays = arrays_of(gates.values, rows, hidden, starts, cell.weight_hh.T, cell.bias_hh)
    before, after = _scan(gemm, *arrays)
    return torch.from_numpy(before), torch.from_numpy(after)
