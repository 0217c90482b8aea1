"""Whole updates as programs: every gradient step of an update in one call. What all have in common, and PPO's.

`machine.run` works through them without Python's lock and with every thread that is free. What is left to Python is to
say which observations and patches each mini-batch holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deir.algorithm import ppo
from deir.algorithm.actions import DiscreteActions
from deir.algorithm.networks import Encoder, GridEncoder, VectorEncoder
from deir.algorithm.optimizer import diverged
from deir.algorithm.policy import Policy
from deir.algorithm.types import Metrics, ObservationTable, PolicyBatch, Rows
from deir.compiled import Array
from deir.config import PPOConfig
from deir.fast import machine, planning
from deir.fast import network_program as layers
from deir.fast.blas import product
from deir.fast.encoder_program import embed
from deir.fast.flat_adam import FlatAdam
from deir.fast.network_program import Matrix
from deir.fast.patches import PatchTable
from deir.fast.program import Program
from deir.fast.threads import in_parallel
from deir.fast.vector_encoder import runs_on_vectors

PARTS = 4  # jobs of a loss and of Adam
Numbers = dict[str, int]


class Given:
    """The registers of one batch, and the arrays they point to."""

    def __init__(self) -> None:
        self.numbers: Numbers = {}
        self.kept: list[Any] = []

    def at(self, name: str, array: Array) -> Array:
        self.numbers[name] = array.__array_interface__["data"][0]
        self.kept.append(array)
        return array

    def tensor(self, name: str, tensor: Tensor) -> None:
        tensor = tensor.detach().contiguous()
        self.numbers[name] = tensor.data_ptr()
        self.kept.append(tensor)


def trains_whole(network: nn.Module, encoder: Encoder, table: ObservationTable, optimizer: Any) -> bool:
    """Whether updates of a network with this encoder can be programs: batch normalisation on views that repeat."""
    if not (isinstance(table, PatchTable) and table.view is None and isinstance(optimizer, FlatAdam)):
        return False
    fits = type(encoder) is GridEncoder or (
        isinstance(encoder, VectorEncoder) and runs_on_vectors(encoder) and isinstance(encoder.body[0], nn.BatchNorm1d)
    )
    return fits and layers.trains_by_batch(network) and product(optimizer.values.dtype) is not None


def trains_policy(policy: Policy, table: ObservationTable, optimizer: Any) -> bool:
    plain = type(policy) is Policy and type(policy.actions) is DiscreteActions and policy.free is None
    return plain and trains_whole(policy, policy.encoder, table, optimizer)


def plan(encoder: Encoder, rows: Rows, kinds: Tensor | None, given: Given) -> Array:
    """Integer work: which observations and patches a batch of rows [B] holds, and how often.

    Gives which of the distinct observations each row is. [B]
    """
    table, names = rows.table, rows.ids.numpy()
    assert isinstance(table, PatchTable)
    given.numbers["batch"] = len(names)
    if kinds is None:
        observations, weights, inverse = planning.occurring_rows(names, len(table.distinct))
        given.at("inverse", inverse)
        given.at("observation share", weights)
        given.at("rows", table.distinct.numpy()[observations])
        given.numbers["observations"] = len(observations)
        return inverse
    count, cells, levels = len(kinds), table.cells_of_observation, table.levels
    made = planning.batch_plan(names, cells, count, *map(tuple, levels), *table.placed)
    inverse, weights, cell_shares, *patches, begins, placed, slots = made
    given.at("inverse", inverse)
    given.at("observation share", weights)
    given.at("cell share", cell_shares)
    given.tensor("cell kinds", kinds)
    given.numbers |= {"cells": count, "cells and padding": count + 1, "cell total": len(names) * cells.shape[1]}
    for number, level in enumerate(levels):
        corners, shares = patches[2 * number : 2 * number + 2]
        given.at(f"corners {number}", corners)
        given.at(f"share {number}", shares)
        given.numbers[f"count {number}"] = len(corners)
        given.numbers[f"total {number}"] = len(names) * level.of_observation.shape[1]
    given.at("bounds", begins)
    given.at("patches", placed)
    given.at("places", slots)
    given.numbers |= {"observations": len(weights), "slots": len(placed)}
    return inverse


def _step(program: Program, optimizer: FlatAdam) -> None:
    """Adam, clipped by the global norm."""
    size, config = optimizer.values.numel(), optimizer.config
    squares, grads = program.buffer(PARTS, 1, np.float64), program.at(optimizer.gradients)
    program.emit(machine.SQUARES, PARTS, grads, size, squares)
    program.emit(
        machine.ADAM, PARTS, program.at(optimizer.values), grads, program.at(optimizer.exp_avg),
        program.at(optimizer.exp_avg_sq), size, squares, program.given("step"),
        settings=(config.learning_rate, config.adam_beta1, config.adam_beta2, config.adam_eps, config.max_grad_norm),
    )  # fmt: skip


def run_steps(
    program: Program, network: nn.Module, optimizer: FlatAdam, given: Sequence[Given], figures: Array
) -> Array:
    """All steps; gives the figures of each [M, K], of which the first is its loss."""
    _step(program, optimizer)
    optimizer.gradients.zero_()  # a bias before a normalisation gets none
    before = int(optimizer.steps)
    for step, batch in enumerate(given):
        batch.numbers["step"] = before + step + 1
        batch.numbers["figures"] = figures[step].ctypes.data
    finite = program.run([batch.numbers for batch in given])
    totals: Array = figures.sum(1)
    if not (finite and np.isfinite(totals).all()):
        diverged(network, optimizer.name, torch.tensor(totals[:, 0]).sum())
    optimizer.steps += len(given)
    layers.count_batches(network, len(given))
    return totals


def train_policy(
    policy: Policy, optimizer: FlatAdam, batches: Sequence[PolicyBatch], config: PPOConfig
) -> dict[str, Array]:
    """PPO's gradient steps; gives each figure of each step."""
    dtype, given = optimizer.values.dtype, [Given() for _ in batches]
    program = Program(dtype)
    embedded, back_of_encoder = embed(program, policy.encoder)
    rows, hidden = program.given("batch"), Matrix(program.given("hidden"), program.given("batch"), policy.hidden_size)
    gates, back_of_inputs = layers.linear(program, policy.gru, embedded, "ih")
    memory, back_of_memory = layers.linear(program, policy.gru, hidden, "hh")
    after, back_of_gru = layers.gru_step(program, gates, program.given("inverse"), rows, memory, hidden)
    outputs, back_of_actor = layers.run_head(program, policy.actor, after)
    values, back_of_critic = layers.run_head(program, policy.critic, after)
    by_outputs, by_values = program.buffer(rows, outputs.width), program.buffer(rows, 1)
    clip_value = math.inf if config.clip_range_value is None else config.clip_range_value
    names = ("choices", "old_log_probs", "old_values", "advantages", "returns")
    program.emit(
        machine.PPO, PARTS, outputs.at, rows, outputs.width, values.at, *(program.given(name) for name in names),
        by_outputs, by_values, program.given("figures"),
        settings=(config.clip_range, clip_value, config.value_coef, config.entropy_coef),
    )  # fmt: skip
    by_after = back_of_critic(by_values, back_of_actor(by_outputs, None).at)
    by_gates = program.buffer(gates.rows, gates.width)
    back_of_memory(back_of_gru(by_after.at, by_gates, False, 0).at)
    back_of_encoder(layers.by_input(program, policy.gru.weight_ih, back_of_inputs(by_gates)).at)

    kinds = kinds_of(policy.encoder, batches[0].rows.table, dtype)

    def prepare(index: int) -> None:
        batch = batches[index]
        plan(policy.encoder, batch.rows, kinds, given[index])
        for name in ("hidden", *names):
            given[index].tensor(name, getattr(batch, name))

    in_parallel(prepare, range(len(batches)))
    totals = run_steps(program, policy, optimizer, given, np.zeros((len(batches), PARTS, 6)))
    return dict(zip(ppo.METRICS, totals.T[1:], strict=True))


