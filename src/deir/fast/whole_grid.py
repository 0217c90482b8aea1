"""The grid encoder on whole views, where nothing repeats: one hand-written gradient from views to embeddings.

Jobs of views run side by side in compiled code that never needs Python's lock. The sums of batch normalisation are made
of the jobs' own, in their order, so the bits do not depend on how many run at once.

The input's normalisation is folded into the first kernel: with x̃ = (x - μ)/σ and a channel of ones beside it,

    W (γ x̃ + β) = (W γ, W β) (x̃, 1)

so the gradients of W, γ and β all follow from that of the folded kernel, and the convolution's input gradient, which
nothing else would use, is never made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from deir.algorithm.networks import GridEncoder
from deir.compiled import Array
from deir.config import Precision
from deir.fast import whole_loops as loops
from deir.fast.arrays import arrays_of
from deir.fast.convolution import factors_of, kernel_words, multiple, padded_width, turned_words
from deir.fast.micro_kernels import OUTER
from deir.fast.threads import share_out
from deir.fast.whole_maps import embed_maps

# mypy: disable-error-code="override"

JOBS = 8  # that a batch is divided into, whatever the number of threads
SMALLEST = 32  # views of a job


class Moments(NamedTuple):
    """What a layer's outputs are normalised by."""

    mean: Array  # [C]
    inverse: Array  # [C] 1/σ
    coupled: bool  # they are the batch's own, so its gradient flows through them


class Layer(NamedTuple):
    kernel: Array  # [K, O] with columns of 0 that fill registers
    bias: Array  # [O] of the convolution
    gain: Array  # [O] of the normalisation, likewise below
    shift: Array  # [O]
    side: tuple[int, int]  # height and width of the output; 0, 0: a linear layer


def runs_whole(encoder: nn.Module) -> bool:
    """Whether `embed_views` takes this encoder."""
    if type(encoder) is not GridEncoder:
        return False
    weight = encoder.linear.weight
    return weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)


def embed_views(encoder: GridEncoder, views: Tensor, precision: Precision = "fp32") -> Tensor:
    """[B, H, W, C] -> [B, features]; precision: of the products' factors"""
    weights = kernels_of(encoder)
    if isinstance(encoder.output_norm, nn.LayerNorm):
        return embed_maps(encoder, views, weights, _bounds(len(views)), precision)
    layers = [*encoder.convs, encoder.linear]
    norms = [encoder.input_norm, *encoder.norms, encoder.output_norm]
    pairs = [_gain_and_shift(norm, width) for norm, width in zip(norms, _widths(encoder), strict=True)]
    biases = [layer.bias for layer in layers]
    return _WholeGrid.apply(
        encoder, precision, norms, views, *weights, *biases, *(pair[0] for pair in pairs), *(pair[1] for pair in pairs)
    )


def kernels_of(encoder: GridEncoder) -> list[Tensor]:
    """[K, O] of each layer"""
    linear = encoder.linear.weight.view(encoder.features, encoder.CHANNELS[-1], -1).permute(2, 1, 0)  # [P, C, F]
    return [*(_by_corner(conv.weight) for conv in encoder.convs), linear.reshape(-1, encoder.features)]


def _by_corner(weight: Any) -> Tensor:
    """[O, C, 2, 2] -> [4*C, O], corner by corner"""
    return weight.permute(2, 3, 1, 0).reshape(-1, weight.shape[0])


def _widths(encoder: GridEncoder) -> list[int]:
    return [encoder.shape[2], *encoder.CHANNELS, encoder.features]


def _gain_and_shift(norm: nn.Module, width: int) -> tuple[Tensor, Tensor]:
    if isinstance(norm, nn.Identity):
        return torch.ones(width), torch.zeros(width)
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d))
    return norm.weight, norm.bias


def _fold(kernel: Array, gain: Array, shift: Array) -> Array:
    """[4*C, O] -> [4*D, O] of cells with D channels: C, one of ones, and as many of 0 as a product needs"""
    by_corner, channels = kernel.reshape(4, len(gain), -1), len(gain)
    folded = np.zeros((4, multiple(channels + 1, OUTER), kernel.shape[1]), kernel.dtype)
    folded[:, :channels] = by_corner * gain[:, None]
    folded[:, channels] = (by_corner * shift[:, None]).sum(1)
    return folded.reshape(-1, kernel.shape[1])


