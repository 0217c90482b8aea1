"""Small differentiable functions with hand-written gradients: the inner loops of training.

Each is plain mathematics that PyTorch could differentiate by itself, written out because the hand-written backward
passes over memory a third as often. Tests hold every one against autograd in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from deir.threads import in_parallel

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


class _WeightedNormRelu(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, share: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = share @ x
        normal = x - mean
        variance = share @ normal.square()
        inverse = (variance + eps).rsqrt()
        normal *= inverse
        out = torch.addcmul(bias, normal, weight).relu_()
        ctx.save_for_backward(normal, share, weight, inverse, out)
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        normal, share, weight, inverse, out = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, out, 0)  # where out > 0
        grad_bias = grad.sum(0)
        grad_weight = (grad * normal).sum(0)
        # dx = γ/σ (g - s (Σ g + x̂ Σ g x̂)), with s the row's share of the batch
        correction = torch.addcmul(grad_bias, normal, grad_weight)
        grad_x = torch.addcmul(grad, correction, share[:, None], value=-1)
        return grad_x.mul_(weight * inverse), None, grad_weight, grad_bias, None


def weighted_norm_relu(
    x: Tensor, share: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """ReLU of the batch normalisation of rows [P, C] of which row p makes up share[p] of the batch.

    Gives the output [P, C] and the batch's mean and (biased) variance [C].
    """
    return _WeightedNormRelu.apply(x, share, weight, bias, eps)


def _gru_parts(from_input: Tensor, from_memory: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gates r and z side by side [B, 2H], the new memory n [B, H], and h' [B, H]"""
    width = hidden.shape[1]
    gates = (from_input[:, : 2 * width] + from_memory[:, : 2 * width]).sigmoid_()
    new = torch.addcmul(from_input[:, 2 * width :], gates[:, :width], from_memory[:, 2 * width :]).tanh_()
    return gates, new, torch.lerp(new, hidden, gates[:, width:])


class _GruUpdate(Function):
    @staticmethod
    def forward(ctx: Any, from_input: Tensor, from_memory: Tensor, hidden: Tensor) -> Tensor:
        gates, new, out = _gru_parts(from_input, from_memory, hidden)
        ctx.save_for_backward(gates, new, from_memory, hidden)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, new, from_memory, hidden = ctx.saved_tensors
        width = hidden.shape[1]
        reset, update = gates.split(width, 1)
        grad_input = torch.empty_like(from_memory)
        grad_hidden = grad * update
        # through tanh: (1-z) g (1 - n²)
        grad_new = torch.sub(grad, grad_hidden).mul_(1 - new.square())
        grad_input[:, 2 * width :] = grad_new
        torch.mul(grad_new, from_memory[:, 2 * width :], out=grad_input[:, :width])
        torch.mul(grad, hidden - new, out=grad_input[:, width : 2 * width])
        grad_input[:, : 2 * width] *= gates - gates.square()
        grad_memory = grad_input.clone()
        grad_memory[:, 2 * width :] *= reset
        return grad_input, grad_memory, grad_hidden


def gru_update(from_input: Tensor, from_memory: Tensor, hidden: Tensor) -> Tensor:
    """The elementwise part of a GRU: r, z = σ(·), n = tanh(W x + r (U h)), h' = (1-z) n + z h.

    from_input = W x + b and from_memory = U h + c, both [B, 3H] in PyTorch's order r, z, n; hidden [B, H] -> [B, H]
    """
    if not torch.is_grad_enabled():
        return _gru_parts(from_input, from_memory, hidden)[2]
    return _GruUpdate.apply(from_input, from_memory, hidden)


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
