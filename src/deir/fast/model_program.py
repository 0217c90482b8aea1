"""What reward models are made of, as parts of a program (`algorithm/rewards/shared.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import nn

from deir.algorithm.layers import Head
from deir.algorithm.rewards.shared import TrajectoryModel
from deir.fast import machine, model_machine
from deir.fast import network_program as layers
from deir.fast.encoder_program import embed
from deir.fast.network_program import Matrix, Rows
from deir.fast.program import ROWS, Operand, Program, columns


class Steps(NamedTuple):
    """e_traj_t and e_traj_{t+1}, and where their gradients belong: both have one before `back` carries them on."""

    now: Matrix  # [B, H]
    then: Matrix
    by_now: Operand
    by_then: Operand
    back: Callable[[], None]


def steps(program: Program, reward: TrajectoryModel, offered: Operand) -> Steps:
    """`TrajectoryModel.transitions`; `offered`: how many rows follow, of which row b continues trajectory b mod B."""
    embedded, back_of_encoder = embed(program, reward.encoder)
    rows, first, second = program.given("transitions"), program.given("now"), program.given("then")
    by_now, by_then = program.buffer(rows, reward.width), program.buffer(offered, reward.width)
    cell = reward.gru
    if cell is None:
        now, back_of_now = gathered(program, embedded, first, rows)
        then, back_of_then = gathered(program, embedded, second, offered)

        def back() -> None:
            by = program.buffer(embedded.rows, embedded.width)
            back_of_now(by_now, by)
            back_of_then(by_then, by)
            back_of_encoder(by)

        return Steps(now, then, by_now, by_then, back)
    stored = Matrix(program.given("hidden"), rows, reward.width)
    gates, back_of_inputs = layers.linear(program, cell, embedded, "ih")
    memory, back_of_first_memory = layers.linear(program, cell, stored, "hh")
    now, back_of_first = layers.gru_step(program, gates, first, rows, memory, stored)
    memory, back_of_second_memory = layers.linear(program, cell, now, "hh")
    then, back_of_second = layers.gru_step(program, gates, second, offered, memory, now)

    def back_through_time() -> None:
        by_gates = program.buffer(gates.rows, gates.width)
        by_memory = back_of_second(by_then, by_gates, False, by_now)
        back_of_second_memory(by_memory.at)
        layers.by_input(program, cell.weight_hh, by_memory, by_now)
        back_of_first_memory(back_of_first(by_now, by_gates, True, 0).at)
        back_of_encoder(layers.by_input(program, cell.weight_ih, back_of_inputs(by_gates)).at)

    return Steps(now, then, by_now, by_then, back_through_time)


def gathered(
    program: Program, table: Matrix, rows: Operand, count: Operand, flipped: Operand = 0
) -> tuple[Matrix, Callable[[Operand, Operand], None]]:
    """table[rows] [count, F], and `flipped` [F, count] if that is given; its gradient goes to or joins the table's."""
    out, width = program.buffer(count, table.width), table.width
    program.emit(model_machine.GATHER, ROWS, table.at, table.rows, width, rows, count, out, flipped)

    def back(grad: Operand, by: Operand) -> None:
        joins = int(joined(program, by))
        program.emit(machine.SCATTER, columns(width), grad, count, width, rows, by, table.rows, joins)

    return Matrix(out, count, width), back


def joined(program: Program, place: Operand) -> bool:
    """Whether another gradient is there already."""
    before = place in program.reached
    program.reached.add(place)
    return before


def head_of_parts(
    program: Program, head: Head, parts: Sequence[Matrix], batch: Rows | None = None
) -> tuple[Matrix, Callable[[Operand, Sequence[Operand | None]], None]]:
    """The head on rows that are made of parts, side by side. The gradients of the parts go to or join what is given;
    None: not wanted."""
    first, norm, rest = head[0], head[1], head[3:]
    assert isinstance(first, nn.Linear) and first.weight.grad is not None and isinstance(rest, Head)
    size, whole, outputs, rows = program.dtype.itemsize, first.in_features, first.out_features, parts[0].rows
    weight, by_weight, products = program.at(first.weight), program.at(first.weight.grad), program.buffer(rows, outputs)
    begins = [size * sum(part.width for part in parts[:number]) for number in range(len(parts))]
    for part, begin in zip(parts, begins, strict=True):
        sizes = rows, outputs, part.width
        program.product(products, part.at, weight + begin, sizes, "b", joins=begin > 0, apart=(None, whole, None))
    x, back_of_norm = layers.normalised_layer(program, norm, Matrix(products, rows, outputs), first.bias, batch)
    out, back_of_rest = layers.run_head(program, rest, x, batch)

    def back(grad: Operand, into: Sequence[Operand | None]) -> None:
        by = back_of_norm(back_of_rest(grad, None).at).at
        for part, begin, place in zip(parts, begins, into, strict=True):
            sizes = outputs, part.width, rows
            program.product(by_weight + begin, by, part.at, sizes, "a", apart=(None, None, whole), jobs=2)
            if place is not None:
                joins, sizes = joined(program, place), (rows, part.width, outputs)
                program.product(place, by, weight + begin, sizes, joins=joins, apart=(None, whole, None))

    return out, back


Place = tuple[Operand, int]  # where the first job's figures are, and how many the next job's are away


class Figures:
    """The numbers that the losses of a step leave for each batch."""

    def __init__(self, program: Program, count: int) -> None:
        self.program, self.count, self.used = program, count, 0

    def next(self, count: int) -> Place:
        self.used += count
        assert self.used <= self.count
        return self.program.plus(8 * (self.used - count), self.program.given("figures"), 1), self.count


def inverse_loss(program: Program, head: Head, sides: Steps, weight: float, figures: Place) -> None:
    """`InverseModel.loss` of categories and its gradient."""
    logits, back = head_of_parts(program, head, [sides.now, sides.then])
    by = program.buffer(logits.rows, logits.width)
    program.emit(
        model_machine.CATEGORIES, ROWS, logits.at, logits.rows, logits.width, program.given("actions"), by, *figures,
        settings=(weight,),
    )  # fmt: skip
    back(by, [sides.by_now, sides.by_then])


def forward_loss(program: Program, head: Head, sides: Steps, actions: int, weight: float, figures: Place) -> None:
    """The mean of `ForwardModel.errors` and its gradient by both sides. actions: the width of an action"""
    taken = Matrix(program.given("taken"), sides.now.rows, actions)
    guesses, back = head_of_parts(program, head, [sides.now, taken])
    if not joined(program, sides.by_then):
        program.emit(machine.FILL, ROWS, sides.by_then, sides.then.rows, sides.then.width, 0)
    by = squared_errors(program, guesses, sides.then, figures, 0.5, weight, by_targets=sides.by_then)
    back(by, [sides.by_now, None])


def squared_errors(
    program: Program, guesses: Matrix, targets: Matrix, figures: Place, factor: float, weight: float = 1.0,
    rows: Operand = 0, share: Operand = 0, by_targets: Operand = 0,
) -> Operand:  # fmt: skip
    """The mean of factor |guess - target|²; gives the gradient by the guesses, that by the targets joins `by_targets`.

    rows: [P] of the targets, share: [P] of each guess in the batch
    """
    by = program.buffer(guesses.rows, guesses.width)
    program.emit(
        model_machine.SQUARED_ERRORS, ROWS, guesses.at, guesses.rows, guesses.width, targets.at, targets.rows, rows,
        share, by, by_targets, *figures, settings=(factor, weight),
    )  # fmt: skip
    return by
