"""The grid encoder on whole views, where nothing repeats: one hand-written gradient from views to embeddings.

Jobs of views run side by side in compiled code that never needs Python's lock. The sums of batch normalisation are made
of the jobs' own, in their order, so the bits do not depend on how many run at once.

The input's normalisation is folded into the first kernel: with x̃ = (x - μ)/σ and a channel of ones beside it,

    W (γ x̃ + β) = (W γ, W β) (x̃, 1)

so the gradients of W, γ and β all follow from that of the folded kernel, and the convolution's input gradient, which
nothing else would use, is never made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from deir.algorithm.networks import GridEncoder
from deir.compiled import Array
from deir.config import Precision
from deir.fast import whole_loops as loops
from deir.fast import whole_passes as passes
from deir.fast.arrays import arrays_of
from deir.fast.convolution import factors_of, kernel_words, multiple, padded_width, turned_words
from deir.fast.micro_kernels import OUTER
from deir.fast.whole_maps import embed_maps

# mypy: disable-error-code="override"

JOBS = 8  # that a batch is divided into, whatever the number of threads
SMALLEST = 32  # views of a job


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
    more = count - kernel.shape[1]
    return np.pad(kernel, ((0, 0), (0, more))) if more else kernel


def _bounds(count: int) -> list[tuple[int, int]]:
    """Where each job begins and ends; of the number of views alone."""
    jobs = max(1, min(JOBS, count // SMALLEST))
    ends = [count * job // jobs for job in range(jobs + 1)]
    return list(zip(ends[:-1], ends[1:], strict=True))


def _known(norm: nn.Module, bias: Array) -> tuple[Array, Array]:
    """μ and 1/σ of a layer's products, which are without its bias; zeros where the batch's own count."""
    if isinstance(norm, nn.Identity):
        return -bias, np.ones_like(bias)
    if norm.training:
        return np.zeros_like(bias), np.zeros_like(bias)
    mean, variance, _, eps = _running(norm, bias)
    return mean - bias, (1 / np.sqrt(variance.astype(np.float64) + eps)).astype(bias.dtype)


def _running(norm: nn.Module, like: Array) -> tuple[Array, Array, float, float]:
    """Mean and variance over batches, how much of them a batch replaces, and ε."""
    if isinstance(norm, nn.Identity):
        return like, like, 0.0, 0.0
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.momentum is not None
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean.numpy(), norm.running_var.numpy(), norm.momentum, norm.eps


def _couples(norm: nn.Module) -> bool:
    """Whether it is by the batch's own moments, so that gradients flow through them."""
    return norm.training and not isinstance(norm, nn.Identity)


def _count_batch(norm: nn.Module) -> None:
    if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.training:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)  # += would have the module look at what it is given


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
        self.bounds = np.array([0, *(end for _, end in _bounds(len(views)))])

    def forward(self, norms: list[nn.Module]) -> Array:
        """norms: of the input and of each layer -> embeddings [B, F]"""
        nothing = np.zeros(self.views.shape[3], self.dtype)
        of_input = np.stack([*_known(norms[0], nothing), nothing, nothing])
        if _couples(norms[0]):
            passes.settle(loops.channel_moments(self.views), nothing, *_running(norms[0], nothing), of_input)
        for norm in norms:
            _count_batch(norm)
        layers, norms = self.layers, norms[1:]
        kernels = [_fold(layers[0].kernel, *self.input), *(layer.kernel for layer in layers[1:])]
        sides = np.array([layer.side for layer in layers])
        self.given = passes.Input(
            self.like, self.views, self.padding, of_input[0], of_input[1], len(kernels[0]) // 4, sides, self.bounds
        )
        self.coupled = np.array([_couples(norm) for norm in norms])
        each = list(zip(norms, layers, strict=True))
        self.through = passes.Layers(
            tuple(
                np.empty((len(self.views), max(1, layer.side[0] * layer.side[1]), len(layer.bias)), self.dtype)
                for layer in layers
            ),
            tuple(np.stack([*_known(norm, layer.bias), layer.gain, layer.shift]) for norm, layer in each),
        )
        running = [_running(norm, layer.bias) for norm, layer in each]
        out = np.empty_like(self.through.products[-1])
        made = passes.Forward(
            tuple(kernel_words(kernel, self.like) for kernel in kernels),
            np.array([kernel.shape[1] for kernel in kernels]),
            tuple(np.zeros((len(self.bounds) - 1, 3, len(layer.bias))) for layer in layers),
            tuple(layer.bias for layer in layers),
            tuple(one[0] for one in running),
            tuple(one[1] for one in running),
            np.array([one[2:] for one in running]),
            self.coupled,
            out,
        )
        passes.run(passes.forward, self.given, self.through, made)
        return out[:, 0]

    def backward(self, grad: Array) -> tuple[list[Array], ...]:
        """grad: [B, F] -> the gradients of kernels, biases, gains and shifts, those of the input's first."""
        products, jobs = self.through.products, len(self.bounds) - 1
        sizes = [(4 * self.given.channels, self.layers[0].kernel.shape[1])]
        sizes += [layer.kernel.shape for layer in self.layers[1:]]
        widths = [len(layer.bias) for layer in self.layers]
        pairs = zip(self.layers[1:], widths, strict=False)
        made = passes.Backward(
            self.coupled,
            tuple(turned_words(layer.kernel, below, self.like) for layer, below in pairs),
            (*map(np.empty_like, products[:-1]), grad[:, None].copy()),
            tuple(np.empty((jobs, 2, width), self.dtype) for width in widths),
            tuple(np.zeros((2, width), self.dtype) for width in widths),
            tuple(np.empty((2, width), self.dtype) for width in widths),
            tuple(np.empty((jobs, *size), self.dtype) for size in sizes),
            tuple(np.empty(size, self.dtype) for size in sizes),
        )
        passes.run(passes.backward, self.given, self.through, made)
        by_first, by_gain, by_shift = _unfold(made.kernels[0], self.layers[0].kernel, *self.input)
        later = [by[:, :width] for by, width in zip(made.kernels[1:], widths[1:], strict=True)]
        # a bias moves only the batch's mean, which is subtracted
        biases = [
            np.zeros_like(layer.bias) if coupled else sums[0] * layer.gain * norm[1]
            for layer, coupled, sums, norm in zip(self.layers, self.coupled, made.sums, self.through.norms, strict=True)
        ]
        gains, shifts = ([sums[k] for sums in made.sums] for k in (1, 0))
        return [by_first, *later], biases, [by_gain, *gains], [by_shift, *shifts]


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