def kinds_of(encoder: Encoder, table: ObservationTable, dtype: torch.dtype) -> Tensor | None:
    assert isinstance(table, PatchTable)
    return table.cells.to(dtype).contiguous() if isinstance(encoder, GridEncoder) else None


def train_discriminator(reward: Deir, optimizer: FlatAdam, batches: Sequence[Batch]) -> dict[str, Array]:
    """`Deir.loss` and its gradient steps; gives each figure of each step."""
    cell, dtype = reward.gru, optimizer.values.dtype
    assert cell is not None
    program, given, width = Program(dtype), [Given() for _ in batches], reward.width
    embedded, back_of_encoder = embed(program, reward.encoder)
    rows, twice = program.given("transitions"), program.given("offered")
    stored = Matrix(program.given("hidden"), rows, width)
    gates, back_of_inputs = layers.linear(program, cell, embedded, "ih")
    memory, back_of_first_memory = layers.linear(program, cell, stored, "hh")
    traj, back_of_now = layers.gru_step(program, gates, program.given("now"), rows, memory, stored)
    memory, back_of_second_memory = layers.linear(program, cell, traj, "hh")
    next_traj, back_of_then = layers.gru_step(program, gates, program.given("then"), twice, memory, traj)
    taken = Matrix(program.given("taken"), rows, reward.actions.width)
    logits, back_of_head = _head_of_parts(program, reward.discriminator, [traj, next_traj, taken], rows)
    by_logits = program.buffer(twice, 1)
    program.emit(
        machine.DISCRIMINATION, PARTS, logits.at, rows, program.given("differs"), program.given("different"), by_logits,
        program.given("figures"),
    )  # fmt: skip
    by_traj, by_next = back_of_head(by_logits)
    by_gates = program.buffer(gates.rows, gates.width)
    by_memory = back_of_then(by_next, by_gates, False, by_traj)
    back_of_second_memory(by_memory.at)
    layers.by_input(program, cell.weight_hh, by_memory, by_traj)
    back_of_first_memory(back_of_now(by_traj, by_gates, True, 0).at)
    back_of_encoder(layers.by_input(program, cell.weight_ih, back_of_inputs(by_gates)).at)

    kinds = _kinds(reward.encoder, batches[0].observations.table, dtype)

    def prepare(index: int) -> None:
        _prepare_transitions(reward, batches[index], kinds, dtype, given[index])

    in_parallel(prepare, range(len(batches)))
    totals = _run(program, reward, optimizer, given, np.zeros((len(batches), PARTS, 4)))
    different = np.array([batch.numbers["different"] / batch.numbers["transitions"] for batch in given])
    return {
        "model_loss": 0.5 * (totals[:, 0] + totals[:, 1]),
        "discriminator_accuracy": 0.5 * (totals[:, 2] + totals[:, 3]),
        "fake_valid_rate": different,
    }


