"""PPO's update where the encoder is no program: all that follows the encoder is one, and so is Adam.

The encoder goes through PyTorch's autograd, in compiled jobs of its own (whole views, images). The rest is many small
operations, which autograd would have one thread do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from deir.algorithm import ppo
from deir.algorithm.actions import DiscreteActions
from deir.algorithm.networks import Encoder
from deir.algorithm.optimizer import diverged
from deir.algorithm.policy import Policy
from deir.algorithm.types import PolicyBatch, Rows, Shared
from deir.compiled import Array
from deir.config import PPOConfig
from deir.fast import network_program as layers
from deir.fast.arrays import with_gradient
from deir.fast.blas import product
from deir.fast.flat_adam import FlatAdam
from deir.fast.network_program import Matrix
from deir.fast.patches import PatchTable
from deir.fast.program import Program, Ready
from deir.fast.updates import GIVEN, PARTS, Given, after_encoder, step, written

Embed = Callable[[Encoder, Rows], Shared]


def trains_tail(policy: Policy, optimizer: object) -> bool:
    plain = type(policy) is Policy and type(policy.actions) is DiscreteActions and policy.free is None
    if not (plain and isinstance(optimizer, FlatAdam) and product(optimizer.values.dtype) is not None):
        return False
    parts = policy.gru, policy.actor, policy.critic
    trained = all(parameter.requires_grad for part in parts for parameter in part.parameters())
    return trained and layers.runs_head(policy.actor) and layers.runs_head(policy.critic)


def train_policy(
    policy: Policy, optimizer: FlatAdam, batches: Sequence[PolicyBatch], config: PPOConfig, embed: Embed
) -> dict[str, Array]:
    """PPO's gradient steps; gives each figure of each step. embed: the encoder's pass, whose gradient is autograd's"""
    figures = np.zeros((len(batches), PARTS, 6))
    tail, adam = _programs(policy, optimizer, batches, config, figures)
    for number, batch in enumerate(batches):
        optimizer.gradients.zero_()
        embedded, rows = embed(policy.encoder, batch.rows)
        by_embedded = _through_tail(tail, number, embedded, rows)
        if embedded.requires_grad:
            with_gradient(embedded, by_embedded).backward()
        if not (adam.run(number, number + 1) and np.isfinite(figures[number]).all()):
            diverged(policy, optimizer.name, torch.tensor(figures[number, :, 0].sum(), device="cpu"))
        optimizer.steps += 1
    for head in (policy.actor, policy.critic):
        layers.count_batches(head, len(batches))
    return dict(zip(ppo.METRICS, figures.sum(1).T[1:], strict=True))


def _programs(
    policy: Policy, optimizer: FlatAdam, batches: Sequence[PolicyBatch], config: PPOConfig, figures: Array
) -> tuple[Ready, Ready]:
    """From embeddings to their gradient, and Adam."""
    own = not isinstance(batches[0].rows.table, PatchTable)

    def write_tail(program: Program) -> None:
        embedded = Matrix(program.given("embedded"), program.given("observations"), policy.encoder.features)
        after_encoder(program, policy, embedded, config, own)(program.given("by_embedded"))

    tail = written(optimizer, (config, own), write_tail)
    adam = written(optimizer, "adam", lambda program: step(program, optimizer))
    given, before = [Given() for _ in batches], int(optimizer.steps)
    for number, (numbers, batch) in enumerate(zip(given, batches, strict=True)):
        size = len(batch.rows)
        for name in GIVEN:
            numbers.tensor(name, getattr(batch, name))
        numbers.tensor("inverse", torch.arange(size, device="cpu"))
        numbers.at("figures", figures[number])
        # how many observations differ, and where their embeddings are, is known once they are made
        numbers.numbers |= {"batch": size, "observations": size, "embedded": 0, "by_embedded": 0}
        numbers.numbers["step"] = before + number + 1
    numbers_of_each = [batch.numbers for batch in given]
    return Ready(tail, numbers_of_each, given), Ready(adam, numbers_of_each)


def _through_tail(tail: Ready, number: int, embedded: Tensor, rows: Tensor | None) -> Tensor:
    """The gradient by the embeddings [u, F], after the gradients of all that follows them."""
    values = embedded.detach().contiguous()
    by_embedded = torch.empty_like(values)
    places = {"embedded": values.data_ptr(), "by_embedded": by_embedded.data_ptr(), "observations": len(values)}
    if rows is not None:
        rows = rows.contiguous()
        places["inverse"] = rows.data_ptr()
    tail.give(number, **places)
    tail.run(number, number + 1)
    return by_embedded
