"""Our encoders as parts of a program."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from deir.algorithm.networks import Encoder, GridEncoder, VectorEncoder
from deir.fast import machine
from deir.fast.network_program import Back, Matrix, Rows, by_input, normalised
from deir.fast.program import Operand, Program, Register, columns

PLACES = 8  # jobs of positions at most
PADDING = 16  # numbers between the kernels of two positions, which would share places in the cache without


def embed(program: Program, encoder: Encoder) -> tuple[Matrix, Callable[[Operand], None]]:
    """The embeddings of a batch's distinct observations [u, features], and what writes the gradient."""
    if isinstance(encoder, GridEncoder):
        return embed_patches(program, encoder)
    assert isinstance(encoder, VectorEncoder)
    return embed_vectors(program, encoder)


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
    apart, slots, jobs = width * features + PADDING, given("slots"), min(positions, PLACES)
    kernels, rows, products = (
        program.buffer(positions, apart), program.buffer(slots, width), program.buffer(slots, features)
    )  # fmt: skip
    assert encoder.linear.weight.grad is not None
    shape = width, features, positions
    program.emit(machine.BY_POSITION, 2, program.at(encoder.linear.weight), *shape, kernels, apart)
    program.emit(
        machine.PLACED, jobs, maps.at, maps.rows, width, given("patches"), slots, given("bounds"), positions,
        kernels, apart, rows, products, features,
    )  # fmt: skip
    batch = Rows(given("observations"), given("batch"), given("places"), positions, given("observation share"))
    out, back_of_norm = normalised(
        program, encoder.output_norm, Matrix(products, slots, features), batch, encoder.linear.bias
    )

    def back(grad: Operand) -> Matrix:
        by_products = back_of_norm(grad).at
        by_rows, by_kernels = program.buffer(slots, width), program.buffer(positions, apart)
        program.emit(
            machine.PLACED_GRADIENT, jobs, by_products, slots, features, rows, width, given("bounds"), positions,
            kernels, apart, by_rows, by_kernels,
        )  # fmt: skip
        program.emit(machine.NOT_BY_POSITION, 2, program.at(encoder.linear.weight.grad), *shape, by_kernels, apart)
        by_maps = program.buffer(maps.rows, width)
        program.emit(machine.SCATTER, columns(width), by_rows, slots, width, given("patches"), by_maps, maps.rows, 0)
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