def _unfold(grad: Array, kernel: Array, gain: Array, shift: Array) -> tuple[Array, Array, Array]:
    """The gradients of kernel, gain and shift from that of the folded kernel [4*D, O]."""
    channels = len(gain)
    by_corner, folded = kernel.reshape(4, channels, -1), grad.reshape(4, len(grad) // 4, -1)
    cells, ones = folded[:, :channels], folded[:, channels : channels + 1]
    by_kernel = cells * gain[:, None] + ones * shift[:, None]
    return by_kernel.reshape(kernel.shape), (by_corner * cells).sum((0, 2)), (by_corner * ones).sum((0, 2))


def with_columns(kernel: Array, count: int) -> Array:
    """Columns of 0 beside a kernel, so that there are so many."""
    return np.pad(kernel, ((0, 0), (0, count - kernel.shape[1])))


def _bounds(count: int) -> list[tuple[int, int]]:
    """Where each job begins and ends; of the number of views alone."""
    jobs = max(1, min(JOBS, count // SMALLEST))
    ends = [count * job // jobs for job in range(jobs + 1)]
    return list(zip(ends[:-1], ends[1:], strict=True))


def _moments(norm: nn.Module, sums: Array | None, bias: Array, dtype: Any) -> Moments:
    """Of a layer whose products, without its bias, have these sums [3, C]. While training they are tracked."""
    offset = bias.astype(np.float64)
    if isinstance(norm, nn.Identity):
        return Moments((-offset).astype(dtype), np.ones_like(bias), False)
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.momentum is not None
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    mean, variance = (x.numpy() for x in (norm.running_mean, norm.running_var))
    if not norm.training:
        inverse = 1 / np.sqrt(variance.astype(np.float64) + norm.eps)
        return Moments((mean - offset).astype(dtype), inverse.astype(dtype), False)
    assert sums is not None
    (count, average, squares), keep = sums, 1 - norm.momentum
    norm.num_batches_tracked += 1
    mean[:] = keep * mean + norm.momentum * (average + offset)
    variance[:] = keep * variance + norm.momentum * squares / (count - 1)
    inverse = 1 / np.sqrt(squares / count + norm.eps)
    return Moments(average.astype(dtype), inverse.astype(dtype), True)


class _Pass:
    """One batch from views to embeddings and back."""

    def __init__(
        self, views: Array, padding: int, layers: list[Layer], gain: Array, shift: Array, precision: Precision
    ) -> None:
        """gain, shift: of the input's normalisation [C]"""
        self.views, self.padding, self.layers = views, padding, layers
        self.input = gain, shift
        self.dtype = layers[0].kernel.dtype
        self.like = factors_of(precision, self.dtype)
        self.bounds = _bounds(len(views))

    def forward(self, norms: list[nn.Module]) -> Array:
        """norms: of the input and of each layer -> embeddings [B, F]"""
        sums = loops.channel_moments(self.views) if norms[0].training else None
        no_bias = np.zeros(self.views.shape[3], self.dtype)
        self.of_input = _moments(norms[0], sums, no_bias, self.dtype)
        self.products: list[Array] = []  # of each layer [B, P, O]
        self.norms: list[Array] = []  # of each layer [4, O] μ, 1/σ, γ, β
        self.coupled: list[bool] = []
        for layer, norm in zip(self.layers, norms[1:], strict=True):
            sums = self._products(layer)
            mean, inverse, coupled = _moments(norm, sums, layer.bias, self.dtype)
            self.norms.append(np.stack([mean, inverse, layer.gain, layer.shift]))
            self.coupled.append(coupled)
        out = np.empty_like(self.products[-1])
        loops.activate(self.products[-1], self.norms[-1], out)
        return out[:, 0]

    def _products(self, layer: Layer) -> Array:
        """Those of the next layer; gives their sums [3, O]."""
        height, width = layer.side
        out = np.empty((len(self.views), max(1, height * width), len(layer.bias)), self.dtype)
        sums = np.zeros((len(self.bounds), 3, len(layer.bias)))
        job = self._first_job(layer, out, sums) if not self.products else self._next_job(layer, out, sums)
        share_out(job, len(self.bounds))
        self.products.append(out)
        return loops.joined(sums)

    def _first_job(self, layer: Layer, out: Array, sums: Array) -> Callable[[int], None]:
        kernel, (mean, inverse, _) = _fold(layer.kernel, *self.input), self.of_input
        words = kernel_words(kernel, self.like)
        given = self.like, self.views, self.padding, mean, inverse, words, len(kernel) // 4, layer.side
        return lambda number: loops.first_products(*given, *self.bounds[number], out, sums[number])

    def _next_job(self, layer: Layer, out: Array, sums: Array) -> Callable[[int], None]:
        words, columns = kernel_words(layer.kernel, self.like), layer.kernel.shape[1]
        given = self.like, self.products[-1], self.norms[-1], words, columns, layer.side
        return lambda number: loops.next_products(*given, *self.bounds[number], out, sums[number])

    def backward(self, grad: Array) -> tuple[list[Array], ...]:
        """grad: [B, F] -> the gradients of kernels, biases, gains and shifts, those of the input's first."""
        grads = grad[:, None].copy()  # [B, 1, F]
        sums = np.zeros((2, grad.shape[1]), self.dtype)
        loops.through_relu(grads, self.products[-1], self.norms[-1], sums)
        kernels, biases, gains, shifts = [], [], [], []
        for index in reversed(range(len(self.layers))):
            layer, products, (_, inverse, gain, _) = self.layers[index], self.products[index], self.norms[index]
            gains.append(sums[1])
            shifts.append(sums[0])
            rows = products.shape[0] * products.shape[1]
            means = sums / sums.dtype.type(rows) if self.coupled[index] else np.zeros_like(sums)
            # a bias moves only the batch's mean, which is subtracted
            biases.append(np.zeros_like(layer.bias) if self.coupled[index] else sums[0] * gain * inverse)
            if index:
                grads, by_kernel, sums = self._gradient(index, grads, means)
                kernels.append(by_kernel)
        by_first, by_gain, by_shift = _unfold(self._kernel_gradient(grads, means), self.layers[0].kernel, *self.input)
        kernels, gains, shifts = [*kernels, by_first], [*gains, by_gain], [*shifts, by_shift]
        return kernels[::-1], biases[::-1], gains[::-1], shifts[::-1]

    def _gradient(self, index: int, grads: Array, means: Array) -> tuple[Array, Array, Array]:
        """From the gradient of a layer's normalised products to that of the layer's below: that, the kernel's, sums."""
        layer, below = self.layers[index], self.products[index - 1]
        by_kernels = np.zeros((len(self.bounds), *layer.kernel.shape), self.dtype)
        sums = np.zeros((len(self.bounds), 2, below.shape[2]), self.dtype)
        by_below, turned = np.empty_like(below), turned_words(layer.kernel, below.shape[2], self.like)
        given = (
            self.like, grads, self.products[index], self.norms[index], means, below, self.norms[index - 1], turned,
            layer.side,
        )  # fmt: skip

        def job(number: int) -> None:
            loops.next_gradient(*given, *self.bounds[number], by_below, by_kernels[number], sums[number])

        share_out(job, len(self.bounds))
        return by_below, by_kernels.sum(0)[:, : len(layer.bias)], sums.sum(0)

    def _kernel_gradient(self, grads: Array, means: Array) -> Array:
        """Of the first layer's folded kernel. [4*D, O]"""
        layer, (mean, inverse, _) = self.layers[0], self.of_input
        folded = _fold(layer.kernel, *self.input)
        by_kernels = np.zeros((len(self.bounds), *folded.shape), self.dtype)
        given = (
            self.like, grads, self.products[0], self.norms[0], means, self.views, self.padding, mean, inverse,
            len(folded) // 4, layer.side,
        )  # fmt: skip

        def job(number: int) -> None:
            loops.first_gradient(*given, *self.bounds[number], by_kernels[number])

        share_out(job, len(self.bounds))
        return by_kernels.sum(0)


class _WholeGrid(Function):
    @staticmethod
    def forward(
        ctx: Any, encoder: GridEncoder, precision: Precision, norms: list[nn.Module], views: Tensor, *parameters: Tensor
    ) -> Tensor:
        seen, *arrays = arrays_of(views, *parameters)
        kernels, biases, gains, shifts = arrays[:4], arrays[4:8], arrays[8:13], arrays[13:]
        height, width = (side + 2 * encoder.padding for side in encoder.shape[:2])
        sides = [*((height - size, width - size) for size in (1, 2, 3)), (0, 0)]
        kernels = [with_columns(kernel, padded_width(kernel.shape[1], kernel.dtype)) for kernel in kernels]
        layers = [Layer(*of) for of in zip(kernels, biases, gains[1:], shifts[1:], sides, strict=True)]
        ctx.over = _Pass(seen, encoder.padding, layers, gains[0], shifts[0], precision)
        return torch.from_numpy(ctx.over.forward(norms))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        over, ctx.over = ctx.over, None
        grads = over.backward(*arrays_of(grad))
        return None, None, None, None, *(torch.from_numpy(x) for part in grads for x in part)
