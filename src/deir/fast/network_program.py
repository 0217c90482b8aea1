"""The layers of our networks as parts of a program: each writes its operations, and gives what writes its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from deir.algorithm.layers import Head
from deir.fast import machine
from deir.fast.program import ROWS, Operand, Program, Register, columns


class Matrix(NamedTuple):
    at: Operand
    rows: Operand
    width: int


class Rows(NamedTuple):
    """What the rows of a batch are made of: sums of rows of a table, each with a share in the batch."""

    number: Operand
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
    out = program.buffer(rows.number, width) if out is None else out
    normal, moments = program.buffer(rows.number, width), program.buffer(3, width)
    offset = bias if isinstance(bias, Register) else program.at(bias)
    settings = norm.eps, floor, norm.momentum
    program.emit(
        machine.NORMALISE, columns(width), table.at, table.rows, rows.of_table, rows.terms, rows.share, rows.number,
        width, program.at(norm.weight), program.at(norm.bias), out, normal, moments, program.at(norm.running_mean),
        program.at(norm.running_var), offset, rows.total, settings=settings,
    )  # fmt: skip

    def back(grad: Operand) -> Matrix:
        by = program.buffer(table.rows, width) if by_table else 0
        program.emit(
            machine.NORMALISE_GRADIENT, columns(width), grad, out, normal, rows.of_table, rows.terms, rows.share,
            rows.number, width, program.at(norm.weight), moments, by, table.rows if by_table else 0,
            program.at(norm.weight.grad), program.at(norm.bias.grad), settings=settings,
        )  # fmt: skip
        return Matrix(by, table.rows, width)

    return Matrix(out, rows.number, width), back


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
        by, sums = program.buffer(x.rows, width), program.buffer(2 * ROWS, width)
        program.emit(machine.GRADIENT_SUMS, ROWS, grad, x.rows, width, sums, out, normal)
        program.emit(
            machine.NORMALISE_ROWS_GRADIENT, ROWS, grad, x.rows, width, sums, out, normal, program.at(norm.weight),
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


def by_input(program: Program, weight: Tensor, grad: Matrix, into: Operand | None = None, joins: bool = True) -> Matrix:
    """The gradient by the input of a product with Wᵀ; written to `into`, if given, and joined to what that holds."""
    outputs, inputs = weight.shape
    out = program.buffer(grad.rows, inputs) if into is None else into
    program.product(out, grad.at, program.at(weight), (grad.rows, inputs, outputs), joins=joins and into is not None)
    return Matrix(out, grad.rows, inputs)


def normalised_layer(
    program: Program, norm: nn.Module, x: Matrix, bias: Tensor, batch: Rows | None
) -> tuple[Matrix, Back]:
    """Of rows that stand for themselves, or of distinct rows that have a share in a batch."""
    return normalised_rows(program, norm, x, bias) if batch is None else normalised(program, norm, x, batch, bias)


def _hidden_layer(
    program: Program, layer: nn.Linear, norm: nn.Module, x: Matrix, batch: Rows | None
) -> tuple[Matrix, Back]:
    """A linear layer, its normalisation, if it has one, and a ReLU. Its gradient is that by the layer's products."""
    outputs = layer.out_features
    if isinstance(norm, nn.Identity):
        out, back_of_linear = linear(program, layer, x)
        program.emit(machine.RELU, ROWS, *out)

        def back_of_relu(grad: Operand) -> Matrix:
            program.emit(machine.RELU_GRADIENT, ROWS, grad, out.rows, outputs, out.at)
            return back_of_linear(grad)

        return out, back_of_relu
    products = program.buffer(x.rows, outputs)
    program.product(products, x.at, program.at(layer.weight), (x.rows, outputs, x.width), "b")
    normal, back_of_norm = normalised_layer(program, norm, Matrix(products, x.rows, outputs), layer.bias, batch)

    def back(grad: Operand) -> Matrix:
        by = back_of_norm(grad)
        program.product(program.at(layer.weight.grad), by.at, x.at, (outputs, x.width, by.rows), "a", jobs=2)
        return by

    return normal, back


def run_head(
    program: Program, head: Head, x: Matrix, batch: Rows | None = None
) -> tuple[Matrix, Callable[[Operand, Operand | None], Matrix]]:
    """[B, F] -> [B, outputs], or of the distinct rows of a batch. Its gradient by x may be joined to another."""
    *hidden, last = head
    steps: list[tuple[nn.Linear, Back]] = []
    for layer, norm in zip(hidden[::3], hidden[1::3], strict=True):
        assert isinstance(layer, nn.Linear)
        x, back_of_layer = _hidden_layer(program, layer, norm, x, batch)
        steps.append((layer, back_of_layer))
    assert isinstance(last, nn.Linear)
    out, back_of_last = linear(program, last, x)

    def back(grad: Operand, into: Operand | None = None) -> Matrix:
        back_of_last(grad)
        by: Matrix = Matrix(grad, x.rows, last.out_features)
        weight: Tensor = last.weight
        for layer, back_of_layer in reversed(steps):
            by = back_of_layer(by_input(program, weight, by).at)
            weight = layer.weight
        return by_input(program, weight, by, into)

    return out, back


def gru_step(
    program: Program, gates: Matrix, rows: Operand, count: Operand, from_memory: Matrix, hidden: Matrix,
    own: bool = False,
) -> tuple[Matrix, Callable[[Operand, Operand, bool, Operand], Matrix]]:  # fmt: skip
    """The memory after the rows' inputs [count, H]; row b continues memory b mod M. own: row b has input b"""
    width = hidden.width
    kept, new, out = program.buffer(count, 2 * width), program.buffer(count, width), program.buffer(count, width)
    memory = from_memory.at, hidden.at, hidden.rows, width, kept, new
    program.emit(machine.GRU, ROWS, gates.at, gates.rows, rows, count, *memory, out)

    def back(grad: Operand, by_gates: Operand, joins: bool, by_hidden: Operand) -> Matrix:
        """The gradient by from_memory; that by the gates goes to `by_gates`, that by hidden joins `by_hidden`."""
        by_rows = by_gates if own else program.buffer(count, 3 * width)
        by_memory = program.buffer(hidden.rows, 3 * width)
        program.emit(machine.GRU_GRADIENT, ROWS, grad, count, *memory, by_rows, by_memory, by_hidden)
        wide = 3 * width
        if not own:
            program.emit(machine.SCATTER, columns(wide), by_rows, count, wide, rows, by_gates, gates.rows, int(joins))
        return Matrix(by_memory, hidden.rows, wide)

    return Matrix(out, count, width), back


def _norms(network: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    """The batch normalisations that are not fixed, as those of a random target are."""
    found = [m for m in network.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    return [norm for norm in found if not norm.affine or norm.weight.requires_grad]


def trains_by_batch(network: nn.Module) -> bool:
    """Whether every normalisation is batch normalisation that trains, as programs have it."""
    norms = _norms(network)
    others = any(isinstance(m, (nn.LayerNorm, nn.Identity)) for m in network.modules())
    tracked = all(n.training and n.affine and n.track_running_stats and n.momentum is not None for n in norms)
    return bool(norms) and tracked and not others


def runs_head(head: Head) -> bool:
    """Whether `run_head` takes it: with batch normalisation that trains, or with none."""
    return trains_by_batch(head) or all(isinstance(m, (Head, nn.Linear, nn.ReLU, nn.Identity)) for m in head.modules())


def count_batches(network: nn.Module, batches: int) -> None:
    for norm in _norms(network):
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(batches)
