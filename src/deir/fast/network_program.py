"""The layers of our networks as parts of a program: each writes its operations, and gives what writes its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from deir.algorithm.layers import Head
from deir.algorithm.networks import GridEncoder, VectorEncoder
from deir.fast import machine
from deir.fast.program import ROWS, Operand, Program, Register, columns

PADDING = 16  # numbers between the kernels of two positions, which would share places in the cache without


class Matrix(NamedTuple):
    at: Operand
    rows: Operand
    width: int


class Rows(NamedTuple):
    """What the rows of a batch are made of: sums of rows of a table, each with a share in the batch."""

    count: Operand
    total: Operand  # rows in the batch, repeated ones counted
    of_table: Operand = 0  # [count, terms]; 0: row p is row p of the table
    terms: int = 0
    share: Operand = 0  # [count] double; 0: each is one of the batch


Back = Callable[[Operand], Matrix]  # from the address of a gradient to the gradient by what was given


def normalised(
    program: Program, norm: nn.Module, table: Matrix, rows: Rows, bias: Tensor | Register | None, relu: bool = True,
    out: Operand | None = None, by_table: bool = True,
) -> tuple[Matrix, Back]:  # fmt: skip
    """Batch normalisation of bias + Σ_k table[rows[p, k]] and a ReLU. The bias moves only the running mean.

    `by_table`: the gradient by the table is wanted
    """
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.momentum is not None
    width, floor = table.width, 0.0 if relu else -math.inf
    out = program.buffer(rows.count, width) if out is None else out
    normal, moments = program.buffer(rows.count, width), program.buffer(3, width)
    offset = bias if isinstance(bias, Register) else program.at(bias)
    settings = norm.eps, floor, norm.momentum
    program.emit(
        machine.NORMALISE, columns(width), table.at, table.rows, rows.of_table, rows.terms, rows.share, rows.count,
        width, program.at(norm.weight), program.at(norm.bias), out, normal, moments, program.at(norm.running_mean),
        program.at(norm.running_var), offset, rows.total, settings=settings,
    )  # fmt: skip

    def back(grad: Operand) -> Matrix:
        by = program.buffer(table.rows, width) if by_table else 0
        program.emit(
            machine.NORMALISE_GRADIENT, columns(width), grad, out, normal, rows.of_table, rows.terms, rows.share,
            rows.count, width, program.at(norm.weight), moments, by, table.rows if by_table else 0,
            program.at(norm.weight.grad), program.at(norm.bias.grad), settings=settings,
        )  # fmt: skip
        return Matrix(by, table.rows, width)

    return Matrix(out, rows.count, width), back


def normalised_rows(program: Program, norm: nn.Module, x: Matrix, bias: Tensor) -> tuple[Matrix, Back]:
    """The same of rows that stand for themselves: divided by rows, as the products before and after it are."""
    assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)) and norm.momentum is not None
    width, parts, moments = x.width, program.buffer(2 * ROWS, x.width), program.buffer(3, x.width)
    out, normal = program.buffer(x.rows, width), program.buffer(x.rows, width)
    settings = norm.eps, 0.0, norm.momentum
    program.emit(machine.MOMENTS_OF_ROWS, ROWS, x.at, x.rows, width, parts)
    program.emit(
        machine.NORMALISE_ROWS, ROWS, x.at, x.rows, width, parts, program.at(norm.weight), program.at(norm.bias), out,
        normal, moments, program.at(norm.running_mean), program.at(norm.running_var), program.at(bias),
        settings=settings,
    )  # fmt: skip

    def back(grad: Operand) -> Matrix:
        by = program.buffer(x.rows, width)
        program.emit(machine.GRADIENT_SUMS, ROWS, grad, x.rows, width, parts, out, normal)
        program.emit(
            machine.NORMALISE_ROWS_GRADIENT, ROWS, grad, x.rows, width, parts, out, normal, program.at(norm.weight),
            moments, by, program.at(norm.weight.grad), program.at(norm.bias.grad),
        )  # fmt: skip
        return Matrix(by, x.rows, width)

    return Matrix(out, x.rows, width), back


def linear(program: Program, layer: nn.Linear | nn.GRUCell, x: Matrix, part: str = "") -> tuple[Matrix, Back]:
    """x Wᵀ + b; of a GRU the products of its inputs (`ih`) or of its memory (`hh`), whose gradients may come twice."""
    weight, bias = _parameters(layer, part)
    assert weight.grad is not None and bias.grad is not None
    outputs = len(weight)
    out = program.buffer(x.rows, outputs)
    program.emit(machine.FILL, ROWS, out, x.rows, outputs, program.at(bias))
    program.product(out, x.at, program.at(weight), (x.rows, outputs, x.width), "b", joins=True)
    at_weight, at_bias = program.at(weight.grad), program.at(bias.grad)

    def back(grad: Operand) -> Matrix:
        joins = at_weight in program.reached
        program.reached.add(at_weight)
        program.product(at_weight, grad, x.at, (outputs, x.width, x.rows), "a", joins=joins, jobs=2)
        program.emit(machine.COLUMN_SUMS, columns(outputs), grad, x.rows, outputs, at_bias, int(joins))
        return Matrix(grad, x.rows, outputs)

    return Matrix(out, x.rows, outputs), back


def _parameters(layer: nn.Linear | nn.GRUCell, part: str) -> tuple[Tensor, Tensor]:
    return tuple(getattr(layer, f"{name}_{part}" if part else name) for name in ("weight", "bias"))  # type: ignore[return-value]


def by_input(program: Program, weight: Tensor, grad: Matrix, into: Operand | None = None) -> Matrix:
    """The gradient by the input of a product with Wᵀ; joined to what `into` holds, if given."""
    outputs, inputs = weight.shape
    out = program.buffer(grad.rows, inputs) if into is None else into
    program.product(out, grad.at, program.at(weight), (grad.rows, inputs, outputs), joins=into is not None)
    return Matrix(out, grad.rows, inputs)


def run_head(program: Program, head: Head, x: Matrix) -> tuple[Matrix, Callable[[Operand, Operand | None], Matrix]]:
    """[B, F] -> [B, outputs]. Its gradient by x may be joined to another."""
    *hidden, last = head
    backs: list[tuple[nn.Linear, Matrix, Back]] = []
    for layer, norm in zip(hidden[::3], hidden[1::3], strict=True):
        assert isinstance(layer, nn.Linear)
        outputs = layer.out_features
        products = program.buffer(x.rows, outputs)
        program.product(products, x.at, program.at(layer.weight), (x.rows, outputs, x.width), "b")
        below = x
        x, back = normalised_rows(program, norm, Matrix(products, x.rows, outputs), layer.bias)
        backs.append((layer, below, back))
    assert isinstance(last, nn.Linear)
    out, back_of_last = linear(program, last, x)

    def back(grad: Operand, into: Operand | None = None) -> Matrix:
        back_of_last(grad)
        by: Matrix = Matrix(grad, x.rows, last.out_features)
        weight: Tensor = last.weight
        for layer, below, back_of_layer in reversed(backs):
            by = back_of_layer(by_input(program, weight, by).at)
            weight = layer.weight
            program.product(
                program.at(layer.weight.grad), by.at, below.at, (by.width, below.width, by.rows), "a", jobs=2
            )
        return by_input(program, weight, by, into)

    return out, back


def gru_step(
    program: Program, gates: Matrix, rows: Operand, count: Operand, from_memory: Matrix, hidden: Matrix
) -> tuple[Matrix, Callable[[Operand, Operand, bool, Operand], Matrix]]:
    """The memory after the rows' inputs [count, H]; row b continues memory b mod M."""
    width = hidden.width
    kept, new, out = program.buffer(count, 2 * width), program.buffer(count, width), program.buffer(count, width)
    memory = from_memory.at, hidden.at, hidden.rows, width, kept, new
    program.emit(machine.GRU, ROWS, gates.at, gates.rows, rows, count, *memory, out)

    def back(grad: Operand, by_gates: Operand, joins: bool, by_hidden: Operand) -> Matrix:
        """The gradient by from_memory; that by the gates goes to `by_gates`, that by hidden joins `by_hidden`."""
        by_rows, by_memory = program.buffer(count, 3 * width), program.buffer(hidden.rows, 3 * width)
        program.emit(machine.GRU_GRADIENT, ROWS, grad, count, *memory, by_rows, by_memory, by_hidden)
        wide = 3 * width
        program.emit(
            machine.SCATTER, columns(wide), by_rows, count, wide, rows, by_gates, gates.rows, int(joins)
        )
        return Matrix(by_memory, hidden.rows, wide)

    return Matrix(out, count, width), back


