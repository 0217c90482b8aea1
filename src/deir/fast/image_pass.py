"""One batch of images through an encoder and back: jobs of images, each a piece of a few images after the other.

Observations do not depend on each other, so a piece runs through all layers while its feature maps are in the cache.
Everything but the linear layer is compiled loops. Of a layer only the
normalised products are kept for the backward pass, which makes everything else again.

A batch is divided by its size alone, and gradients are joined in the order of jobs: the bits do not depend on the
number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deir.compiled import Array
from deir.config import Precision
from deir.fast import image_loops as loops
from deir.fast.arrays import arrays_of
from deir.fast.convolution import factors_of, kernel_words
from deir.fast.image_convolution import convolved, layer_gradient, words_back
from deir.fast.threads import in_parallel

JOBS = 16  # that a batch is divided into at most, whatever the number of threads
SMALLEST = 16  # images of a job
ROWS = 256  # room is made for a multiple of so many images
WORTHWHILE = 1 << 20  # bytes of an array that is kept for the next batch


class Layer(NamedTuple):
    """A convolution and the normalisation after it."""

    kernel: Array  # [k*k*C, O]
    bias: Array  # [O]
    gain: Array  # [M] of the output, position by position, channels last
    shift: Array  # [M]
    padding: int
    size: int  # k
    sides: tuple[int, int, int]  # height, width and channels of its input
    kept: bool = True  # the normalised products are; otherwise the backward pass convolves again

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """What its loops take: height, width, size, padding."""
        return *self.sides[:2], self.size, self.padding


class Gradients:
    """What a job adds up."""

    def __init__(self, layers: list[Layer], width: int) -> None:
        """width: of an image as the first convolution takes it"""
        self.kernels = [np.zeros_like(layer.kernel) for layer in layers]
        self.biases = [np.zeros_like(layer.bias) for layer in layers]
        self.sums = [np.zeros((2, len(layer.gain)), layer.gain.dtype) for layer in layers]  # of shifts and gains
        self.input = np.zeros((2, width), layers[0].gain.dtype)
        self.tail: tuple[Tensor, ...] = ()  # of the linear layer and its normalisation

    def tensors(self) -> list[Tensor]:
        """In the order in which `ImagePass` takes the parameters."""
        found = [*_gain_and_shift(self.input)]
        for kernel, bias, sums in zip(self.kernels, self.biases, self.sums, strict=True):
            found += [torch.from_numpy(kernel), torch.from_numpy(bias), *_gain_and_shift(sums)]
        return [*found, *self.tail]


def _gain_and_shift(sums: Array) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(sums[1]), torch.from_numpy(sums[0])


def filled(given: Sequence[Tensor], size: int, dtype: torch.dtype) -> tuple[Array, Array]:
    """Gain and shift, which have no numbers where nothing is normalised: then 1 and 0."""
    none = torch.ones(size, dtype=dtype), torch.zeros(size, dtype=dtype)
    gain, shift = arrays_of(*(given if len(given[0]) else none))
    return gain, shift


class Shelf:
    """Arrays of bytes that were given back, for whoever needs one: of new ones the system would clear every page."""

    def __init__(self) -> None:
        self.free: list[Array] = []
        self.lock = Lock()

    def take(self, size: int) -> Array:
        """At least so many bytes: the smallest there is."""
        with self.lock:
            fits = [array for array in self.free if size <= len(array)] if size >= WORTHWHILE else []
            if not fits:
                return np.empty(size, np.uint8)
            best = min(fits, key=len)
            self.free = [array for array in self.free if array is not best]
            return best

    def give(self, arrays: list[Array]) -> None:
        """Nobody may use them any more. Those that are too small to matter are dropped."""
        with self.lock:
            self.free += [array for array in arrays if len(array) >= WORTHWHILE]
        arrays.clear()


SHELF = Shelf()


class ImagePass:
    """Networks derive from it and give `body` and `body_gradient` of images lo … hi."""

    piece: int  # images that run through all layers together

    def __init__(
        self, images: Tensor, eps: float, precision: Precision, layers: list[Layer], first: list[Array],
        tail: list[Tensor], keep: bool,
    ) -> None:  # fmt: skip
        """images: [B, H, W, C]; eps: of the normalisations, negative without any; precision: of the factors of
        convolutions; first: gain and shift of the input; tail: weight, bias, gain, shift of the linear layer;
        keep: `backward` will follow"""
        self.sides = images.shape[1], images.shape[2], images.shape[3]
        (self.images,) = arrays_of(images.flatten(1))
        self.eps, self.layers, self.first, self.keep = eps, layers, first, keep
        self.scale = 1 / 255 if images.dtype == torch.uint8 else 1.0
        self.weight, self.bias = tail[:2]
        self.gain, self.shift = filled(tail[2:], len(self.bias), self.bias.dtype)
        count, self.dtype = len(images), self.gain.dtype
        self.like = factors_of(precision, self.dtype)
        self.words = [kernel_words(layer.kernel, self.like) for layer in layers]
        self.kept: list[Array] = []  # of bytes
        self.normals = [self.room(count if layer.kept else 0, len(layer.gain)) for layer in layers]
        self.moments = [
            np.empty((2, count), self.dtype) for _ in range(len(layers) + 2)
        ]  # μ, 1/σ of layers, tail and input
        self.flat = self.room(count, self.weight.shape[1])
        self.products_of_tail, self.out = (
            self.room(count, len(self.gain)),
            np.empty((count, len(self.gain)), self.dtype),
        )

    def room(self, count: int, width: int) -> Array:
        """What stays until the backward pass, of all images. [count, width]"""
        rows = -(-count // ROWS) * ROWS  # batches of about the same size take the same arrays
        self.kept.append(SHELF.take(rows * width * self.dtype.itemsize))
        return self.kept[-1][: count * width * self.dtype.itemsize].view(self.dtype).reshape(count, width)

    def bounds(self) -> list[tuple[int, int]]:
        """Where each job begins and ends; of the number of images alone."""
        count = len(self.images)
        jobs = max(1, min(JOBS, count // SMALLEST))
        ends = [count * job // jobs for job in range(jobs + 1)]
        return list(zip(ends[:-1], ends[1:], strict=True))

    def pieces(self, lo: int, hi: int) -> list[tuple[int, int]]:
        return [(begin, min(begin + self.piece, hi)) for begin in range(lo, hi, self.piece)]

    def body(self, lo: int, hi: int) -> Array:
        """What the linear layer takes. [n, M]"""
        raise NotImplementedError

    def body_gradient(self, lo: int, hi: int, grad: Array, grads: Gradients) -> None:
        """grad: of what `body` gives, and may be overwritten"""
        raise NotImplementedError

    def forward(self) -> Tensor:
        in_parallel(lambda job: self._embed(*job), self.bounds())
        if not self.keep:
            SHELF.give(self.kept)
        return torch.from_numpy(self.out)

    def backward(self, grad: Tensor) -> list[Tensor]:
        """grad: [B, F] -> the gradients of input gain and shift, of kernel, bias, gain, shift of each layer and tail"""
        self.words_back = [words_back(x.kernel, x.size, x.padding, self.like) for x in self.layers]
        parts = in_parallel(lambda job: self._gradient(*job, grad[job[0] : job[1]]), self.bounds())
        SHELF.give(self.kept)
        return [_sum_in_order(part) for part in zip(*parts, strict=True)]

    def _embed(self, lo: int, hi: int) -> None:
        for begin, end in self.pieces(lo, hi):
            self.flat[begin:end] = self.body(begin, end)
        flat, products = torch.from_numpy(self.flat[lo:hi]), self.products_of_tail[lo:hi]
        torch.addmm(self.bias, flat, self.weight.T, out=torch.from_numpy(products))
        moments = self.moments[-2][:, lo:hi]
        loops.normalise_and_activate(products, self.eps, moments, self.gain, self.shift, products, self.out[lo:hi])

    def _gradient(self, lo: int, hi: int, grad: Tensor) -> list[Tensor]:
        grads = Gradients(self.layers, len(self.first[0]))
        by_products = grad.numpy().copy()
        sums = np.zeros((2, len(self.gain)), self.dtype)
        norm = self.gain, self.shift, self.moments[-2][1, lo:hi]
        loops.through_norm(by_products, True, self.products_of_tail[lo:hi], *norm, sums, self.eps)
        by_rows = torch.from_numpy(by_products)
        by_weight = by_rows.T @ torch.from_numpy(self.flat[lo:hi])
        grads.tail = by_weight, by_rows.sum(0), *_gain_and_shift(sums)
        by_flat = (by_rows @ self.weight).numpy()
        for begin, end in self.pieces(lo, hi):
            self.body_gradient(begin, end, by_flat[begin - lo : end - lo], grads)
        return grads.tensors()

    def standard_input(self, lo: int, hi: int, block: int, again: bool) -> Array:
        """(x - μ)/σ of images, in blocks of cells. [n, M]"""
        images, moments = self.images[lo:hi], self.moments[-1][:, lo:hi]
        if not again:
            loops.image_moments(images, self.scale, self.eps, moments)
        out = np.empty((hi - lo, len(self.first[0])), self.dtype)
        loops.standard_blocks(images, self.scale, moments, self.sides, block, out)
        return out

    def scaled_input(self, normal: Array) -> Array:
        out = np.empty_like(normal)
        loops.scale_maps(normal, *self.first, out)
        return out

    def convolve(self, index: int, x: Array) -> Array:
        """The products of a layer. [n, H*W*C] -> [n, M]"""
        layer = self.layers[index]
        depth = len(layer.kernel) // layer.size**2
        return np.asarray(convolved(self.like, x, layer.shape, self.words[index], depth, layer.bias))

    def convolve_back(self, index: int, grad: Array, x: Array, grads: Gradients, through: bool = True) -> Array:
        """Adds the gradients of a layer's kernel and bias; that of its input x, if it is wanted `through`. [n, M]"""
        by_x = np.empty(x.shape if through else (0, 0), self.dtype)
        found, shape = (grads.kernels[index], grads.biases[index]), self.layers[index].shape
        layer_gradient(self.like, grad, x, shape, self.words_back[index], *found, by_x)
        return by_x

    def norm(self, index: int, products: Array, lo: int, hi: int) -> tuple[Any, ...]:
        """What the loops of a layer's normalisation take; ŷ is kept, or takes the place of the products."""
        layer = self.layers[index]
        normal = self.normals[index][lo:hi] if layer.kept else products
        return products, self.eps, self.moments[index][:, lo:hi], layer.gain, layer.shift, normal

    def embed_layer(self, index: int, x: Array, lo: int, hi: int) -> Array:
        """Convolution, normalisation, ReLU."""
        products = self.convolve(index, x)
        out = np.empty_like(products)
        loops.normalise_and_activate(*self.norm(index, products, lo, hi), out)
        return out

    def activate(self, index: int, normal: Array) -> Array:
        out = np.empty_like(normal)
        loops.activate(normal, self.layers[index].gain, self.layers[index].shift, out)
        return out

    def through_norm(
        self, index: int, grad: Array, normal: Array, stopped: bool, lo: int, hi: int, grads: Gradients
    ) -> None:  # fmt: skip
        """From the gradient of a layer's output to that of its products, in place. stopped: by a ReLU"""
        layer, inverse = self.layers[index], self.moments[index][1, lo:hi]
        loops.through_norm(grad, stopped, normal, layer.gain, layer.shift, inverse, grads.sums[index], self.eps)


def _sum_in_order(tensors: tuple[Tensor, ...]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total += tensor
    return total
