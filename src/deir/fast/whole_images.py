"""The encoders of images with hand-written gradients: IMPALA's and the DQN network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from deir.algorithm.networks import ConvEncoder, Encoder, ImpalaEncoder
from deir.compiled import Array
from deir.config import Precision
from deir.fast import image_loops as loops
from deir.fast import pool_loops as pooling
from deir.fast.arrays import arrays_of
from deir.fast.blas import product
from deir.fast.image_convolution import by_place, in_blocks
from deir.fast.image_pass import Gradients, ImagePass, Layer, filled

# mypy: disable-error-code="override"


def runs_on_images(encoder: nn.Module) -> bool:
    """Whether `embed_images` takes this encoder: on a CPU, with layer normalisation or none."""
    if type(encoder) not in PASSES:
        return False
    batch, first = any(isinstance(module, nn.BatchNorm2d) for module in encoder.modules()), next(encoder.parameters())
    return not batch and first.device.type == "cpu" and product(first.dtype) is not None


class LaidOut(NamedTuple):
    """An encoder's parameters as its pass takes them."""

    kind: type[ImpalaPass | DqnPass]
    eps: float
    parameters: list[Tensor]

    def embed(self, images: Tensor, precision: Precision) -> Tensor:
        """Without a gradient. [B, H, W, C] -> [B, features]"""
        parameters = [parameter.detach() for parameter in self.parameters]
        return self.kind(images, self.eps, precision, parameters, keep=False).forward()


def embed_images(encoder: Encoder, images: Tensor, precision: Precision = "fp32") -> Tensor:
    """[B, H, W, C] -> [B, features]; precision: of the factors of convolutions"""
    laid = laid_out(encoder)
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in laid.parameters):
        return _WholeImages.apply(laid.kind, images, laid.eps, precision, *laid.parameters)
    return laid.embed(images, precision)


def laid_out(encoder: Encoder) -> LaidOut:
    assert isinstance(encoder, (ConvEncoder, ImpalaEncoder))
    kind = PASSES[type(encoder)]
    convs = [module for module in encoder.body.modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in encoder.body.modules() if isinstance(module, (nn.LayerNorm, nn.Identity))]
    linear, norm, _ = encoder.tail
    assert isinstance(linear, nn.Linear)
    eps = norm.eps if isinstance(norm, nn.LayerNorm) else -1.0
    parameters = [*kind.of_input(norms[0])]
    for index, (conv, after) in enumerate(zip(convs, norms[1:], strict=True)):
        assert conv.bias is not None
        parameters += [kind.kernel_of(conv, index), conv.bias, *_gain_and_shift(after)]
    channels = convs[-1].out_channels
    weight = linear.weight.view(len(linear.weight), channels, -1).transpose(1, 2).flatten(1)
    return LaidOut(kind, eps, [*parameters, weight, linear.bias, *_gain_and_shift(norm)])


def _gain_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """[C, H, W] -> [H*W*C], or [F] as it is; without normalisation none of either"""
    if not isinstance(norm, nn.LayerNorm):
        return torch.ones(0), torch.zeros(0)
    gain, shift = (x.permute(1, 2, 0).flatten() if x.dim() == 3 else x for x in (norm.weight, norm.bias))
    return gain, shift


class _WholeImages(Function):
    @staticmethod
    def forward(
        ctx: Any, kind: type[ImpalaPass | DqnPass], images: Tensor, eps: float, precision: Precision, *given: Tensor
    ) -> Tensor:
        ctx.over, ctx.shapes = kind(images, eps, precision, given, keep=True), [x.shape for x in given]
        return ctx.over.forward()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        over, ctx.over = ctx.over, None
        found = over.backward(grad.contiguous())
        return (
            None,
            None,
            None,
            None,
            *(x if x.shape == shape else None for x, shape in zip(found, ctx.shapes, strict=True)),
        )


def _layer(given: Sequence[Tensor], sides: tuple[int, int, int], padding: int, size: int, kept: bool) -> Layer:
    """Of kernel, bias, gain and shift."""
    kernel, bias = arrays_of(*given[:2])
    height, width = (side + 2 * padding - size + 1 for side in sides[:2])
    gain, shift = filled(given[2:], height * width * len(bias), given[1].dtype)
    return Layer(kernel, bias, gain, shift, padding, size, sides, kept)


SIZE = 3  # of IMPALA's kernels


