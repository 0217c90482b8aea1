"""The grid encoder with layer normalisation on whole views: jobs of views, each from views to embeddings and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from deir.algorithm.networks import GridEncoder
from deir.compiled import Array
from deir.config import Precision
from deir.fast import map_loops as loops
from deir.fast.arrays import arrays_of
from deir.fast.convolution import factors_of, kernel_words, multiple, padded_width, turned_words
from deir.fast.micro_kernels import OUTER
from deir.fast.threads import share_out

# mypy: disable-error-code="override"


FEW = 16  # views of a job where parameters are frozen


def embed_maps(
    encoder: GridEncoder, views: Tensor, kernels: list[Tensor], bounds: list[tuple[int, int]], precision: Precision
) -> Tensor:
    """[B, H, W, C] -> [B, features]; kernels: [K, O] of each layer, bounds: where each job begins and ends"""
    return _WholeMaps.apply(encoder, precision, bounds, views, *_parameters(encoder, kernels))


def _parameters(encoder: GridEncoder, kernels: list[Tensor]) -> list[Tensor]:
    """Kernels and biases of the layers, then gains and shifts of the input and of each layer."""
    gains, shifts = [], []
    for norm in (encoder.input_norm, *encoder.norms, encoder.output_norm):
        assert isinstance(norm, nn.LayerNorm)
        gains.append(_by_position(norm.weight))
        shifts.append(_by_position(norm.bias))
    biases: Any = [layer.bias for layer in (*encoder.convs, encoder.linear)]
    return [*kernels, *biases, *gains, *shifts]


class _Laid(NamedTuple):
    """Parameters as `map_products` takes them."""

    like: Array  # of no length, of the type of the products' factors
    padding: int
    eps: float
    gains: tuple[Array, ...]
    shifts: tuple[Array, ...]
    kernels: tuple[Array, ...]
    biases: tuple[Array, ...]
    words: tuple[Array, ...]

    def given(self, views: Array) -> tuple[Any, ...]:
        return self.like, views, *self[1:]


def _laid_out(encoder: GridEncoder, parameters: tuple[Array, ...], precision: Precision) -> _Laid:
    """parameters: as `_parameters` gives them"""
    kernels, biases, gains, shifts = (parameters[i:j] for i, j in ((0, 4), (4, 8), (8, 13), (13, 18)))
    dtype, width = kernels[0].dtype, kernels[3].shape[1]
    first = _with_channels(kernels[0], multiple(encoder.shape[2], OUTER))
    last = np.pad(kernels[3], ((0, 0), (0, padded_width(width, dtype) - width)))
    kernels, like, norm = (first, *kernels[1:3], last), factors_of(precision, dtype), encoder.output_norm
    assert isinstance(norm, nn.LayerNorm)
    words = tuple(kernel_words(kernel, like) for kernel in kernels)
    return _Laid(like, encoder.padding, norm.eps, gains, shifts, kernels, biases, words)


def _rooms(laid: _Laid, count: int) -> tuple[Array, ...]:
    """For what `map_products` leaves of so many views: of the upper two layers, and embeddings [B, 1, F]."""
    made = tuple(np.empty((count, *gain.shape), gain.dtype) for gain in laid.gains[3:])
    return *made, np.empty((2, count), made[0].dtype), np.empty_like(made[1])


class FrozenMapEncoder:
    """The encoder while its parameters are frozen: laid out once for many calls of few views each."""

    def __init__(self, encoder: GridEncoder, kernels: list[Tensor], precision: Precision) -> None:
        """kernels: as `embed_maps` takes them"""
        self.laid = _laid_out(encoder, arrays_of(*_parameters(encoder, kernels)), precision)

    def __call__(self, views: Array) -> Tensor:
        """[B, H, W, C] -> [B, features]"""
        count, views = len(views), np.ascontiguousarray(views)
        jobs, rooms = -(-count // FEW), _rooms(self.laid, count)

        def embed(job: int) -> None:
            part = count * job // jobs, count * (job + 1) // jobs
            loops.map_products(*self.laid.given(views), *part, *rooms)

        share_out(embed, jobs)
        return torch.from_numpy(rooms[-1][:, 0])


def _by_position(parameter: Tensor) -> Tensor:
    """[C, H, W] -> [H*W, C], or [F] -> [1, F]"""
    return parameter[None] if parameter.dim() == 1 else parameter.flatten(1).T.contiguous()


def _with_channels(kernel: Array, channels: int) -> Array:
    """Rows of 0 after those of each corner, so that there are so many. [4*C, O] -> [4*channels, O]"""
    by_corner = kernel.reshape(4, len(kernel) // 4, -1)
    return np.pad(by_corner, ((0, 0), (0, channels - by_corner.shape[1]), (0, 0))).reshape(-1, kernel.shape[1])


class _WholeMaps(Function):
    @staticmethod
    def forward(
        ctx: Any, encoder: GridEncoder, precision: Precision, bounds: Any, views: Tensor, *parameters: Tensor
    ) -> Tensor:
        seen, *arrays = arrays_of(views, *parameters)
        ctx.kernels, laid = tuple(arrays[:4]), _laid_out(encoder, tuple(arrays), precision)
        *made, inverses, out = _rooms(laid, len(seen))
        given = laid.given(seen)
        share_out(lambda job: loops.map_products(*given, *bounds[job], *made, inverses, out), len(bounds))
        ctx.given, ctx.bounds, ctx.made = given, bounds, (*made, inverses)
        return torch.from_numpy(out[:, 0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given, made, ctx.given, ctx.made = ctx.given, ctx.made, None, None
        like, seen, _, _, gains, _, kernels, biases, _ = given
        grads, dtype, channels = grad.detach().numpy()[:, None].copy(), kernels[0].dtype, seen.shape[3]
        sums = [[np.zeros((2, *gain.shape), dtype) for gain in gains] for _ in ctx.bounds]
        parts = [[[np.zeros_like(x) for x in arrays] for arrays in (kernels, biases)] for _ in ctx.bounds]
        cells = _with_channels(ctx.kernels[0], padded_width(channels, dtype))
        turned = tuple(
            turned_words(kernel, size, like)
            for kernel, size in zip(
                (cells, *kernels[1:]), (len(cells) // 4, *(gain.shape[1] for gain in gains[1:4])), strict=True
            )
        )

        def job(number: int) -> None:
            by_kernels, by_biases = map(tuple, parts[number])
            given_back = *given, turned, *ctx.bounds[number], *made, grads
            loops.map_gradient(*given_back, by_kernels, by_biases, tuple(sums[number]))

        share_out(job, len(ctx.bounds))
        by_kernels, by_biases = ([sum_of(of) for of in zip(*part, strict=True)] for part in zip(*parts, strict=True))
        by_kernels[0] = by_kernels[0].reshape(4, len(kernels[0]) // 4, -1)[:, :channels].reshape(ctx.kernels[0].shape)
        by_kernels[3] = by_kernels[3][:, : ctx.kernels[3].shape[1]]
        both = [sum_of(of) for of in zip(*sums, strict=True)]
        found = [*by_kernels, *by_biases, *(x[1] for x in both), *(x[0] for x in both)]
        return None, None, None, None, *map(torch.from_numpy, found)


def sum_of(arrays: tuple[Array, ...]) -> Array:
    """In their order."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total