def embed_patches(program: Program, encoder: GridEncoder) -> tuple[Matrix, Callable[[Operand], None]]:
    """The encoder on the distinct patches of a batch, of which the batch gives a plan. [u, features]

    A 2x2 patch's convolution is the sum of its four corners' products, so each smaller patch is multiplied with
    the four corners of the kernel once, and a larger patch is a sum of four rows; likewise the linear layer.
    """
    given, channels = program.given, encoder.shape[2]
    cells = Rows(given("cells"), given("cell total"), share=given("cell share"))
    x = program.buffer(given("cells and padding"), channels)
    program.emit(machine.FILL, 1, x, given("cells and padding"), channels, 0)
    table = Matrix(given("cell kinds"), given("cells"), channels)
    _, back_of_input = normalised(program, encoder.input_norm, table, cells, None, False, x, by_table=False)
    maps, steps = Matrix(x, given("cells and padding"), channels), []
    for level, (conv, norm) in enumerate(zip(encoder.convs, encoder.norms, strict=True)):
        assert isinstance(conv, nn.Conv2d)
        below, outputs = maps, conv.out_channels
        kernel, products = program.buffer(below.width, 4 * outputs), program.buffer(below.rows, 4 * outputs)
        corner = below.width, outputs, kernel
        program.emit(machine.BY_CORNER, 2 if below.width > 8 else 1, program.at(conv.weight), *corner)
        program.product(products, below.at, kernel, (below.rows, 4 * outputs, below.width))
        rows = Rows(
            given(f"count {level}"), given(f"total {level}"), given(f"corners {level}"), 4, given(f"share {level}")
        )
        fours = program.plus(0, below.rows, 4) if isinstance(below.rows, Register) else 4 * below.rows
        maps, back = normalised(program, norm, Matrix(products, fours, outputs), rows, conv.bias)
        steps.append((conv, below, kernel, back))
    out, back_of_linear = _placed(program, encoder, maps)

    def backward(grad: Operand) -> None:
        by = back_of_linear(grad)
        for conv, below, kernel, back in reversed(steps):
            by_products, outputs = back(by.at).at, conv.out_channels
            by_kernel = program.buffer(below.width, 4 * outputs)
            program.product(by_kernel, below.at, by_products, (below.width, 4 * outputs, below.rows), "a", jobs=2)
            corner = below.width, outputs, by_kernel
            program.emit(machine.NOT_BY_CORNER, 2 if below.width > 8 else 1, program.at(conv.weight.grad), *corner)
            by_maps = program.buffer(below.rows, below.width)
            program.product(by_maps, by_products, kernel, (below.rows, below.width, 4 * outputs), "b")
            by = Matrix(by_maps, below.rows, below.width)
        back_of_input(by.at)

    return out, backward