class ImpalaPass(ImagePass):
    """Three stages: a convolution, pooling, and two residual blocks of two convolutions each."""

    piece = 8

    def __init__(self, images: Tensor, eps: float, precision: Precision, given: Sequence[Tensor], keep: bool) -> None:
        height, width, channels = images.shape[1:]
        sides, layers = (height, width, channels), []
        for stage in range(len(given) // 20):
            begin = 2 + 20 * stage
            # the first and largest maps are made again: that takes no longer than to write and read them
            layers.append(_layer(given[begin : begin + 4], sides, 1, SIZE, kept=keep and stage > 0))
            sides = (sides[0] + 1) // 2, (sides[1] + 1) // 2, len(given[begin + 1])
            layers += [_layer(given[i : i + 4], sides, 1, SIZE, keep) for i in range(begin + 4, begin + 20, 4)]
        planar = filled(given[:2], height * width * channels, given[3].dtype)
        first = [np.ascontiguousarray(x.reshape(channels, -1).T).reshape(-1) for x in planar]
        super().__init__(images, eps, precision, layers, first, list(given[-4:]), keep)
        self.stages = range(0, len(layers), 5)
        count = len(images) if keep else 0
        self.pooled = [self.room(count, len(self.layers[index + 1].gain)) for index in self.stages]
        self.places = [np.empty(pooled.shape, np.uint8) for pooled in self.pooled]

    @staticmethod
    def of_input(norm: nn.Module) -> tuple[Tensor, Tensor]:
        """In their own order: [C*H*W]"""
        if not isinstance(norm, nn.LayerNorm):
            return torch.ones(0), torch.zeros(0)
        return norm.weight.flatten(), norm.bias.flatten()

    @staticmethod
    def kernel_of(conv: nn.Conv2d, index: int) -> Tensor:
        return by_place(conv.weight)

    def body(self, lo: int, hi: int) -> Array:
        x = self.scaled_input(self.standard_input(lo, hi, 1, again=False))
        for stage, index in enumerate(self.stages):
            norm = self.norm(index, self.convolve(index, x), lo, hi)
            x, places = self._room_for_pooled(stage, lo, hi)
            pooling.normalise_and_pool(*norm, self._pool_sides(index), x, places)
            for first in (index + 1, index + 3):
                active = np.empty_like(x)
                loops.relu(x, active)
                active = self.embed_layer(first, active, lo, hi)
                norm = self.norm(first + 1, self.convolve(first + 1, active), lo, hi)
                before, x = x, np.empty_like(x)
                loops.normalise_and_add(*norm, before, x)
        loops.relu(x, x)
        return x

    def _room_for_pooled(self, stage: int, lo: int, hi: int) -> tuple[Array, Array]:
        if self.keep:
            return self.pooled[stage][lo:hi], self.places[stage][lo:hi]
        shape = hi - lo, self.pooled[stage].shape[1]
        return np.empty(shape, self.dtype), np.empty(shape, np.uint8)

    def _pool_sides(self, index: int) -> tuple[int, int, int]:
        layer = self.layers[index]
        return layer.sides[0], layer.sides[1], len(layer.bias)

    def _added(self, index: int, normal: Array, x: Array) -> Array:
        out = np.empty_like(x)
        loops.add_scaled(normal, self.layers[index].gain, self.layers[index].shift, x, out)
        return out

    def body_gradient(self, lo: int, hi: int, grad: Array, grads: Gradients) -> None:
        carried = []  # before the blocks, between them and after them
        for stage, index in enumerate(self.stages):
            before = self.pooled[stage][lo:hi]
            between = self._added(index + 2, self.normals[index + 2][lo:hi], before)
            carried.append((before, between, self._added(index + 4, self.normals[index + 4][lo:hi], between)))
        loops.stop(grad, carried[-1][2])
        for stage, index in reversed(list(enumerate(self.stages))):
            before, between, _ = carried[stage]
            self._block_gradient(index + 3, between, lo, hi, grad, grads)
            self._block_gradient(index + 1, before, lo, hi, grad, grads)
            wide = np.empty((hi - lo, len(self.layers[index].gain)), self.dtype)
            pooling.out_of_pool(grad, self.places[stage][lo:hi], self._pool_sides(index), wide)
            if stage == 0:
                self._first_gradient(wide, lo, hi, grads)
            else:
                self.through_norm(index, wide, self.normals[index][lo:hi], False, lo, hi, grads)
                grad = self.convolve_back(index, wide, carried[stage - 1][2], grads)

    def _block_gradient(self, index: int, x: Array, lo: int, hi: int, grad: Array, grads: Gradients) -> None:
        """grad: of the block's output, becomes that of its input x"""
        normals = self.normals[index][lo:hi], self.normals[index + 1][lo:hi]
        by_products = grad.copy()
        self.through_norm(index + 1, by_products, normals[1], False, lo, hi, grads)
        by_active = self.convolve_back(index + 1, by_products, self.activate(index, normals[0]), grads)
        self.through_norm(index, by_active, normals[0], True, lo, hi, grads)
        active = np.empty_like(x)
        loops.relu(x, active)
        by_x = self.convolve_back(index, by_active, active, grads)
        loops.add_stopped(by_x, x, grad)

    def _first_gradient(self, grad: Array, lo: int, hi: int, grads: Gradients) -> None:
        """Of the first convolution and the input's normalisation.

        The input has few channels, for which PyTorch's own gradient would be several times as slow.
        """
        count, (height, width, channels) = hi - lo, self.sides
        standard = self.standard_input(lo, hi, 1, again=True)
        x = self.scaled_input(standard)
        normal = self.convolve(0, x)
        loops.standardise(normal, self.moments[0][:, lo:hi], normal)
        self.through_norm(0, grad, normal, False, lo, hi, grads)
        self.convolve_back(0, grad, x, grads, through=False)
        places = self.layers[0].kernel.reshape(SIZE**2, -1, grad.shape[1] // (height * width))[:, :channels]
        kernel = np.ascontiguousarray(places).reshape(SIZE**2 * channels, -1)
        by_input = np.empty((count, channels, height, width), self.dtype)
        by_cells = grad.reshape(count, height * width, -1)
        loops.input_gradient(product(self.weight.dtype), by_cells, kernel, self.sides, by_input)
        planar = np.ascontiguousarray(standard.reshape(count, -1, channels).transpose(0, 2, 1))
        loops.join_sums(by_input.reshape(count, -1), planar.reshape(count, -1), grads.input)


class DqnPass(ImagePass):
    """Three convolutions, each with normalisation and ReLU.

    The first, 8x8 with a stride of 4, runs as one of 2x2 on blocks of 4x4 cells, the second as one on blocks of 2x2.
    """

    piece = 16
    BLOCKS = tuple(stride for _, _, stride in ConvEncoder.LAYERS)

    def __init__(self, images: Tensor, eps: float, precision: Precision, given: Sequence[Tensor], keep: bool) -> None:
        sides, layers = (images.shape[1], images.shape[2], images.shape[3]), []
        for index, (out, size, block) in enumerate(ConvEncoder.LAYERS):
            in_blocks = sides[0] // block, sides[1] // block, sides[2] * block**2
            layers.append(_layer(given[2 + 4 * index : 6 + 4 * index], in_blocks, 0, size // block, keep))
            sides = in_blocks[0] - size // block + 1, in_blocks[1] - size // block + 1, out
        first = filled(given[:2], layers[0].sides[0] * layers[0].sides[1] * layers[0].sides[2], given[3].dtype)
        super().__init__(images, eps, precision, layers, list(first), list(given[-4:]), keep)

    @classmethod
    def of_input(cls, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """By blocks, in the order of `standard_blocks`."""
        if not isinstance(norm, nn.LayerNorm):
            return torch.ones(0), torch.zeros(0)
        block = cls.BLOCKS[0]
        height, width = (side // block for side in norm.weight.shape[1:])

        def blocks(x: Tensor) -> Tensor:
            cropped = x[:, : height * block, : width * block].reshape(-1, height, block, width, block)
            return cropped.permute(1, 3, 2, 4, 0).flatten()

        return blocks(norm.weight), blocks(norm.bias)

    @classmethod
    def kernel_of(cls, conv: nn.Conv2d, index: int) -> Tensor:
        return by_place(conv.weight, cls.BLOCKS[index])

    def _cells(self, index: int) -> tuple[int, int, int]:
        """Height, width and channels of a layer's output."""
        layer = self.layers[index]
        return layer.sides[0] - layer.size + 1, layer.sides[1] - layer.size + 1, len(layer.bias)

    def _below(self, index: int, x: Array) -> Array:
        """What a layer takes of the output of the one before."""
        block = self.BLOCKS[index]
        if block == 1:
            return x
        height, width, channels = self.layers[index].sides
        out = np.empty((len(x), height * width * channels), self.dtype)
        in_blocks(x, self._cells(index - 1), block, False, out)
        return out

    def body(self, lo: int, hi: int) -> Array:
        x = self.scaled_input(self.standard_input(lo, hi, self.BLOCKS[0], again=False))
        for index in range(len(self.layers)):
            x = self.embed_layer(index, self._below(index, x) if index else x, lo, hi)
        return x

    def body_gradient(self, lo: int, hi: int, grad: Array, grads: Gradients) -> None:
        standard = self.standard_input(lo, hi, self.BLOCKS[0], again=True)
        for index in reversed(range(len(self.layers))):
            self.through_norm(index, grad, self.normals[index][lo:hi], True, lo, hi, grads)
            if index == 0:
                loops.join_sums(self.convolve_back(0, grad, self.scaled_input(standard), grads), standard, grads.input)
                break
            normal, block = self.normals[index - 1][lo:hi], self.BLOCKS[index]
            grad = self.convolve_back(index, grad, self._below(index, self.activate(index - 1, normal)), grads)
            if block > 1:
                by_blocks, grad = grad, np.empty_like(normal)
                in_blocks(grad, self._cells(index - 1), block, True, by_blocks)


PASSES: dict[type, type[ImpalaPass | DqnPass]] = {ImpalaEncoder: ImpalaPass, ConvEncoder: DqnPass}
