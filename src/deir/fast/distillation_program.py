"""Random distillation as part of a program."""

from __future__ import annotations

from deir.algorithm.rewards.shared import RandomDistillation
from deir.algorithm.types import Batch
from deir.fast import network_program as layers
from deir.fast import planning
from deir.fast.model_program import Place, gathered, head_of_parts, squared_errors
from deir.fast.network_program import Matrix
from deir.fast.program import Program
from deir.fast.updates import Given


def write_distillation(program: Program, rnd: RandomDistillation, figures: Place) -> None:
    """`RandomDistillation.loss` on the policy's embeddings: each distinct one once, by how often it occurs."""
    predictor, first = rnd.predictor, rnd.predictor[0]
    count, rows, share = program.given("seen"), program.given("seen rows"), program.given("seen share")
    table = Matrix(program.given("embeddings"), program.given("table"), first.in_features)  # type: ignore[arg-type]
    inputs, _ = gathered(program, table, rows, count)
    batch = layers.Rows(count, program.given("transitions"), share=share)
    guesses, back = head_of_parts(program, predictor, [inputs], batch)
    targets = Matrix(program.given("targets"), table.rows, guesses.width)
    by = squared_errors(program, guesses, targets, figures, 1 / guesses.width, rows=rows, share=share)
    back(by, [None])


def prepare_distillation(batch: Batch, given: Given) -> None:
    assert batch.embeddings is not None and batch.targets is not None and batch.next_ids is not None
    rows, shares, _ = planning.occurring_rows(batch.next_ids.numpy(), len(batch.targets))
    given.at("seen rows", rows)
    given.at("seen share", shares)
    given.numbers |= {"seen": len(rows), "table": len(batch.targets)}
    given.tensor("embeddings", batch.embeddings)
    given.tensor("targets", batch.targets)
