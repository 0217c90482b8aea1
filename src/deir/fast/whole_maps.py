"""The grid encoder with layer normalisation on whole views: jobs of views, each from views to embeddings and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from deir.algorithm.networks import GridEncoder
from deir.compiled import Array
from deir.fast import map_loops as loops
from deir.fast.arrays import arrays_of
from deir.fast.blas import product
from deir.fast.threads import share_out

# mypy: disable-error-code="override"


def embed_maps(encoder: GridEncoder, views: Tensor, kernels: list[Tensor], bounds: list[tuple[int, int]]) -> Tensor:
    """[B, H, W, C] -> [B, features]; kernels: [K, O] of each layer, bounds: where each job begins and ends"""
    layers = [*encoder.convs, encoder.linear]
    norms = [encoder.input_norm, *encoder.norms, encoder.output_norm]
    biases, gains, shifts = [layer.bias for layer in layers], [], []
    for norm in norms:
        assert isinstance(norm, nn.LayerNorm)
        gains.append(_by_position(norm.weight))
        shifts.append(_by_position(norm.bias))
    return _WholeMaps.apply(encoder, bounds, views, *kernels, *biases, *gains, *shifts)


def _by_position(parameter: Tensor) -> Tensor:
    """[C, H, W] -> [H*W, C], or [F] -> [1, F]"""
    return parameter[None] if parameter.dim() == 1 else parameter.flatten(1).T.contiguous()


class _WholeMaps(Function):
    @staticmethod
    def forward(ctx: Any, encoder: GridEncoder, bounds: Any, views: Tensor, *parameters: Tensor) -> Tensor:
        seen, *arrays = arrays_of(views, *parameters)
        kernels, biases, gains, shifts = (tuple(arrays[i:j]) for i, j in ((0, 4), (4, 8), (8, 13), (13, 18)))
        dtype, count = kernels[0].dtype, len(seen)
        products = tuple(np.empty((count, *gain.shape), dtype) for gain in gains[1:])
        inverses, out = np.empty((4, count), dtype), np.empty((count, *gains[-1].shape), dtype)
        norm = encoder.output_norm
        assert isinstance(norm, nn.LayerNorm)
        given = product(parameters[0].dtype), seen, encoder.padding, norm.eps, gains, shifts, kernels
        share_out(lambda job: loops.map_products(*given, biases, *bounds[job], products, inverses, out), len(bounds))
        ctx.given, ctx.bounds, ctx.made = given, bounds, (products, inverses, out)
        ctx.shapes = [[x.shape for x in part] for part in (kernels, biases, gains)]
        return torch.from_numpy(out[:, 0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given, made, ctx.given, ctx.made = ctx.given, ctx.made, None, None
        grads, dtype = grad.detach().numpy()[:, None].copy(), made[2].dtype
        kernels, biases, gains = ctx.shapes
        sums = [[np.zeros((2, *shape), dtype) for shape in gains] for _ in ctx.bounds]
        parts = [[[np.zeros(shape, dtype) for shape in shapes] for shapes in (kernels, biases)] for _ in ctx.bounds]

        def job(number: int) -> None:
            by_kernels, by_biases = map(tuple, parts[number])
            loops.map_gradient(*given, *ctx.bounds[number], *made, grads, by_kernels, by_biases, tuple(sums[number]))

        share_out(job, len(ctx.bounds))
        by_kernels, by_biases = ([sum_of(of) for of in zip(*part, strict=True)] for part in zip(*parts, strict=True))
        both = [sum_of(of) for of in zip(*sums, strict=True)]
        found = [*by_kernels, *by_biases, *(x[1] for x in both), *(x[0] for x in both)]
        return None, None, None, *map(torch.from_numpy, found)


def sum_of(arrays: tuple[Array, ...]) -> Array:
    """In their order."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total
