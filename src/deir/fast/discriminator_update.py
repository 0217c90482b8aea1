"""The update of DEIR's discriminator as a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deir.algorithm.rewards.deir import Deir
from deir.algorithm.rewards.deir_rnd import DeirRnd
from deir.algorithm.types import Batch, Rows
from deir.compiled import Array
from deir.fast import machine
from deir.fast import network_program as layers
from deir.fast.distillation_program import prepare_distillation, write_distillation
from deir.fast.flat_adam import FlatAdam
from deir.fast.model_program import Figures, steps
from deir.fast.network_program import Matrix
from deir.fast.program import Operand, Program
from deir.fast.threads import share_out
from deir.fast.updates import PARTS, Given, kinds_of, plan, run_steps, step, written

FIGURES = 5  # that a step leaves


def train_discriminator(reward: Deir, optimizer: FlatAdam, batches: Sequence[Batch]) -> dict[str, Array]:
    """`Deir.loss`, or with random distillation beside it; gives each figure of each step."""
    dtype, rnd = optimizer.values.dtype, reward.rnd if isinstance(reward, DeirRnd) else None
    given = [Given() for _ in batches]

    def write(program: Program) -> None:
        figures = Figures(program, FIGURES)
        rows, twice = program.given("transitions"), program.given("offered")
        sides = steps(program, reward, twice)
        taken = Matrix(program.given("taken"), rows, reward.actions.width)
        logits, back_of_head = _head_of_parts(program, reward.discriminator, [sides.now, sides.then, taken], rows)
        by_logits = program.buffer(twice, 1)
        program.emit(
            machine.DISCRIMINATION, PARTS, logits.at, rows, program.given("differs"), program.given("different"),
            by_logits, *figures.next(4),
        )  # fmt: skip
        back_of_head(by_logits, [sides.by_now, sides.by_then])
        sides.back()
        if rnd is not None:
            write_distillation(program, rnd, figures.next(1))
        step(program, optimizer)

    kinds = kinds_of(reward.encoder, batches[0].observations.table, dtype)

    def prepare(index: int) -> None:
        _prepare_transitions(reward, batches[index], kinds, dtype, given[index])
        if rnd is not None:
            prepare_distillation(batches[index], given[index])

    share_out(prepare, len(batches))
    program = written(optimizer, None, write)
    totals = run_steps(program, reward, optimizer, given, np.zeros((len(batches), PARTS, FIGURES)))
    different = np.array([batch.numbers["different"] / batch.numbers["transitions"] for batch in given])
    return {
        "model_loss": 0.5 * (totals[:, 0] + totals[:, 1]) + totals[:, 4],
        "discriminator_accuracy": 0.5 * (totals[:, 2] + totals[:, 3]),
        "fake_valid_rate": different,
        **({} if rnd is None else {"rnd_loss": totals[:, 4]}),
    }


def _prepare_transitions(reward: Deir, batch: Batch, kinds: Tensor | None, dtype: torch.dtype, given: Given) -> None:
    assert isinstance(batch.fakes, Rows) and batch.fake_differs is not None
    count, table = len(batch.actions), batch.observations.table
    ids = torch.cat([batch.observations.ids, batch.next_observations.ids, batch.fakes.ids])
    plan(reward.encoder, Rows(table, ids), kinds, given)
    inverse = given.numbers["inverse"]
    given.numbers |= {"transitions": count, "offered": 2 * count, "now": inverse, "then": inverse + 8 * count}
    if reward.gru is not None:
        assert batch.hidden is not None
        given.tensor("hidden", batch.hidden)
    given.tensor("taken", reward.actions.vector(batch.actions).to(dtype))
    given.tensor("differs", batch.fake_differs)
    given.numbers["different"] = int(batch.fake_differs.sum())
    then = np.arange(2 * count)
    given.at("parts", np.stack([then % count, count + then, 3 * count + then % count], 1))


def _head_of_parts(program: Program, head: Any, parts: list[Matrix], rows: Operand) -> Any:
    """The discriminator on rows of a trajectory, the one offered after it, and an action: each part is multiplied once.

    parts: [B, H], [2B, H], [B, A] -> [2B, 1]
    """
    first, norm = head[0], head[1]
    assert isinstance(first, nn.Linear)
    outputs, size = first.out_features, program.dtype.itemsize
    whole, twice = first.in_features, program.given("offered")
    fours = program.plus(0, program.given("transitions"), 4)
    products = program.buffer(fours, outputs)
    places = [program.plus(products, program.given("transitions"), n * outputs * size) for n in (0, 1, 3)]
    begins = np.cumsum([0, *(part.width for part in parts)])[:-1] * size
    weight, by_weight = program.at(first.weight), program.at(first.weight.grad)
    for part, place, begin in zip(parts, places, begins.tolist(), strict=True):
        sizes = part.rows, outputs, part.width
        program.product(place, part.at, weight + begin, sizes, "b", apart=(None, whole, None))
    batch = layers.Rows(twice, twice, program.given("parts"), 3)
    x, back_of_norm = layers.normalised(program, norm, Matrix(products, fours, outputs), batch, first.bias)
    out, back_of_rest = layers.run_head(program, head[3:], x)

    def back(grad: Operand, into: list[Operand]) -> None:
        by_products = back_of_norm(back_of_rest(grad, None).at).at
        by_places = [program.plus(by_products, program.given("transitions"), n * outputs * size) for n in (0, 1, 3)]
        for number, (part, place, begin) in enumerate(zip(parts, by_places, begins.tolist(), strict=True)):
            sizes = outputs, part.width, part.rows
            program.product(by_weight + begin, place, part.at, sizes, "a", apart=(None, None, whole), jobs=2)
            if number < 2:  # nothing wants that of the action
                sizes = part.rows, part.width, outputs
                program.product(into[number], place, weight + begin, sizes, apart=(None, whole, None))

    return out, back
