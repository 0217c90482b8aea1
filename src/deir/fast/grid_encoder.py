"""The grid encoder on the distinct patches of a batch, each evaluated once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from deir.algorithm.networks import GridEncoder
from deir.compiled import Array, compiled
from deir.fast.arrays import arrays_of
from deir.fast.batch_norm import Share, each_row, gathered_norm, trains_by_batch
from deir.fast.patches import GROUP, PatchPlan, Placed

# mypy: disable-error-code="override"


@compiled
def _by_position(weight: Array, order: Array) -> Array:
    """The kernels of positions in this order. [F, C*positions] -> [positions, C, F]"""
    features, positions = weight.shape[0], len(order)
    width = weight.shape[1] // positions
    out = np.empty((positions, width, features), weight.dtype)
    for c in range(width):
        for f in range(features):
            for place in range(positions):
                out[place, c, f] = weight[f, c * positions + order[place]]
    return out


@compiled
def _not_by_position(kernels: Array, order: Array) -> Array:
    """[positions, C, F] in this order -> [F, C*positions]"""
    positions, width, features = kernels.shape
    out = np.empty((features, width * positions), kernels.dtype)
    for c in range(width):
        for f in range(features):
            for place in range(positions):
                out[f, c * positions + order[place]] = kernels[place, c, f]
    return out


@compiled
def _scatter_sum(values: Array, rows: Array, size: int) -> Array:
    """out[rows[i]] += values[i].   values: [I, C], rows: [I] -> [size, C]"""
    out = np.zeros((size, values.shape[1]), values.dtype)
    for i in range(len(rows)):
        target, value = out[rows[i]], values[i]
        for c in range(len(value)):
            target[c] += value[c]
    return out


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


class _PlacedLinear(Function):
    @staticmethod
    def forward(ctx: Any, patches: Tensor, weight: Tensor, placed: Placed) -> Tensor:
        kernels = torch.from_numpy(_by_position(*arrays_of(weight), placed.order))  # [positions, C, F]
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
        by_patches = _scatter_sum(*arrays_of(by_rows), ctx.placed.patches, ctx.size)
        by_weight = _not_by_position(*arrays_of(by_kernels), ctx.placed.order)
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


def shares_patches(encoder: object) -> bool:
    """A layer-normalised patch depends on its whole observation. A class derived from ours may compute anything."""
    return type(encoder) is GridEncoder and not isinstance(encoder.output_norm, nn.LayerNorm)


def embed_patches(encoder: GridEncoder, plan: PatchPlan) -> Tensor:
    """The encoder with every layer evaluated on the batch's distinct patches only. [u, features]

    A 2x2 patch's convolution is the sum of its four corners' products, so each smaller patch is multiplied with
    the four corners of the kernel once, and a larger patch is a sum of four rows; likewise the linear layer.
    """
    dtype = encoder.linear.weight.dtype
    cells = Share(plan.cell_share, plan.cell_total)
    x = _layer(encoder.input_norm, plan.cells.to(dtype), each_row(plan.cells), None, cells, relu=False)  # [C, channels]
    x = torch.cat([x, torch.zeros_like(x[:1])])  # padding
    for conv, norm, layer in zip(encoder.convs, encoder.norms, plan.layers, strict=True):
        assert isinstance(conv, nn.Conv2d)
        kernel = conv.weight.permute(1, 2, 3, 0).flatten(1)  # [in, 4*out]
        products = (x @ kernel).view(-1, conv.out_channels)  # [4*P_below, out]
        x = _layer(norm, products, layer.corners, conv.bias, Share(layer.share, layer.total))  # [P, out]
    products = placed_linear(x, encoder.linear.weight, plan.placed)  # [slots, features]
    share = Share(plan.observation_share, len(plan.inverse))
    return _layer(encoder.output_norm, products, plan.placed_of_observation, encoder.linear.bias, share)


def _layer(norm: nn.Module, table: Tensor, rows: Array, bias: Tensor | None, share: Share, relu: bool = True) -> Tensor:
    """bias + Σ_k table[rows[p, k]], normalised, and a ReLU. [P, C]"""
    if trains_by_batch(norm):
        return gathered_norm(norm, table, rows, bias, share, relu)
    x = gather_sum(table, torch.from_numpy(rows))
    x = x if bias is None else x + bias
    if isinstance(norm, nn.BatchNorm2d):
        x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
    else:
        x = norm(x)
    return F.relu(x) if relu else x
