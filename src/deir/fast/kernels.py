"""Small differentiable functions with hand-written gradients: the inner loops of training.

Each is plain mathematics that PyTorch could differentiate by itself, written out because the hand-written backward
passes over memory a third as often. Tests hold every one against autograd in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from deir.compiled import Array
from deir.fast import loops
from deir.fast.patches import GROUP, Placed
from deir.fast.threads import in_parallel

# mypy: disable-error-code="override"


class _GatherSum(Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows = len(table)
        return F.embedding_bag(indices, table, mode="sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (indices,) = ctx.saved_tensors
        total = grad.new_zeros(ctx.rows, grad.shape[1])
        for column in indices.T.contiguous():
            total.index_add_(0, column, grad)
        return total, None


def gather_sum(table: Tensor, indices: Tensor) -> Tensor:
    """out_p = Σ_k table[indices[p, k]].   table [M, C], indices [P, K] -> [P, C]"""
    return _GatherSum.apply(table, indices)


class _GatherNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, weight: Tensor, bias: Tensor, rows: Array, share: Array, eps: float, floor: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        table_, weight_, bias_ = arrays_of(table, weight, bias)
        out, normal, mean, variance, inverse = loops.gather_norm(table_, rows, share, weight_, bias_, eps, floor)
        ctx.arrays, ctx.floor, ctx.size = (out, normal, rows, share, weight_, inverse), floor, len(table_)
        moments = torch.from_numpy(mean), torch.from_numpy(variance)
        ctx.mark_non_differentiable(*moments)
        return torch.from_numpy(out), *moments

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grads = loops.gather_norm_gradient(*arrays_of(grad), *ctx.arrays, ctx.floor, ctx.size)
        table, weight, bias = map(torch.from_numpy, grads)
        return table, weight, bias, *(None,) * 4


def gather_norm(
    table: Tensor, rows: Array, share: Array, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation of y_p = Σ_k table[rows[p, k]], of which row p makes up share[p] of the batch; then a ReLU.

    table: [M, C], rows: [P, K], share: [P] -> the output [P, C] and the batch's mean and (biased) variance [C]
    """
    return _GatherNorm.apply(table, weight, bias, rows, share, eps, 0.0 if relu else -math.inf)


def arrays_of(*tensors: Tensor) -> tuple[Array, ...]:
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)


class _PlacedLinear(Function):
    @staticmethod
    def forward(ctx: Any, patches: Tensor, weight: Tensor, placed: Placed) -> Tensor:
        kernels = torch.from_numpy(loops.by_position(*arrays_of(weight), placed.order))  # [positions, C, F]
        rows = patches.detach()[torch.from_numpy(placed.patches)]  # [S, C]
        ctx.save_for_backward(kernels, rows)
        ctx.placed, ctx.size = placed, len(patches)
        products = rows.new_empty(len(rows), len(weight))
        for kernel, row, product in _rectangles(placed, kernels, rows, products):
            torch.bmm(row, kernel, out=product)
        return products

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kernels, rows = ctx.saved_tensors
        by_kernels, by_rows = torch.empty_like(kernels), torch.empty_like(rows)
        both = zip(
            _rectangles(ctx.placed, kernels, rows, grad), _rectangles(ctx.placed, by_kernels, by_rows), strict=True
        )
        for (kernel, row, by_product), (by_kernel, by_row) in both:
            torch.bmm(by_product, kernel.transpose(1, 2), out=by_row)
            torch.bmm(row.transpose(1, 2), by_product, out=by_kernel)
        by_patches = loops.scatter_sum(*arrays_of(by_rows), ctx.placed.patches, ctx.size)
        by_weight = loops.not_by_position(*arrays_of(by_kernels), ctx.placed.order)
        return torch.from_numpy(by_patches), torch.from_numpy(by_weight), None


