"""`FastOps`: the mathematics of `PlainOps`, faster on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from deir.algorithm import ppo
from deir.algorithm.actions import Actions, DiscreteActions
from deir.algorithm.layers import Head
from deir.algorithm.networks import Encoder, GridEncoder, PartsEncoder, VectorEncoder
from deir.algorithm.ops import Act, Acting, Optimizer, PlainOps
from deir.algorithm.policy import Policy
from deir.algorithm.rewards.base import IntrinsicReward
from deir.algorithm.rollout import Played, Position
from deir.algorithm.types import Batch, Metrics, ObservationTable, PolicyBatch, Rows, Shared
from deir.config import PPOConfig, Precision
from deir.envs.base import VectorEnvs
from deir.fast import gru, model_updates, patches, planning, playing, quasimetric, tail_update, tiles, updates
from deir.fast.acting import ActingOnAnything, ActingOnRepeats, FrozenPolicy
from deir.fast.allocator import collecting_later
from deir.fast.arrays import arrays_of
from deir.fast.batch_norm import Share, run_head, run_head_of_parts
from deir.fast.blas import product
from deir.fast.flat_adam import FlatAdam
from deir.fast.grid_encoder import embed_patches, shares_patches
from deir.fast.patches import PatchTable
from deir.fast.pieces import embed_whole
from deir.fast.ppo_loss import ppo_of_categories
from deir.fast.threads import aside, flushing
from deir.fast.vector_encoder import embed_vectors, runs_on_vectors
from deir.fast.whole_images import runs_on_images

T = TypeVar("T")


class FastOps(PlainOps):
    """Distinct observations and patches, compiled loops, hand-written gradients, folded layers, one flat Adam."""

    def __init__(self, precision: Precision = "fp32") -> None:
        """precision: of the factors of an encoder's products, where observations do not repeat"""
        self.precision = precision

    def tabulate(
        self, observations: Tensor, repeats: bool, view: tuple[int, ...] | None = None
    ) -> tuple[ObservationTable, Tensor]:
        return patches.tabulate(observations, view) if repeats else super().tabulate(observations, False)

    def extend(
        self, table: ObservationTable, storage: Tensor, slots: Sequence[Tensor]
    ) -> tuple[ObservationTable, Tensor, Iterable[Rows | Tensor]]:
        if not isinstance(table, PatchTable):
            return super().extend(table, storage, slots)
        extended, renamed, rows = patches.extend_table(table, storage, torch.cat(list(slots)))
        return extended, renamed, [extended.rows(part) for part in rows.split([len(slot) for slot in slots])]

    def differ(self, storage: Tensor, slots: Tensor, rows: Rows) -> Tensor:
        arrays = arrays_of(storage.flatten(1), slots, rows.table.distinct.flatten(1), rows.ids)
        return torch.from_numpy(planning.rows_differ(*arrays))

    def embed(self, encoder: Encoder, observations: Rows | Tensor) -> Shared:
        if isinstance(observations, Tensor):
            return Shared(embed_whole(encoder, observations, self.precision))
        table, ids = observations
        if isinstance(table, PatchTable) and type(encoder) is GridEncoder:
            if shares_patches(encoder):
                plan = patches.plan_of(table, ids)
                return Shared(embed_patches(encoder, plan), plan.inverse)
            distinct, inverse = ids.unique(return_inverse=True)
            return Shared(embed_whole(encoder, table.distinct[distinct], self.precision), inverse)
        if isinstance(table, PatchTable) and isinstance(encoder, VectorEncoder) and runs_on_vectors(encoder):
            rows, shares, inverse = planning.occurring_rows(ids.numpy(), len(table.distinct))
            seen = table.distinct[torch.from_numpy(rows)]
            return Shared(embed_vectors(encoder, seen, Share(shares, len(ids))), torch.from_numpy(inverse))
        if isinstance(table, PatchTable) and isinstance(encoder, PartsEncoder) and shares_patches(encoder.encoders[0]):
            (view, _), *others = encoder.parts_of(observations.gather())
            assert isinstance(view, Encoder)
            rest = [embed_whole(one, part, self.precision) for one, part in others]
            embedded = [self.embed(view, observations).gather(), *rest]
            return Shared(encoder.together(torch.cat(embedded, 1)))
        return Shared(embed_whole(encoder, observations.gather(), self.precision))

    def gru_inputs(self, cell: nn.GRUCell, embedded: Shared) -> Shared:
        return gru.gru_gates(cell, embedded)

    def gru_step(self, cell: nn.GRUCell, inputs: Shared, hidden: Tensor) -> Tensor:
        return gru.gru_step(cell, inputs, hidden)

    def gru_scan(self, cell: nn.GRUCell, inputs: Shared, hidden: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        return gru.gru_scan(cell, inputs, hidden, starts)

    def head(self, head: Head, x: Tensor) -> Tensor:
        return run_head(head, x)

    def head_of_parts(self, head: Head, parts: Sequence[Shared]) -> Tensor:
        return run_head_of_parts(head, parts)

    def prediction_loss(self, head: Head, inputs: Shared, targets: Tensor, ids: Tensor) -> Tensor:
        """Of the distinct rows, each weighed by how often it occurs."""
        if inputs.rows is None:
            values, of_values, counts = inputs.values, ids, torch.ones_like(ids)
        else:
            used, places, counts = inputs.rows.unique(return_inverse=True, return_counts=True)
            values = inputs.values if len(used) == len(inputs.values) else inputs.values[used]
            of_values = ids.new_empty(len(used)).scatter_(0, places, ids)
        weights = counts / len(ids)
        share = Share(weights.double().numpy(), len(ids))
        errors = (run_head(head, values, share) - targets[of_values]).square().mean(1)  # [u]
        return weights.to(errors.dtype) @ errors

    @staticmethod
    def ppo_loss(
        outputs: Tensor,
        values: Tensor,
        choices: Tensor,
        old_log_probs: Tensor,
        old_values: Tensor,
        advantages: Tensor,
        returns: Tensor,
        config: PPOConfig,
        actions: Actions | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        batch = (choices, old_log_probs, old_values, advantages, returns)
        if actions is not None and not isinstance(actions, DiscreteActions):
            return ppo.ppo_loss(outputs, values, *batch, config, actions)
        clip_value = math.inf if config.clip_range_value is None else config.clip_range_value
        settings = config.clip_range, clip_value, config.value_coef, config.entropy_coef
        loss, figures = ppo_of_categories(outputs, values, batch, *settings)
        return loss, dict(zip(ppo.METRICS, figures, strict=True))

    min_ratio = staticmethod(tiles.min_ratio)
    nearest = staticmethod(tiles.nearest_keys)
    min_quasimetric = staticmethod(quasimetric.min_quasimetric)

    def quasimetric(self, x: Shared, y: Shared) -> Tensor:
        return quasimetric.of_shared(x, y)

    def acting(self, policy: Policy, repeats: bool, known: ObservationTable | None) -> Acting:
        if product(policy.gru.weight_hh.dtype) is None:
            return super().acting(policy, repeats, known)
        if repeats:
            return ActingOnRepeats(policy, known, self.precision)
        return ActingOnAnything(policy, self.precision)

    def frozen(self, policy: Policy) -> Act:
        """Parameters of an image encoder take as long to lay out as a few images take to embed."""
        return FrozenPolicy(policy, self.precision).act if runs_on_images(policy.encoder) else policy.act

    def play(self, envs: VectorEnvs, policy: Policy, position: Position, noise: Tensor) -> Played | None:
        played = playing.play_rollout(envs, policy, position, noise)
        if played is not None and isinstance(played.table, PatchTable) and shares_patches(policy.encoder):
            table = played.table
            self.aside(lambda: table.patches)  # the update will ask for them
        return played

    def aside(self, work: Callable[[], T]) -> Callable[[], T]:
        return aside(work)

    def optimizer(self, network: nn.Module, config: PPOConfig, name: str) -> Optimizer:
        return FlatAdam(network, config, name)

    def train_policy(
        self, policy: Policy, optimizer: Optimizer, batches: Iterable[PolicyBatch], config: PPOConfig
    ) -> Metrics:
        whole = list(batches)
        if updates.trains_policy(policy, whole[0].rows.table, optimizer):
            assert isinstance(optimizer, FlatAdam)
            return updates.means(updates.train_policy(policy, optimizer, whole, config))
        if tail_update.trains_tail(policy, optimizer):
            assert isinstance(optimizer, FlatAdam)
            return updates.means(tail_update.train_policy(policy, optimizer, whole, config, self.embed))
        return super().train_policy(policy, optimizer, whole, config)

    def train_model(self, reward: IntrinsicReward, optimizer: Optimizer, batches: Iterable[Batch]) -> Metrics:
        whole = list(batches)
        update = model_updates.update_of(reward, whole[0].observations.table, optimizer)
        if update is not None:
            assert isinstance(optimizer, FlatAdam)
            return updates.means(update(reward, optimizer, whole))
        return super().train_model(reward, optimizer, whole)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        with collecting_later(), flushing():
            yield
