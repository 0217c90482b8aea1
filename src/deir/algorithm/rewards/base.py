"""The contract of a reward method.

`compute` is a stage after collection: it sees a whole rollout and gives a reward for every transition at once. The
trainer owns the coefficient, the normalisation and the optimiser; a method owns its networks and what it remembers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from gymnasium import spaces
from torch import Tensor, nn

from deir.algorithm.explanation import Explanation
from deir.algorithm.functional import minibatches
from deir.algorithm.memory import EpisodicHistory
from deir.algorithm.networks import Encoder
from deir.algorithm.ops import Ops
from deir.algorithm.types import Batch, ObservationTable, Rollout
from deir.config import Config
from deir.errors import UserError

ENCODE_CHUNK = 4096  # observations encoded together at most
AnyState = TypeVar("AnyState", bound="RewardState")


@dataclass(frozen=True)
class Context:
    """All that a method is made from."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    config: Config
    ops: Ops  # how things are computed
    policy_encoder: Encoder | None = None  # some methods read the policy's embeddings; none trains it

    @property
    def observation_shape(self) -> tuple[int, ...]:
        assert self.observation_space.shape is not None
        return self.observation_space.shape


@dataclass(frozen=True)
class ForUpdate:
    """What `compute` hands to the update after it."""

    memories: Tensor | None = None  # [T, N, H] the model's memory before each step
    embeddings: Tensor | None = None  # [U, F] the policy's embeddings of the table, as they were before its update
    targets: Tensor | None = None  # [U, G] what random distillation predicts of the table


@dataclass(frozen=True)
class RewardState:
    """What a method brings from one rollout to the next. A method with more of it derives a class with more fields."""

    hidden: Tensor | None = None  # [N, H] the model's memory
    history: EpisodicHistory | None = None  # of the running episodes
    for_update: ForUpdate = ForUpdate()  # lives only until the update after `compute`

    def tensors(self) -> dict[str, Tensor]:
        """What goes into a checkpoint."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        own = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        return {**own, **(self.history.tensors() if self.history is not None else {})}

    def restored(self: AnyState, tensors: dict[str, Tensor]) -> AnyState:
        """The state that `tensors` were taken of; this one is of the same kind."""
        named = {field.name: tensors[field.name] for field in fields(self) if field.name in tensors}
        history = EpisodicHistory.from_tensors(tensors) if self.history is not None else None
        return replace(self, **named, history=history, for_update=ForUpdate())

    def with_more_for_update(self: AnyState, more: ForUpdate) -> AnyState:
        memories = self.for_update.memories
        return replace(self, for_update=more if memories is None else replace(more, memories=memories))

    def after_update(self: AnyState) -> AnyState:
        return replace(self, for_update=ForUpdate())


class IntrinsicReward(nn.Module):
    """Base of all methods: a method overrides `compute` and, if it learns, `loss`.

    What belongs to running episodes is in the state; what is learned over a lifetime is in the module.
    """

    needs_states = False  # the reward is made from the full states behind the observations

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.ops = context.ops

    def check(self, states_known: bool) -> None:
        """Refuses an environment that the method cannot serve; `states_known`: it can tell its full states."""
        if self.needs_states and not states_known:
            raise UserError(
                "method: this reward is made from the environment's full state, which this environment does not tell; "
                "MiniGrid tasks do (`deir list envs`), and `--method deir` needs none"
            )

    def initial_state(self, n_envs: int) -> RewardState:
        """What the method brings into the first rollout."""
        return RewardState()

    def compute(self, rollout: Rollout, state: Any) -> tuple[Tensor, Any]:
        """Raw rewards [T, N], zero on dummy steps, and the state for the next rollout."""
        raise NotImplementedError

    def remember(self, rollout: Rollout, rewards: Tensor, average: float) -> None:
        """Keeps what the method wants of the rollout; `average` is the running mean of raw rewards before it."""

    def batches(
        self, rollout: Rollout, state: RewardState, epochs: int, size: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """The rollout's genuine transitions, shuffled anew each epoch."""
        indices, ids, next_ids = rollout.valid_indices(), rollout.ids[:-1].flatten(), rollout.next_ids.flatten()
        actions, known = rollout.actions.flatten(0, 1), state.for_update
        hidden = None if known.memories is None else known.memories.flatten(0, 1)
        for _ in range(epochs):
            for chosen in minibatches(indices, size, generator):
                yield Batch(
                    rollout.table.rows(ids[chosen]),
                    actions[chosen],
                    rollout.table.rows(next_ids[chosen]),
                    None if hidden is None else hidden[chosen],
                    next_ids=next_ids[chosen],
                    embeddings=known.embeddings,
                    targets=known.targets,
                    indices=chosen,
                )

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError

    def explain(self, rollout: Rollout, env: int) -> Explanation:
        """Why the steps of environment `env` earned what `compute` gives for a rollout that begins with new episodes.

        It may do all that `compute` does: who asks puts buffers and `extra_state` back afterwards.
        """
        return Explanation()

    def extra_state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the parameters and buffers."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        del state

    @property
    def learns(self) -> bool:
        return any(p.requires_grad for p in self.parameters())


@torch.no_grad()
def embed_table(ops: Ops, encoder: Encoder, table: ObservationTable) -> Tensor:
    """Every observation of the table once, in evaluation mode. [U, F]"""
    encoder.eval()
    rows = torch.arange(len(table.distinct), device=table.distinct.device)
    return torch.cat([ops.embed(encoder, table.rows(part)).gather() for part in rows.split(ENCODE_CHUNK)])