def _rectangles(placed: Placed, kernels: Tensor, *slots: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """For each group of positions its kernels [group, C, F], and its part of each [S, …], as [group, height, …]."""
    begin = 0
    for kernel, height in zip(kernels.split(GROUP), placed.heights.tolist(), strict=True):
        end = begin + len(kernel) * height
        yield kernel, *(x[begin:end].view(len(kernel), height, -1) for x in slots)
        begin = end


def placed_linear(patches: Tensor, weight: Tensor, placed: Placed) -> Tensor:
    """The part of a linear layer on feature maps that each patch has a share in at its position.

    patches: [P, C], weight: [F, C*positions] -> for each slot [S, F]
    """
    return _PlacedLinear.apply(patches, weight, placed)


class _PpoOfCategories(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
        tensors, numbers = settings[:5], settings[5:]
        figures, *ctx.grads = loops.ppo_of_categories(*arrays_of(logits, values, *tensors), *numbers)
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


class _GruUpdate(Function):
    @staticmethod
    def forward(ctx: Any, from_input: Tensor, rows: Tensor, from_memory: Tensor, hidden: Tensor) -> Tensor:
        inputs, rows_, memory, before = arrays_of(from_input, rows, from_memory, hidden)
        gates = loops.gru_gates_before(inputs, rows_, memory)
        torch.from_numpy(gates).sigmoid_()
        new = loops.gru_new_before(inputs, rows_, memory, gates)
        torch.from_numpy(new).tanh_()
        ctx.arrays, ctx.size = (gates, new, rows_, memory, before), len(inputs)
        return torch.from_numpy(loops.gru_mix(gates, new, before))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = loops.gru_gradient(*arrays_of(grad), *ctx.arrays, ctx.size)
        from_input, from_memory, hidden = map(torch.from_numpy, grads)
        return from_input, None, from_memory, hidden


def gru_update(from_input: Tensor, from_memory: Tensor, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
    """The elementwise part of a GRU: r, z = σ(·), n = tanh(W x + r (U h)), h' = (1-z) n + z h.

    from_input = W x + b [U, 3H] and from_memory = U h + c [M, 3H], in PyTorch's order r, z, n; hidden [M, H] -> [B, H]
    rows [B]: which row of from_input each row of the batch takes, if not its own. Row b continues memory b mod M.
    """
    if hidden.device.type == "cpu":
        rows = torch.arange(len(from_input), device="cpu") if rows is None else rows
        return _GruUpdate.apply(from_input, rows, from_memory, hidden)
    from_input = from_input if rows is None else from_input.index_select(0, rows)
    times, width = len(from_input) // len(hidden), hidden.shape[1]
    from_memory, hidden = from_memory.repeat(times, 1), hidden.repeat(times, 1)
    gates = (from_input[:, : 2 * width] + from_memory[:, : 2 * width]).sigmoid()
    new = torch.addcmul(from_input[:, 2 * width :], gates[:, :width], from_memory[:, 2 * width :]).tanh()
    return torch.lerp(new, hidden, gates[:, width:])


class _InPieces(Function):
    @staticmethod
    def forward(ctx: Any, network: Callable[[Tensor], Tensor], size: int, x: Tensor, *parameters: Tensor) -> Tensor:
        def embed(piece: Tensor) -> Tensor:
            with torch.enable_grad():
                return network(piece)

        ctx.outputs = in_parallel(embed, x.split(size), x.device)
        ctx.parameters = parameters
        return torch.cat([output.detach() for output in ctx.outputs])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        outputs, ctx.outputs = ctx.outputs, ()
        grads = grad.split([len(output) for output in outputs])
        pairs = list(zip(outputs, grads, strict=True))
        parts = in_parallel(lambda pair: torch.autograd.grad(pair[0], ctx.parameters, pair[1]), pairs, grad.device)
        return None, None, None, *(sum_in_order(part) for part in zip(*parts, strict=True))


def sum_in_order(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def in_pieces(network: Callable[[Tensor], Tensor], x: Tensor, size: int, parameters: Sequence[nn.Parameter]) -> Tensor:
    """network(x), where the rows of x [B, …] do not depend on each other: pieces of `size` rows, side by side.

    How many are computed at once makes no difference to the bits; the pieces do not depend on it.
    """
    if len(x) <= size:
        return network(x)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if trained and torch.is_grad_enabled():
        return _InPieces.apply(network, size, x, *trained)
    return torch.cat(in_parallel(network, x.split(size), x.device))
