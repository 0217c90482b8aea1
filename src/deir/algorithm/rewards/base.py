"""The contract of a reward method.

`compute` is a stage after collection: it sees a whole rollout and gives a reward for every transition at once. The
trainer owns the coefficient, the normalisation and the optimiser; a method owns its networks and what it remembers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from deir.algorithm.functional import minibatches
from deir.algorithm.networks import Encoder
from deir.algorithm.types import Batch, Carry, Rollout
from deir.errors import UserError
from deir.fast.patches import ObservationTable, Rows

ENCODE_CHUNK = 4096  # observations encoded together at most
OF_ROLLOUT = "rollout."  # entries of the carry that only the update right after `compute` needs


class IntrinsicReward(nn.Module):
    """Base of all methods: a method overrides `compute` and, if it learns, `loss`.

    What belongs to running episodes is in the carry; what is learned over a lifetime is in the module.
    """

    needs_states = False  # the reward is made from the full states behind the observations

    def check(self, states_known: bool) -> None:
        """Refuses an environment that the method cannot serve; `states_known`: it can tell its full states."""
        if self.needs_states and not states_known:
            raise UserError(
                "method: this reward is made from the environment's full state, which this environment does not tell; "
                "MiniGrid tasks do (`deir list envs`), and `--method deir` needs none"
            )

    def initial_carry(self, n_envs: int) -> Carry:
        """What the method brings into the first rollout."""
        return {}

    def compute(self, rollout: Rollout, carry: Carry) -> tuple[Tensor, Carry]:
        """Raw rewards [T, N], zero on dummy steps, and the carry for the next rollout."""
        raise NotImplementedError

    def memories(self, carry: Carry) -> Tensor | None:
        """[T, N, H] the model's memory before each step of the rollout just computed, if it has one."""
        return carry.get(f"{OF_ROLLOUT}memories")

    def remember(self, rollout: Rollout, rewards: Tensor, average: float) -> None:
        """Keeps what the method wants of the rollout; `average` is the running mean of raw rewards before it."""

    def batches(
        self, rollout: Rollout, carry: Carry, epochs: int, size: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """The rollout's genuine transitions, shuffled anew each epoch."""
        indices, ids, next_ids = rollout.valid_indices(), rollout.ids[:-1].flatten(), rollout.next_ids.flatten()
        actions, memories = rollout.actions.flatten(0, 1), self.memories(carry)
        hidden = None if memories is None else memories.flatten(0, 1)
        embeddings, targets = (carry.get(f"{OF_ROLLOUT}{name}") for name in ("embeddings", "targets"))
        for _ in range(epochs):
            for chosen in minibatches(indices, size, generator):
                yield Batch(
                    rollout.table.rows(ids[chosen]),
                    actions[chosen],
                    rollout.table.rows(next_ids[chosen]),
                    None if hidden is None else hidden[chosen],
                    next_ids=next_ids[chosen],
                    embeddings=embeddings,
                    targets=targets,
                )

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError

    def extra_state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the parameters and buffers."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        del state

    @property
    def learns(self) -> bool:
        return any(p.requires_grad for p in self.parameters())


def between_rollouts(carry: Carry) -> Carry:
    """What of the carry lives on after the update."""
    return {name: tensor for name, tensor in carry.items() if not name.startswith(OF_ROLLOUT)}


@torch.no_grad()
def embed_table(encoder: Encoder, table: ObservationTable) -> Tensor:
    """Every observation of the table once, in evaluation mode. [U, F]"""
    encoder.eval()
    rows = torch.arange(len(table.distinct), device=table.distinct.device)
    return torch.cat([encoder(Rows(table, part)) for part in rows.split(ENCODE_CHUNK)])