def _placed(program: Program, encoder: GridEncoder, maps: Matrix) -> tuple[Matrix, Back]:
    """The linear layer on the patches at each position, and its normalisation."""
    given, features, width = program.given, encoder.features, maps.width
    positions = encoder.linear.in_features // width
    apart, slots = width * features + PADDING, given("slots")
    kernels, rows, products = (
        program.buffer(positions, apart), program.buffer(slots, width), program.buffer(slots, features)
    )  # fmt: skip
    assert encoder.linear.weight.grad is not None
    shape = width, features, positions
    program.emit(machine.BY_POSITION, 2, program.at(encoder.linear.weight), *shape, kernels, apart)
    program.emit(
        machine.PLACED, min(positions, 8), maps.at, maps.rows, width, given("patches"), slots, given("bounds"), positions,
        kernels, apart, rows, products, features,
    )  # fmt: skip
    batch = Rows(
        given("observations"), given("batch"), given("places"), positions, given("observation share")
    )
    out, back_of_norm = normalised(
        program, encoder.output_norm, Matrix(products, slots, features), batch, encoder.linear.bias
    )

    def back(grad: Operand) -> Matrix:
        by_products = back_of_norm(grad).at
        by_rows, by_kernels = program.buffer(slots, width), program.buffer(positions, apart)
        program.emit(
            machine.PLACED_GRADIENT, min(positions, 8), by_products, slots, features, rows, width, given("bounds"), positions,
            kernels, apart, by_rows, by_kernels,
        )  # fmt: skip
        program.emit(
            machine.NOT_BY_POSITION, 2, program.at(encoder.linear.weight.grad), *shape, by_kernels, apart
        )
        by_maps = program.buffer(maps.rows, width)
        program.emit(
            machine.SCATTER, columns(width), by_rows, slots, width, given("patches"), by_maps, maps.rows, 0
        )
        return Matrix(by_maps, maps.rows, width)

    return out, back


