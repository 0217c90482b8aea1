"""The two passes of `whole_grid`, each one compiled call that any number of threads may join.

Threads take the jobs of a layer, wait for each other, and go on to the next one: Python, whose lock only one thread
has, is not asked between layers. A batch is divided into the same jobs whatever their number, and sums are joined in
the jobs' order. Layers are counted from below; arrays of a layer stand in tuples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from deir.compiled import Array, compiled, compiled_part
from deir.fast.addresses import add, address_of_yield, await_count, lent, look, part
from deir.fast.convolution import multiple
from deir.fast.threads import join_in
from deir.fast.whole_loops import (
    activate,
    first_gradient,
    first_products,
    joined,
    next_gradient,
    next_products,
    through_relu,
)

LAYERS = 4
PARTS = 4  # tasks that join what the jobs have summed
LINE = 16  # counters that two threads must not both write to: see program.LINE
PER_LAYER = tuple[Array, ...]


class Input(NamedTuple):
    like: Array  # of no length, of the type of the products' factors
    views: Array  # [B, H, W, C]
    padding: int
    mean: Array  # [C] that the input is normalised by
    inverse: Array  # [C] 1/σ
    channels: int  # of the cells that the first layer reads
    sides: Array  # [4, 2] height and width of each layer's output; 0, 0: a linear layer
    bounds: Array  # [jobs+1] where the views of each job begin


class Layers(NamedTuple):
    products: PER_LAYER  # [B, P, O]
    norms: PER_LAYER  # [4, O] μ, 1/σ, γ, β


class Forward(NamedTuple):
    words: PER_LAYER  # kernels
    columns: Array  # [4] of the kernels
    sums: PER_LAYER  # [jobs, 3, O] zeros, for moments
    biases: PER_LAYER  # [O]
    means: PER_LAYER  # [O] running
    variances: PER_LAYER  # [O] running
    settings: Array  # [4, 2] how much of them a batch replaces, ε
    coupled: Array  # [4] bool: the batch's own moments count
    out: Array  # [B, 1, F]


class Backward(NamedTuple):
    coupled: Array  # [4] bool: the gradient flows through the moments
    turned: PER_LAYER  # kernels of all layers but the first
    grads: PER_LAYER  # [B, P, O] of the normalised products after their ReLU; that of the last layer is given
    parts: PER_LAYER  # [jobs, 2, O] Σ g and Σ g ŷ of each job
    sums: PER_LAYER  # [2, O] of all; zeros at first
    means: PER_LAYER  # [2, O]
    part_kernels: PER_LAYER  # [jobs, K, O] gradients of kernels
    kernels: PER_LAYER  # [K, O]


def run(passes: Any, *given: Any) -> None:
    """Goes through `forward` or `backward` with every thread that is free."""
    stages, tasks = 2 * LAYERS + 1, max(PARTS, len(given[0].bounds) - 1)
    stride = multiple(tasks + 1, LINE)
    counters, team = np.zeros(stages * stride, np.int64), np.zeros(1, np.int64)
    rest = address_of_yield()
    join_in(lambda: passes(*given, counters, stride, team, rest))


@compiled_part
def _taken(counters: Array, at: int, count: int, me: int, turn: int) -> int:
    """A task that is this thread's now, or -1. Of the first two threads each begins with a half of its own, in every
    stage the same: what it reads is then mostly what it wrote."""
    task = ((count * me + 1) // 2 + turn) % count
    return -1 if add(counters, at + 1 + task, 1) else task


@compiled
def forward(given: Input, layers: Layers, made: Forward, counters: Array, stride: int, team: Array, rest: int) -> None:
    """From views to embeddings. Moments and embeddings are small: one thread makes them."""
    given, layers, made = lent(given), lent(layers), lent(made)
    me, jobs, at = add(team, 0, 1), len(given.bounds) - 1, 0
    for layer in range(LAYERS):
        if look(counters, at) < jobs:
            for turn in range(jobs):
                job = _taken(counters, at, jobs, me, turn)
                if job >= 0:
                    _products(layer, job, given, layers, made)
                    add(counters, at, 1)
            await_count(counters, at, jobs, rest)
        at += stride
        if look(counters, at) < 1:
            if _taken(counters, at, 1, 0, 0) == 0:
                if made.coupled[layer]:
                    settle(
                        joined(made.sums[layer]), made.biases[layer], made.means[layer], made.variances[layer],
                        made.settings[layer, 0], made.settings[layer, 1], layers.norms[layer],
                    )  # fmt: skip
                if layer == LAYERS - 1:
                    activate(layers.products[layer], layers.norms[layer], made.out)
                add(counters, at, 1)
            await_count(counters, at, 1, rest)
        at += stride


@compiled_part
def _products(layer: int, job: int, given: Input, layers: Layers, made: Forward) -> None:
    lo, hi, side = given.bounds[job], given.bounds[job + 1], (given.sides[layer, 0], given.sides[layer, 1])
    products, sums = layers.products[layer], made.sums[layer][job]
    if layer == 0:
        first_products(
            given.like, given.views, given.padding, given.mean, given.inverse, made.words[0], given.channels, side,
            lo, hi, products, sums,
        )  # fmt: skip
    else:
        next_products(
            given.like, layers.products[layer - 1], layers.norms[layer - 1], made.words[layer], made.columns[layer],
            side, lo, hi, products, sums,
        )  # fmt: skip


@compiled
def settle(moments: Array, bias: Array, mean: Array, variance: Array, by: float, eps: float, norm: Array) -> None:
    """A batch's moments [3, C], of products without their bias, are what they are normalised by and what the running
    mean and variance follow. norm: [4, C] of which two rows are filled"""
    for c in range(len(bias)):
        count, average, squares = moments[0, c], moments[1, c], moments[2, c]
        mean[c] = (1 - by) * mean[c] + by * (average + bias[c])
        variance[c] = (1 - by) * variance[c] + by * squares / (count - 1)
        norm[0, c], norm[1, c] = average, 1 / np.sqrt(squares / count + eps)


@compiled
def backward(
    given: Input, layers: Layers, made: Backward, counters: Array, stride: int, team: Array, rest: int
) -> None:
    """From the embeddings' gradient to those of the kernels, and the sums that all others follow from."""
    given, layers, made = lent(given), lent(layers), lent(made)
    me, jobs, at = add(team, 0, 1), len(given.bounds) - 1, 0
    if look(counters, at) < 1:
        if _taken(counters, at, 1, 0, 0) == 0:
            last = LAYERS - 1
            through_relu(made.grads[last], layers.products[last], layers.norms[last], made.sums[last])
            _average(last, layers, made)
            add(counters, at, 1)
        await_count(counters, at, 1, rest)
    at += stride
    for layer in range(LAYERS - 1, -1, -1):
        if look(counters, at) < jobs:
            for turn in range(jobs):
                job = _taken(counters, at, jobs, me, turn)
                if job >= 0:
                    _gradient(layer, job, given, layers, made)
                    add(counters, at, 1)
            await_count(counters, at, jobs, rest)
        at += stride
        if look(counters, at) < PARTS:
            for turn in range(PARTS):
                task = _taken(counters, at, PARTS, me, turn)
                if task >= 0:
                    _join(layer, task, layers, made)
                    add(counters, at, 1)
            await_count(counters, at, PARTS, rest)
        at += stride


