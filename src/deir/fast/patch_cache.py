"""The grid encoder on one view after the other while parameters are frozen: each distinct patch is multiplied once.

A 2x2 convolution of a patch is the sum of what its four corners, smaller patches, give: so what a patch gives the next
layer as each of four corners is kept. Every view is computed alone, in one order of sums: its bits depend neither on
the views before it nor on how many there are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deir.compiled import Array, compiled, compiled_part, compiled_sums
from deir.fast.naming import free_places

Layer = tuple[Array, Array]  # weight [in, out], bias [out]
COLOURS, STATES = 16, 128  # what a cell's colour and state count in its code: four bits, three and two
CODES = 512  # of cells; this one stands for padding


class GridWeights(NamedTuple):
    """A grid encoder and the GRU's product of inputs, with normalisation folded in; a layer's corners side by side."""

    cells: Array  # [513, 4*C1] what a cell gives as each corner
    bias_1: Array  # [C1]
    kernel_2: Array  # [C1, 4*C2]
    bias_2: Array  # [C2]
    kernel_3: Array  # [C2, 4*C3]
    bias_3: Array  # [C3]
    linear: Array  # [positions, C3, F]
    bias_4: Array  # [F]
    inputs: Array  # [F, 3H]
    bias_5: Array  # [3H]
    padding: int


def grid_weights(
    normal: tuple[Array, Array],  # scale and shift of the inputs, [3] each
    convolutions: tuple[Layer, ...],  # of 2x2 cells, [4*in, out]
    linear: Layer,  # [positions*C3, F]
    inputs: Layer,  # [F, 3H]
    padding: int,
    wanted: bool,
) -> GridWeights:
    """Of the layers as `views.encode_grids` takes them; if not wanted, arrays of the same types that hold nothing."""
    if not wanted:
        none, flat = np.empty((0, 0), inputs[1].dtype), np.empty(0, inputs[1].dtype)
        return GridWeights(none, flat, none, flat, none, flat, none[None], flat, none, flat, padding)
    codes = np.arange(CODES)
    values = np.stack([codes % COLOURS, codes % STATES // COLOURS, codes // STATES], 1).astype(normal[0].dtype)
    (first, bias_1), (second, bias_2), (third, bias_3) = convolutions
    cells = np.zeros((CODES + 1, 4 * len(bias_1)), first.dtype)  # padding gives nothing
    cells[:CODES] = (values * normal[0] + normal[1]) @ _side_by_side(first)
    by_position = linear[0].reshape(-1, len(bias_3), linear[0].shape[1])
    kernels = _side_by_side(second), bias_2, _side_by_side(third), bias_3
    return GridWeights(cells, bias_1, *kernels, by_position, linear[1], inputs[0], inputs[1], padding)


def _side_by_side(kernel: Array) -> Array:
    """[4*in, out] -> [in, 4*out]"""
    corners = kernel.reshape(4, -1, kernel.shape[1])
    return np.ascontiguousarray(corners.transpose(1, 0, 2)).reshape(corners.shape[1], -1)


class Level(NamedTuple):
    """The patches of one size that have occurred."""

    places: Array  # as in `naming`
    corners: Array  # [capacity, 4] names of the patches of the size below
    products: Array  # [capacity, P] what each gives the layer above


def new_level(capacity: int, width: int, like: Array) -> Level:
    """width: P"""
    return Level(free_places(capacity), np.empty((capacity, 4), np.int64), np.empty((capacity, width), like.dtype))


def larger(level: Level, known: int, room: int) -> Level:
    """The same with `known` patches and room for twice as many, and `room` more."""
    capacity = 2 * known + room
    grown = new_level(capacity, level.products.shape[1], level.products)
    grown.corners[:known], grown.products[:known] = level.corners[:known], level.products[:known]
    place_again(grown.places, grown.corners, known)
    return grown


@compiled
def place_again(places: Array, corners: Array, known: int) -> None:
    for name in range(known):
        places[_place(places, corners, corners[name])] = name


@compiled
def _place(places: Array, corners: Array, wanted: Array) -> int:
    """Where the name of a patch stands, or is to stand."""
    mixed, last = np.uint64(0), len(places) - 1
    for k in range(4):
        mixed = (mixed ^ np.uint64(wanted[k])) * np.uint64(11400714819323198485)  # 2^64 / golden ratio
        mixed ^= mixed >> np.uint64(29)
    place = np.int64(mixed) & last
    while places[place] >= 0:
        found = corners[places[place]]
        if found[0] == wanted[0] and found[1] == wanted[1] and found[2] == wanted[2] and found[3] == wanted[3]:
            break
        place = (place + 1) & last
    return int(place)


@compiled_sums
def add_product(x: Array, weight: Array, out: Array) -> None:
    """out += x weight.   x: [I], weight: [I, O], out: [O]"""
    count = len(x)
    for k in range(0, count - 3, 4):
        a, b, c, d = x[k], x[k + 1], x[k + 2], x[k + 3]
        first, second, third, fourth = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        for o in range(len(out)):
            out[o] += a * first[o] + b * second[o] + c * third[o] + d * fourth[o]
    for k in range(count - count % 4, count):
        a, first = x[k], weight[k]
        for o in range(len(out)):
            out[o] += a * first[o]


@compiled_part
def add_rectified(x: Array, weight: Array, out: Array) -> None:
    """out += ReLU(x) weight; x is rectified in place."""
    for k in range(len(x)):
        x[k] = max(x[k], x.dtype.type(0))
    add_product(x, weight, out)


@compiled_part
def name_patches(
    grid: Array,  # [h, w] names of the patches of the size below
    below: Array,  # [U, 4*C] what each of them gives as each corner
    bias: Array,  # [C]
    kernel: Array,  # [C, P]; [C, 0]: the features themselves are kept
    level: Level,
    counts: Array,  # [..] patches of each size that are known; more, in place
    size: int,  # which of them
) -> Array:
    """Names for the patches of the next size [h-1, w-1]; what new ones give is computed."""
    height, width, channels = grid.shape[0] - 1, grid.shape[1] - 1, len(bias)
    names, wanted, features = np.empty((height, width), np.int64), np.empty(4, np.int64), np.empty_like(bias)
    for i in range(height):
        for j in range(width):
            wanted[0], wanted[1], wanted[2], wanted[3] = grid[i, j], grid[i, j + 1], grid[i + 1, j], grid[i + 1, j + 1]
            place = _place(level.places, level.corners, wanted)
            if level.places[place] < 0:
                name = counts[size]
                counts[size] += 1
                level.places[place], level.corners[name] = name, wanted
                for c in range(channels):
                    features[c] = bias[c]
                for k in range(4):
                    corner = below[wanted[k], k * channels : (k + 1) * channels]
                    for c in range(channels):
                        features[c] += corner[c]
                product = level.products[name]
                if kernel.shape[1] > 0:
                    product[:] = 0
                    add_rectified(features, kernel, product)
                else:
                    for c in range(channels):
                        product[c] = max(features[c], bias.dtype.type(0))
            names[i, j] = level.places[place]
    return names


@compiled_part
def encode_view(
    view: Array,  # [H, W, 3]
    weights: GridWeights,
    levels: tuple[Level, Level, Level],
    counts: Array,  # [3], in place
    out: Array,  # [3H]
) -> None:
    """What a GRU takes of a view. There is room in the levels for its patches."""
    height, width, padding = view.shape[0], view.shape[1], weights.padding
    grid = np.full((height + 2 * padding, width + 2 * padding), CODES)
    for i in range(height):
        for j in range(width):
            kind, colour, state = np.int64(view[i, j, 0]), np.int64(view[i, j, 1]), np.int64(view[i, j, 2])
            grid[i + padding, j + padding] = kind + COLOURS * colour + STATES * state
    nothing = np.empty((len(weights.bias_3), 0), weights.bias_3.dtype)
    first = name_patches(grid, weights.cells, weights.bias_1, weights.kernel_2, levels[0], counts, 0)
    second = name_patches(first, levels[0].products, weights.bias_2, weights.kernel_3, levels[1], counts, 1)
    third = name_patches(second, levels[1].products, weights.bias_3, nothing, levels[2], counts, 2)
    embedded, names = weights.bias_4.copy(), third.ravel()
    for position in range(len(names)):
        add_product(levels[2].products[names[position]], weights.linear[position], embedded)
    out[:] = weights.bias_5
    add_rectified(embedded, weights.inputs, out)
