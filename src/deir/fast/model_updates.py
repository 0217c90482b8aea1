"""The updates of the other reward models as programs: inverse and forward models, ensembles, random distillation, ETD.

Each writes the loss of its file in `algorithm/rewards`. What is not written here learns through autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from deir.algorithm.actions import DiscreteActions
from deir.algorithm.rewards.base import IntrinsicReward
from deir.algorithm.rewards.deir import Deir
from deir.algorithm.rewards.disagreement import Disagreement
from deir.algorithm.rewards.e3b import E3b
from deir.algorithm.rewards.etd import Etd
from deir.algorithm.rewards.icm import Icm
from deir.algorithm.rewards.ngu import Ngu
from deir.algorithm.rewards.ride import Ride
from deir.algorithm.rewards.shared import RandomDistillation, TrajectoryModel
from deir.algorithm.types import Batch, ObservationTable, Rows
from deir.compiled import Array
from deir.fast import network_program as layers
from deir.fast import planning
from deir.fast.blas import product
from deir.fast.contrast_program import prepare_pairs, write_contrast
from deir.fast.flat_adam import FlatAdam
from deir.fast.model_program import Figures, gathered, head_of_parts, inverse_loss, squared_errors, steps
from deir.fast.network_program import Matrix
from deir.fast.program import Program
from deir.fast.threads import in_parallel
from deir.fast.updates import PARTS, Given, kinds_of, plan, run_steps, train_discriminator, trains_whole

PARTS_OF_LOSSES = ("transitions", "observe", "advance")  # methods that the losses below call
Update = Callable[[Any, FlatAdam, Sequence[Batch]], dict[str, Array]]


def update_of(reward: IntrinsicReward, table: ObservationTable, optimizer: Any) -> Update | None:
    """What trains this model as a program, if anything does."""
    found = UPDATES.get(type(reward).loss)
    if found is None or not isinstance(reward, TrajectoryModel) or not isinstance(optimizer, FlatAdam):
        return None
    if any(getattr(type(reward), part) is not getattr(TrajectoryModel, part) for part in PARTS_OF_LOSSES):
        return None  # someone's own
    if isinstance(reward, Deir):
        fits = reward.gru is not None
    else:
        rnd = getattr(reward, "rnd", None)
        fits = isinstance(reward.actions, DiscreteActions) and (rnd is None or rnd.encoder is None)
    if isinstance(reward, Disagreement) and reward.inverse_model is None:  # nothing is encoded
        able = layers.trains_by_batch(reward) and product(optimizer.values.dtype) is not None
    else:
        able = trains_whole(reward, reward.encoder, table, optimizer)
    return found if fits and able else None


def _train(
    reward: TrajectoryModel, optimizer: FlatAdam, batches: Sequence[Batch], program: Program, figures: int,
    prepare: Callable[[Batch, Given], None],
) -> Array:  # fmt: skip
    """Every step; gives its figures [M, figures]."""
    given = [Given() for _ in batches]

    def prepare_one(index: int) -> None:
        batch = batches[index]
        given[index].numbers["transitions"] = len(batch.actions)
        given[index].tensor("actions", batch.actions)
        prepare(batch, given[index])

    in_parallel(prepare_one, range(len(batches)))
    return run_steps(program, reward, optimizer, given, np.zeros((len(batches), PARTS, figures)))


def _prepare_steps(reward: TrajectoryModel, batch: Batch, kinds: Any, given: Given) -> None:
    """What `model_program.steps` reads."""
    ids = torch.cat([batch.observations.ids, batch.next_observations.ids])
    plan(reward.encoder, Rows(batch.observations.table, ids), kinds, given)
    inverse = given.numbers["inverse"]
    given.numbers |= {"now": inverse, "then": inverse + 8 * len(batch.actions)}
    if reward.gru is not None:
        assert batch.hidden is not None
        given.tensor("hidden", batch.hidden)


def train_inverse_model(
    reward: Icm | Ride | Ngu | E3b, optimizer: FlatAdam, batches: Sequence[Batch]
) -> dict[str, Array]:
    """The inverse model alone, with a forward model beside it, or with random distillation."""
    dtype = optimizer.values.dtype
    program, kinds = Program(dtype), kinds_of(reward.encoder, batches[0].observations.table, dtype)
    figures, rows = Figures(program, 3), program.given("transitions")
    weight = reward.forward_weight if isinstance(reward, (Icm, Ride)) else 0.0
    sides = steps(program, reward, rows)
    inverse_loss(program, reward.inverse_model.head, sides, 1 - weight, figures)
    rnd = reward.rnd if isinstance(reward, Ngu) else None
    if isinstance(reward, (Icm, Ride)):
        taken = Matrix(program.given("taken"), rows, reward.actions.width)
        guesses, back = head_of_parts(program, reward.forward_model.head, [sides.now, taken])
        by = squared_errors(program, guesses, sides.then, figures, 0.5, weight, by_targets=sides.by_then)
        back(by, [sides.by_now, None])
    elif rnd is not None:
        _write_distillation(program, rnd, figures)
    sides.back()

    def prepare(batch: Batch, given: Given) -> None:
        _prepare_steps(reward, batch, kinds, given)
        given.tensor("taken", reward.actions.vector(batch.actions).to(dtype))
        if rnd is not None:
            _prepare_distillation(batch, given)

    totals = _train(reward, optimizer, batches, program, 3, prepare).T
    found = {"inverse_loss": totals[0], "inverse_accuracy": totals[1]}
    if isinstance(reward, (Icm, Ride)):
        return {"model_loss": (1 - weight) * totals[0] + weight * totals[2], **found, "forward_loss": totals[2]}
    return {"model_loss": totals[0] + totals[2], **found, **({} if rnd is None else {"rnd_loss": totals[2]})}


def _write_distillation(program: Program, rnd: RandomDistillation, figures: Figures) -> None:
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


def _prepare_distillation(batch: Batch, given: Given) -> None:
    assert batch.embeddings is not None and batch.targets is not None and batch.next_ids is not None
    rows, shares, _ = planning.occurring_rows(batch.next_ids.numpy(), len(batch.targets))
    given.at("seen rows", rows)
    given.at("seen share", shares)
    given.numbers |= {"seen": len(rows), "table": len(batch.targets)}
    given.tensor("embeddings", batch.embeddings)
    given.tensor("targets", batch.targets)


def train_ensemble(reward: Disagreement, optimizer: FlatAdam, batches: Sequence[Batch]) -> dict[str, Array]:
    """`Disagreement.loss`: each model on the distinct transitions that it drew."""
    dtype, models, inverse = optimizer.values.dtype, reward.ensemble, reward.inverse_model
    program, kinds = Program(dtype), None
    figures, rows = Figures(program, len(models) + 2), program.given("transitions")
    taken = Matrix(program.given("taken"), rows, reward.actions.width)
    if inverse is None:
        now = then = Matrix(program.given("embeddings"), program.given("table"), reward.width)
    else:
        kinds = kinds_of(reward.encoder, batches[0].observations.table, dtype)
        sides = steps(program, reward, rows)
        now, then = sides.now, sides.then
        inverse_loss(program, inverse.head, sides, 1.0, figures)
        sides.back()
    for k, model in enumerate(models):
        count, share = program.given(f"count {k} drawn"), program.given(f"share {k} drawn")
        parts = (now, program.given(f"now {k}")), (taken, program.given(f"action {k}"))
        read = [gathered(program, table, places, count)[0] for table, places in parts]
        guesses, back = head_of_parts(program, model.head, read, layers.Rows(count, rows, share=share))
        by = squared_errors(program, guesses, then, figures, 0.5, rows=program.given(f"then {k}"), share=share)
        back(by, [None, None])

    def prepare(batch: Batch, given: Given) -> None:
        given.tensor("taken", reward.actions.vector(batch.actions).to(dtype))
        if inverse is None:
            assert batch.embeddings is not None
            given.tensor("embeddings", batch.embeddings)
            given.numbers["table"] = len(batch.embeddings)
        else:
            _prepare_steps(reward, batch, kinds, given)
        _prepare_draws(batch, given, inverse is None)

    totals = _train(reward, optimizer, batches, program, figures.count, prepare).T
    if inverse is None:
        forward = totals[: len(models)].sum(0)
        return {"model_loss": forward, "forward_loss": forward / len(models)}
    forward = totals[2:].sum(0)
    found = {"inverse_loss": totals[0], "inverse_accuracy": totals[1], "forward_loss": forward / len(models)}
    return {"model_loss": totals[0] + forward, **found}


def _prepare_draws(batch: Batch, given: Given, of_table: bool) -> None:
    """The distinct transitions of each model's draws, and how often it drew each.

    of_table: features are rows of a table; otherwise those of the batch itself
    """
    assert batch.draws is not None
    before, after, actions = batch.observations.ids.numpy(), batch.next_observations.ids.numpy(), batch.actions.numpy()
    if of_table:
        assert batch.next_ids is not None
        after = batch.next_ids.numpy()
    names = (before * (actions.max() + 1) + actions) * (after.max() + 1) + after
    for k, drawn in enumerate(batch.draws.numpy()):
        _, places, counts = np.unique(names[drawn], return_index=True, return_counts=True)
        chosen = drawn[places]
        given.numbers[f"count {k} drawn"] = len(chosen)
        given.at(f"share {k} drawn", counts / len(drawn))
        given.at(f"action {k}", chosen)
        given.at(f"now {k}", before[chosen] if of_table else chosen)
        given.at(f"then {k}", after[chosen] if of_table else chosen)


def train_contrast(reward: Etd, optimizer: FlatAdam, batches: Sequence[Batch]) -> dict[str, Array]:
    """`Etd.loss`"""
    program, dtype = Program(optimizer.values.dtype), optimizer.values.dtype
    kinds = kinds_of(reward.encoder, batches[0].observations.table, dtype)
    write_contrast(program, reward.encoder, reward.potential)

    def prepare(batch: Batch, given: Given) -> None:
        assert batch.later is not None
        ids = torch.cat([batch.observations.ids, batch.later.ids])
        prepare_pairs(plan(reward.encoder, Rows(batch.observations.table, ids), kinds, given), given)

    totals = _train(reward, optimizer, batches, program, 4, prepare).T
    return {"model_loss": totals[0] + totals[3], "contrastive_accuracy": totals[1], "pair_distance": totals[2]}


UPDATES: dict[Any, Update] = {
    Deir.loss: train_discriminator,
    Icm.loss: train_inverse_model,
    Ride.loss: train_inverse_model,
    Ngu.loss: train_inverse_model,
    E3b.loss: train_inverse_model,
    Disagreement.loss: train_ensemble,
    Etd.loss: train_contrast,
}