def embed_vectors(program: Program, encoder: VectorEncoder) -> tuple[Matrix, Callable[[Operand], None]]:
    """The encoder on the distinct rows of a batch, as bytes. [u, features]

    With x̃ = (x - μ)/σ the first layer is W (γ x̃ + β) + b = (W γ) x̃ + (W β + b). Batch normalisation takes off what is
    the same for all rows, so only the first part is computed, and nothing wants a gradient of the input.
    """
    normal, first, first_norm, _, second, second_norm, _ = encoder.body
    assert isinstance(normal, nn.BatchNorm1d) and normal.momentum is not None
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    given, width, features = program.given, first.in_features, encoder.features
    count, total, share = given("observations"), given("batch"), given("observation share")
    x, moments = program.buffer(count, width), program.buffer(3, width)
    program.emit(
        machine.STANDARDISE, columns(width), given("rows"), count, width, share, x, moments,
        program.at(normal.running_mean), program.at(normal.running_var), total,
        settings=(normal.eps, 0.0, normal.momentum, 1.0),
    )  # fmt: skip
    scaled, offset = program.buffer(features, width), program.buffer(1, features)
    program.emit(machine.SCALE_COLUMNS, 2, program.at(first.weight), features, width, program.at(normal.weight), scaled)
    program.emit(machine.FILL, 1, offset, 1, features, program.at(first.bias))
    program.product(
        offset, program.at(normal.bias), program.at(first.weight), (1, features, width), "b", joins=True, jobs=1
    )
    products, batch = program.buffer(count, features), Rows(count, total, share=share)
    program.product(products, x, scaled, (count, features, width), "b")
    middle, back_of_first = normalised(program, first_norm, Matrix(products, count, features), batch, offset)
    products = program.buffer(count, features)
    program.product(products, middle.at, program.at(second.weight), (count, features, features), "b")
    out, back_of_second = normalised(program, second_norm, Matrix(products, count, features), batch, second.bias)

    def backward(grad: Operand) -> None:
        by = back_of_second(grad)
        at = program.at(second.weight.grad)
        program.product(at, by.at, middle.at, (features, features, count), "a", jobs=2)
        by = back_of_first(by_input(program, second.weight, by).at)
        by_scaled = program.buffer(features, width)
        program.product(by_scaled, by.at, x, (features, width, count), "a", jobs=2)
        program.emit(
            machine.UNSCALE_COLUMNS, columns(width), by_scaled, features, width, program.at(normal.weight),
            program.at(first.weight), program.at(first.weight.grad), program.at(normal.weight.grad),
        )  # fmt: skip

    return out, backward


def trains_by_batch(network: nn.Module) -> bool:
    """Whether every normalisation is batch normalisation that trains, as programs have it."""
    norms = [m for m in network.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    others = any(isinstance(m, (nn.LayerNorm, nn.Identity)) for m in network.modules())
    tracked = all(n.training and n.affine and n.track_running_stats and n.momentum is not None for n in norms)
    return bool(norms) and tracked and not others


def count_batches(network: nn.Module, batches: int) -> None:
    for module in network.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.num_batches_tracked is not None:
            module.num_batches_tracked += batches
