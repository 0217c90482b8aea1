"""The updates of the other reward models as programs: inverse and forward models, ensembles, random distillation, ETD.

Each writes the loss of its file in `algorithm/rewards`. What is not written here learns through autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from deir.algorithm.actions import DiscreteActions
from deir.algorithm.rewards.ablations import DeirForward, DeirInverse
from deir.algorithm.rewards.base import IntrinsicReward
from deir.algorithm.rewards.deir import Deir
from deir.algorithm.rewards.deir_rnd import DeirRnd
from deir.algorithm.rewards.disagreement import Disagreement
from deir.algorithm.rewards.e3b import E3b
from deir.algorithm.rewards.etd import Etd
from deir.algorithm.rewards.icm import Icm
from deir.algorithm.rewards.ngu import Ngu
from deir.algorithm.rewards.ride import Ride
from deir.algorithm.rewards.rnd import Rnd
from deir.algorithm.rewards.shared import RandomDistillation, TrajectoryModel
from deir.algorithm.types import Batch, ObservationTable, Rows
from deir.compiled import Array
from deir.fast import network_program as layers
from deir.fast.blas import product
from deir.fast.contrast_program import prepare_pairs, write_contrast
from deir.fast.discriminator_update import train_discriminator
from deir.fast.distillation_program import prepare_distillation, write_distillation
from deir.fast.flat_adam import FlatAdam
from deir.fast.model_program import (
    Figures,
    forward_loss,
    gathered,
    head_of_parts,
    inverse_loss,
    squared_errors,
    steps,
)
from deir.fast.network_program import Matrix
from deir.fast.program import Program
from deir.fast.threads import share_out
from deir.fast.updates import PARTS, Given, kinds_of, plan, run_steps, step, trains_whole, written

Update = Callable[[Any, FlatAdam, Sequence[Batch]], dict[str, Array]]


def update_of(reward: IntrinsicReward, table: ObservationTable, optimizer: Any) -> Update | None:
    """What trains this model as a program, if anything does."""
    update, rnd = UPDATES.get(type(reward).loss), getattr(reward, "rnd", None)
    if update is None or not isinstance(optimizer, FlatAdam) or not _as_written(reward):
        return None
    if rnd is not None and (type(rnd) is not RandomDistillation or rnd.encoder is not None):
        return None  # an encoder of its own would need a second plan
    if isinstance(reward, TrajectoryModel):
        if not isinstance(reward, (Deir, Etd)) and not isinstance(reward.actions, DiscreteActions):
            return None
        if not isinstance(reward, Disagreement) or reward.inverse_model is not None:
            return update if trains_whole(reward, reward.encoder, table, optimizer) else None
    able = layers.trains_by_batch(reward) and product(optimizer.values.dtype) is not None  # nothing is encoded
    return update if able else None


def _as_written(reward: IntrinsicReward) -> bool:
    """Whether the methods that its loss calls are ours, and not those of a class derived from it."""
    if not isinstance(reward, TrajectoryModel):
        return True
    parts = ("transitions", "observe", "advance")
    return all(getattr(type(reward), part) is getattr(TrajectoryModel, part) for part in parts)


def _train(
    reward: IntrinsicReward, optimizer: FlatAdam, batches: Sequence[Batch], figures: int,
    write: Callable[[Program], None], prepare: Callable[[Batch, Given], None],
) -> Array:  # fmt: skip
    """Every step; gives its figures [M, figures]."""
    given = [Given() for _ in batches]

    def prepare_one(index: int) -> None:
        batch = batches[index]
        given[index].numbers["transitions"] = len(batch.actions)
        given[index].tensor("actions", batch.actions)
        prepare(batch, given[index])

    def write_whole(program: Program) -> None:
        write(program)
        step(program, optimizer)

    share_out(prepare_one, len(batches))
    program = written(optimizer, None, write_whole)
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


def train_steps(reward: Any, optimizer: FlatAdam, batches: Sequence[Batch]) -> dict[str, Array]:
    """An inverse model, a forward model, or both; random distillation may learn beside them."""
    dtype = optimizer.values.dtype
    kinds = kinds_of(reward.encoder, batches[0].observations.table, dtype)
    inverse, forward, rnd = (getattr(reward, name, None) for name in ("inverse_model", "forward_model", "rnd"))
    weight = 0.0 if forward is None else getattr(reward, "forward_weight", 1.0)

    def write(program: Program) -> None:
        figures, sides = Figures(program, 4), steps(program, reward, program.given("transitions"))
        if inverse is not None:
            inverse_loss(program, inverse.head, sides, 1 - weight, figures.next(2))
        if forward is not None:
            forward_loss(program, forward.head, sides, reward.actions.width, weight, figures.next(1))
        sides.back()
        if rnd is not None:
            write_distillation(program, rnd, figures.next(1))

    def prepare(batch: Batch, given: Given) -> None:
        _prepare_steps(reward, batch, kinds, given)
        given.tensor("taken", reward.actions.vector(batch.actions).to(dtype))
        if rnd is not None:
            prepare_distillation(batch, given)

    totals = list(_train(reward, optimizer, batches, 4, write, prepare).T)
    found: dict[str, Array] = {}
    found |= {"inverse_loss": totals.pop(0), "inverse_accuracy": totals.pop(0)} if inverse is not None else {}
    found |= {"forward_loss": totals.pop(0)} if forward is not None else {}
    found |= {"rnd_loss": totals.pop(0)} if rnd is not None else {}
    parts = {"inverse_loss": 1 - weight, "forward_loss": weight, "rnd_loss": 1.0}
    loss: Any = sum(share * found[name] for name, share in parts.items() if name in found)
    return {"model_loss": loss, **found}


def train_distillation(reward: Rnd, optimizer: FlatAdam, batches: Sequence[Batch]) -> dict[str, Array]:
    """`RandomDistillation.loss` alone."""

    def write(program: Program) -> None:
        write_distillation(program, reward.rnd, Figures(program, 1).next(1))

    totals = _train(reward, optimizer, batches, 1, write, prepare_distillation).T
    return {"model_loss": totals[0], "rnd_loss": totals[0]}


def train_ensemble(reward: Disagreement, optimizer: FlatAdam, batches: Sequence[Batch]) -> dict[str, Array]:
    """`Disagreement.loss`: each model on the distinct transitions that it drew."""
    dtype, models, inverse = optimizer.values.dtype, reward.ensemble, reward.inverse_model
    kinds = None if inverse is None else kinds_of(reward.encoder, batches[0].observations.table, dtype)

    def write(program: Program) -> None:
        figures, rows = Figures(program, len(models) + 2), program.given("transitions")
        taken = Matrix(program.given("taken"), rows, reward.actions.width)
        if inverse is None:
            now = then = Matrix(program.given("embeddings"), program.given("table"), reward.width)
        else:
            sides = steps(program, reward, rows)
            now, then = sides.now, sides.then
            inverse_loss(program, inverse.head, sides, 1.0, figures.next(2))
            sides.back()
        for k, model in enumerate(models):
            count, share = program.given(f"count {k} drawn"), program.given(f"share {k} drawn")
            parts = (now, program.given(f"now {k}")), (taken, program.given(f"action {k}"))
            read = [gathered(program, table, places, count)[0] for table, places in parts]
            guesses, back = head_of_parts(program, model.head, read, layers.Rows(count, rows, share=share))
            places = program.given(f"then {k}")
            by = squared_errors(program, guesses, then, figures.next(1), 0.5, rows=places, share=share)
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

    totals = _train(reward, optimizer, batches, len(models) + 2, write, prepare).T
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
    kinds = kinds_of(reward.encoder, batches[0].observations.table, optimizer.values.dtype)

    def write(program: Program) -> None:
        write_contrast(program, reward.encoder, reward.potential)

    def prepare(batch: Batch, given: Given) -> None:
        assert batch.later is not None
        ids = torch.cat([batch.observations.ids, batch.later.ids])
        prepare_pairs(plan(reward.encoder, Rows(batch.observations.table, ids), kinds, given), given)

    totals = _train(reward, optimizer, batches, 4, write, prepare).T
    return {"model_loss": totals[0] + totals[3], "contrastive_accuracy": totals[1], "pair_distance": totals[2]}


UPDATES: dict[Any, Update] = {
    Deir.loss: train_discriminator,
    DeirRnd.loss: train_discriminator,
    DeirInverse.loss: train_steps,
    DeirForward.loss: train_steps,
    Icm.loss: train_steps,
    Ride.loss: train_steps,
    Ngu.loss: train_steps,
    E3b.loss: train_steps,
    Rnd.loss: train_distillation,
    Disagreement.loss: train_ensemble,
    Etd.loss: train_contrast,
}
