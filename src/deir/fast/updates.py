"""Whole updates as programs: every gradient step of an update in one call. What all have in common, and PPO's.

`machine.run` works through them without Python's lock and with every thread that is free. What is left to Python is to
say which observations and patches each mini-batch holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
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
from deir.fast.program import Operand, Program
from deir.fast.threads import share_out
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
    _, cells, levels, places = table.patches
    count = len(kinds)
    made = planning.batch_plan(names, cells, count, *map(tuple, levels), *places)
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


def step(program: Program, optimizer: FlatAdam) -> None:
    """Adam, clipped by the global norm."""
    size, config = optimizer.values.numel(), optimizer.config
    squares, grads = program.buffer(PARTS, 1, np.float64), program.at(optimizer.gradients)
    program.emit(machine.SQUARES, PARTS, grads, size, squares)
    program.emit(
        machine.ADAM, PARTS, program.at(optimizer.values), grads, program.at(optimizer.exp_avg),
        program.at(optimizer.exp_avg_sq), size, squares, program.given("step"),
        settings=(config.learning_rate, config.adam_beta1, config.adam_beta2, config.adam_eps, config.max_grad_norm),
    )  # fmt: skip


def written(optimizer: FlatAdam, key: Hashable, write: Callable[[Program], None]) -> Program:
    """What `write` writes, once for each optimiser. key: whatever differs between two programs for the same network"""
    if key not in optimizer.programs:
        optimizer.programs[key] = program = Program(optimizer.values.dtype)
        write(program)
    return optimizer.programs[key]


def run_steps(
    program: Program, network: nn.Module, optimizer: FlatAdam, given: Sequence[Given], figures: Array
) -> Array:
    """All steps of a program that ends with `step`; gives the figures of each [M, K], of which the first is a loss."""
    optimizer.gradients.zero_()  # a bias before a normalisation gets none
    before = int(optimizer.steps)
    for number, batch in enumerate(given):
        batch.numbers["step"] = before + number + 1
        batch.numbers["figures"] = figures[number].ctypes.data
    finite = program.run([batch.numbers for batch in given])
    totals: Array = figures.sum(1)
    if not (finite and np.isfinite(totals).all()):
        diverged(network, optimizer.name, torch.tensor(totals[:, 0]).sum())
    optimizer.steps += len(given)
    layers.count_batches(network, len(given))
    return totals


GIVEN = ("hidden", "choices", "old_log_probs", "old_values", "advantages", "returns")


def after_encoder(
    program: Program, policy: Policy, embedded: Matrix, config: PPOConfig, own: bool = False
) -> Callable[[Operand | None], Matrix]:
    """The policy from embeddings to its loss and back. own: each row of a batch has an embedding of its own

    Gives what writes the gradient by the embeddings, to where it is told or wherever there is room.
    """
    rows, hidden = program.given("batch"), Matrix(program.given("hidden"), program.given("batch"), policy.hidden_size)
    gates, back_of_inputs = layers.linear(program, policy.gru, embedded, "ih")
    memory, back_of_memory = layers.linear(program, policy.gru, hidden, "hh")
    after, back_of_gru = layers.gru_step(program, gates, program.given("inverse"), rows, memory, hidden, own)
    outputs, back_of_actor = layers.run_head(program, policy.actor, after)
    values, back_of_critic = layers.run_head(program, policy.critic, after)
    by_outputs, by_values = program.buffer(rows, outputs.width), program.buffer(rows, 1)
    clip_value = math.inf if config.clip_range_value is None else config.clip_range_value
    program.emit(
        machine.PPO, PARTS, outputs.at, rows, outputs.width, values.at, *(program.given(name) for name in GIVEN[1:]),
        by_outputs, by_values, program.given("figures"),
        settings=(config.clip_range, clip_value, config.value_coef, config.entropy_coef),
    )  # fmt: skip
    by_after = back_of_critic(by_values, back_of_actor(by_outputs, None).at)
    by_gates = program.buffer(gates.rows, gates.width)
    back_of_memory(back_of_gru(by_after.at, by_gates, False, 0).at)
    by = back_of_inputs(by_gates)
    return lambda into: layers.by_input(program, policy.gru.weight_ih, by, into, joins=False)


def train_policy(
    policy: Policy, optimizer: FlatAdam, batches: Sequence[PolicyBatch], config: PPOConfig
) -> dict[str, Array]:
    """PPO's gradient steps; gives each figure of each step."""
    given = [Given() for _ in batches]
    kinds = kinds_of(policy.encoder, batches[0].rows.table, optimizer.values.dtype)

    def write(program: Program) -> None:
        embedded, back_of_encoder = embed(program, policy.encoder)
        back_of_encoder(after_encoder(program, policy, embedded, config)(None).at)
        step(program, optimizer)

    def prepare(index: int) -> None:
        batch = batches[index]
        plan(policy.encoder, batch.rows, kinds, given[index])
        for name in GIVEN:
            given[index].tensor(name, getattr(batch, name))

    share_out(prepare, len(batches))
    program = written(optimizer, config, write)
    totals = run_steps(program, policy, optimizer, given, np.zeros((len(batches), PARTS, 6)))
    return dict(zip(ppo.METRICS, totals.T[1:], strict=True))


def kinds_of(encoder: Encoder, table: ObservationTable, dtype: torch.dtype) -> Tensor | None:
    assert isinstance(table, PatchTable)
    return table.patches.cells.to(dtype).contiguous() if isinstance(encoder, GridEncoder) else None


def means(figures: dict[str, Array]) -> Metrics:
    return {name: float(values.mean()) for name, values in figures.items()}