@compiled_part
def _gradient(layer: int, job: int, given: Input, layers: Layers, made: Backward) -> None:
    lo, hi, side = given.bounds[job], given.bounds[job + 1], (given.sides[layer, 0], given.sides[layer, 1])
    by_kernel = made.part_kernels[layer][job]
    by_kernel.reshape(-1)[:] = 0
    if layer == 0:
        first_gradient(
            given.like, made.grads[0], layers.products[0], layers.norms[0], made.means[0], given.views, given.padding,
            given.mean, given.inverse, given.channels, side, lo, hi, by_kernel,
        )  # fmt: skip
    else:
        below, sums = layer - 1, made.parts[layer - 1][job]
        sums[:] = 0
        next_gradient(
            given.like, made.grads[layer], layers.products[layer], layers.norms[layer], made.means[layer],
            layers.products[below], layers.norms[below], made.turned[below], side, lo, hi, made.grads[below],
            by_kernel, sums,
        )  # fmt: skip


@compiled_part
def _join(layer: int, task: int, layers: Layers, made: Backward) -> None:
    """What the jobs have summed, in their order."""
    parts, total = made.part_kernels[layer], made.kernels[layer]
    lo, hi = part(len(total), task, PARTS)
    for row in range(lo, hi):  # so that what is summed stays in the cache
        found = total[row]
        found[:] = parts[0, row]
        for job in range(1, len(parts)):
            more = parts[job, row]
            for c in range(len(found)):
                found[c] += more[c]
    if layer > 0 and task == 0:
        for job in range(len(made.parts[layer - 1])):
            made.sums[layer - 1][:] += made.parts[layer - 1][job]
        _average(layer - 1, layers, made)


@compiled_part
def _average(layer: int, layers: Layers, made: Backward) -> None:
    products, means = layers.products[layer], made.means[layer]
    if made.coupled[layer]:
        means[:] = made.sums[layer] / means.dtype.type(products.shape[0] * products.shape[1])
    else:
        means[:] = 0