def _prepare_transitions(reward: Deir, batch: Batch, kinds: Tensor | None, dtype: torch.dtype, given: Given) -> None:
    assert isinstance(batch.fakes, Rows) and batch.fake_differs is not None and batch.hidden is not None
    count, table = len(batch.actions), batch.observations.table
    ids = torch.cat([batch.observations.ids, batch.next_observations.ids, batch.fakes.ids])
    plan(reward.encoder, Rows(table, ids), kinds, given)
    inverse = given.numbers["inverse"]
    given.numbers |= {"transitions": count, "offered": 2 * count, "now": inverse, "then": inverse + 8 * count}
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

    def back(grad: Operand) -> tuple[Operand, Operand]:
        by_products = back_of_norm(back_of_rest(grad, None).at).at
        by_places = [program.plus(by_products, program.given("transitions"), n * outputs * size) for n in (0, 1, 3)]
        by_parts: list[Operand] = []
        for part, place, begin in zip(parts, by_places, begins.tolist(), strict=True):
            sizes = outputs, part.width, part.rows
            program.product(by_weight + begin, place, part.at, sizes, "a", apart=(None, None, whole), jobs=2)
            if len(by_parts) < 2:  # nothing wants that of the action
                by_parts.append(program.buffer(part.rows, part.width))
                sizes = part.rows, part.width, outputs
                program.product(by_parts[-1], place, weight + begin, sizes, apart=(None, whole, None))
        return by_parts[0], by_parts[1]

    return out, back


def means(figures: dict[str, Array]) -> Metrics:
    return {name: float(values.mean()) for name, values in figures.items()}
