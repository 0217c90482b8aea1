"""ETD's loss as part of a program (`contrast_kernels.py` has its formulas)."""

from __future__ import annotations

from typing import Any

import numpy as np

from deir.algorithm.layers import Head
from deir.algorithm.networks import Encoder
from deir.compiled import Array
from deir.fast import machine, model_machine, planning
from deir.fast import network_program as layers
from deir.fast.encoder_program import embed
from deir.fast.model_program import gathered
from deir.fast.program import ROWS, Operand, Program, Register


def write_contrast(program: Program, encoder: Encoder, potential: Head) -> None:
    given, buffer, width = program.given, program.buffer, encoder.features
    embedded, back_of_encoder = embed(program, encoder)
    i, j, pairs = given("earlier"), given("later"), given("all pairs")
    columns = buffer(j, width)
    x, back_of_x = gathered(program, embedded, given("earlier rows"), i)
    y, back_of_y = gathered(program, embedded, given("later rows"), j, columns)
    batch = layers.Rows(j, given("transitions"), share=given("later share"))
    potentials, back_of_potential = layers.run_head(program, potential, y, batch)
    rises, lengths, largest, logits = buffer(pairs, 1), buffer(pairs, 1), buffer(pairs, 1, np.int32), buffer(pairs, 1)
    program.emit(model_machine.DISTANCES, ROWS, i, j, x.at, width, columns, rises, lengths, largest)
    shares, own = (given("earlier share"), given("later share")), (given("own earlier"), given("own later"))
    loss = i, j, *shares, *own, given("transitions"), logits, buffer(i, 1), buffer(j, 1), given("figures")
    program.emit(model_machine.CONTRAST_ROWS, ROWS, *loss, rises, lengths, potentials.at, given("first"))
    program.emit(model_machine.CONTRAST_COLUMNS, ROWS, *loss)
    by_logits, pulls, by_potentials = buffer(pairs, 1), buffer(pairs, 1), buffer(j, 1)
    program.emit(model_machine.CONTRAST_GRADIENT, ROWS, *loss, lengths, by_logits, pulls)
    program.emit(machine.COLUMN_SUMS, ROWS, by_logits, i, j, by_potentials, 0)

    by_x, by_y, half = buffer(i, width), buffer(j, width), width // 2
    rest = width - half

    def second_half(place: Operand) -> Operand:
        assert isinstance(place, Register)
        return program.plus(half * program.dtype.itemsize, place, 1)

    program.product(second_half(by_x), pulls, second_half(y.at), (i, rest, j), apart=(None, width, width))
    program.product(second_half(by_y), pulls, second_half(x.at), (j, rest, i), "a", apart=(None, width, width))
    program.emit(model_machine.DISTANCES_GRADIENT, ROWS, i, j, x.at, width, y.at, by_logits, pulls, largest, by_x, by_y)
    back_of_potential(by_potentials, by_y)
    by = buffer(embedded.rows, width)
    back_of_x(by_x, by)
    back_of_y(by_y, by)
    back_of_encoder(by)


def prepare_pairs(inverse: Array, given: Any) -> None:
    """The distinct rows of both sides, how often each occurs, and which each pair has. inverse: [2B] embedded rows"""
    count, size = len(inverse) // 2, int(inverse.max()) + 1
    for name, part in (("earlier", inverse[:count]), ("later", inverse[count:])):
        rows, shares, own = planning.occurring_rows(part, size)
        given.at(f"{name} rows", rows)
        given.at(f"{name} share", shares)
        given.at(f"own {name}", own)
        given.numbers[name] = len(rows)
    first = given.at("first", np.empty(len(rows), np.int64))
    first[own[::-1]] = np.arange(count)[::-1]  # of several pairs the last that is written: the first
    given.numbers["all pairs"] = given.numbers["earlier"] * given.numbers["later"]
