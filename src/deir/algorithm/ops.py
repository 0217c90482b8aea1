"""The one interface to fast code: what is computed, as verbs, and each of them in plain PyTorch.

`PlainOps` is what a reader reads, what a GPU runs, and what every other `Ops` must equal up to rounding. One is chosen
for a run (`--ops`) and handed to the policy and the reward model; nothing else asks how things are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deir.algorithm.episodic import episodic_min_ratio, episodic_nearest
from deir.algorithm.layers import Head
from deir.algorithm.networks import Encoder
from deir.algorithm.optimizer import ClippedAdam
from deir.algorithm.ppo import MeanMetrics, ppo_loss
from deir.algorithm.quasimetric import episodic_min_quasimetric, quasimetric
from deir.algorithm.types import Batch, Metrics, ObservationTable, PolicyBatch, Rows, Shared
from deir.config import PPOConfig

if TYPE_CHECKING:
    from deir.algorithm.actions import Actions
    from deir.algorithm.policy import Policy
    from deir.algorithm.rewards.base import IntrinsicReward
    from deir.algorithm.rollout import Played, Position
    from deir.envs.base import VectorEnvs

Act = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # of observations and memory, as `Policy.act`


class Optimizer(Protocol):
    """Adam with clipping by the global norm. Its state does not depend on the `Ops` that made it."""

    def step(self, loss: Tensor) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Acting(Protocol):
    """The policy during one rollout, with frozen parameters; it remembers what it saw."""

    @property
    def known(self) -> ObservationTable | None:
        """What of this rollout helps to act in the next one."""

    def step(self, observations: NDArray[Any], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[N, *obs] and the memory before the step [N, H] -> outputs [N, A] and the memory after it [N, H]"""

    def table(self, last: NDArray[Any], finals: NDArray[Any]) -> tuple[ObservationTable, Tensor, Tensor]:
        """Of what was seen, of `last` [N, *obs], which follows it, and of `finals` [K, *obs]: the table, and the rows
        in it [T+1, N] and [K]."""


T = TypeVar("T")


class Ops(Protocol):
    def tabulate(
        self, observations: Tensor, repeats: bool, view: tuple[int, ...] | None = None
    ) -> tuple[ObservationTable, Tensor]:
        """[B, *obs] -> a table, and the row of each observation in it [B].

        repeats: they are views of integer cells, of which many are equal, or rows of bytes that begin with a `view`.
        """

    def extend(
        self, table: ObservationTable, storage: Tensor, slots: Sequence[Tensor]
    ) -> tuple[ObservationTable, Tensor, Iterable[Rows | Tensor]]:
        """A table that may hold the observations of `storage` in these slots too, the new row of each old one [U], and
        those observations, a batch for each of the `slots`."""

    def differ(self, storage: Tensor, slots: Tensor, rows: Rows) -> Tensor:
        """Whether storage[slots[b]] and the b-th row differ anywhere. [B] bool"""

    def embed(self, encoder: Encoder, observations: Rows | Tensor) -> Shared: ...

    def gru_inputs(self, cell: nn.GRUCell, embedded: Shared) -> Shared:
        """What `gru_step` and `gru_scan` take of embeddings."""

    def gru_step(self, cell: nn.GRUCell, inputs: Shared, hidden: Tensor) -> Tensor:
        """The memory after one more input. hidden: [M, H] before it -> [B, H]; row b continues memory b mod M."""

    def gru_scan(self, cell: nn.GRUCell, inputs: Shared, hidden: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """A GRU over time, without gradients. inputs of T*N steps, hidden [N, H] before the first, starts [T, N] bool.

        Gives the memory before each step (zero at episode starts) and after it, both [T, N, H].
        """

    def head(self, head: Head, x: Tensor) -> Tensor:
        """[B, F] -> [B, outputs]"""

    def head_of_parts(self, head: Head, parts: Sequence[Shared]) -> Tensor:
        """The head on rows that are made of parts, side by side."""

    def prediction_loss(self, head: Head, inputs: Shared, targets: Tensor, ids: Tensor) -> Tensor:
        """Mean squared error of the head's outputs and targets[ids]. targets: [U, G], ids: [B]; equal rows of `inputs`
        have equal targets"""

    def ppo_loss(
        self,
        outputs: Tensor,
        values: Tensor,
        choices: Tensor,
        old_log_probs: Tensor,
        old_values: Tensor,
        advantages: Tensor,
        returns: Tensor,
        config: PPOConfig,
        actions: Actions,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`ppo.ppo_loss`"""

    def min_ratio(
        self,
        query_obs: Tensor,
        query_traj: Tensor,
        key_obs: Sequence[Tensor],
        key_traj: Sequence[Tensor],
        first: Tensor,
        last: Tensor,
        eps: float,
        repeated: Tensor | None = None,
    ) -> Tensor:
        """`episodic.episodic_min_ratio`"""

    def nearest(self, queries: Tensor, keys: Tensor, first: Tensor, last: Tensor, k: int) -> Tensor:
        """`episodic.episodic_nearest`"""

    def quasimetric(self, x: Shared, y: Shared) -> Tensor:
        """`quasimetric.quasimetric` of every row of one batch and every row of the other. [A, B]"""

    def min_quasimetric(self, queries: Tensor, keys: Tensor, first: Tensor, last: Tensor, repeated: Tensor) -> Tensor:
        """`quasimetric.episodic_min_quasimetric`"""

    def acting(self, policy: Policy, repeats: bool, known: ObservationTable | None) -> Acting:
        """`known`: of the last rollout's `Acting`."""

    def frozen(self, policy: Policy) -> Act:
        """`policy.act` for many steps, during which nobody changes the parameters. It remembers nothing of them."""

    def play(self, envs: VectorEnvs, policy: Policy, position: Position, noise: Tensor) -> Played | None:
        """`rollout.step_by_step` of a policy in evaluation mode, all steps at once; None where it is not known how."""

    def optimizer(self, network: nn.Module, config: PPOConfig, name: str) -> Optimizer: ...

    def train_policy(
        self, policy: Policy, optimizer: Optimizer, batches: Iterable[PolicyBatch], config: PPOConfig
    ) -> Metrics:
        """A gradient step of PPO for each batch; gives the means of its metrics."""

    def train_model(self, reward: IntrinsicReward, optimizer: Optimizer, batches: Iterable[Batch]) -> Metrics:
        """A gradient step of the reward's own loss for each batch; gives the means of its metrics."""

    def aside(self, work: Callable[[], T]) -> Callable[[], T]:
        """For little work whose result is wanted later: what is given back waits for it. Now, or beside other work."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """Around an iteration of training."""


class PlainOps:
    """Plain PyTorch on any device."""

    def tabulate(
        self, observations: Tensor, repeats: bool, view: tuple[int, ...] | None = None
    ) -> tuple[ObservationTable, Tensor]:
        """Equal observations have one row, and so the same embedding to the last bit."""
        if not repeats:
            return ObservationTable(observations), torch.arange(len(observations), device=observations.device)
        distinct, names = observations.flatten(1).unique(dim=0, return_inverse=True)
        return ObservationTable(distinct.view(-1, *observations.shape[1:])), names

    def extend(
        self, table: ObservationTable, storage: Tensor, slots: Sequence[Tensor]
    ) -> tuple[ObservationTable, Tensor, Iterable[Rows | Tensor]]:
        device = table.distinct.device
        return table, torch.arange(len(table.distinct), device=device), (storage[slot].to(device) for slot in slots)

    def differ(self, storage: Tensor, slots: Tensor, rows: Rows) -> Tensor:
        return (storage[slots] != rows.gather().to(storage.device)).flatten(1).any(1)

    def embed(self, encoder: Encoder, observations: Rows | Tensor) -> Shared:
        return Shared(encoder(observations.gather() if isinstance(observations, Rows) else observations))

    def gru_inputs(self, cell: nn.GRUCell, embedded: Shared) -> Shared:
        return embedded

    def gru_step(self, cell: nn.GRUCell, inputs: Shared, hidden: Tensor) -> Tensor:
        x = inputs.gather()
        return cell(x, hidden.repeat(len(x) // len(hidden), 1))

    @torch.no_grad()
    def gru_scan(self, cell: nn.GRUCell, inputs: Shared, hidden: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        before, after = [], []
        for x, start in zip(inputs.gather().view(*starts.shape, -1), starts, strict=True):
            before.append(hidden * ~start[:, None])
            hidden = cell(x, before[-1])
            after.append(hidden)
        return torch.stack(before), torch.stack(after)

    def head(self, head: Head, x: Tensor) -> Tensor:
        return head(x)

    def head_of_parts(self, head: Head, parts: Sequence[Shared]) -> Tensor:
        return head(torch.cat([part.gather() for part in parts], 1))

    def prediction_loss(self, head: Head, inputs: Shared, targets: Tensor, ids: Tensor) -> Tensor:
        return (head(inputs.gather()) - targets[ids]).square().mean()

    ppo_loss = staticmethod(ppo_loss)
    min_ratio = staticmethod(episodic_min_ratio)
    nearest = staticmethod(episodic_nearest)
    min_quasimetric = staticmethod(episodic_min_quasimetric)

    def quasimetric(self, x: Shared, y: Shared) -> Tensor:
        return quasimetric(x.gather(), y.gather())

    def acting(self, policy: Policy, repeats: bool, known: ObservationTable | None) -> Acting:
        return PlainActing(policy, repeats)

    def frozen(self, policy: Policy) -> Act:
        return policy.act

    def play(self, envs: VectorEnvs, policy: Policy, position: Position, noise: Tensor) -> Played | None:
        return None

    def optimizer(self, network: nn.Module, config: PPOConfig, name: str) -> Optimizer:
        return ClippedAdam(network, config, name)

    def train_policy(
        self, policy: Policy, optimizer: Optimizer, batches: Iterable[PolicyBatch], config: PPOConfig
    ) -> Metrics:
        collected = MeanMetrics()
        for batch in batches:
            outputs, values, _ = policy(batch.rows, batch.hidden)
            loss, metrics = self.ppo_loss(
                outputs, values, batch.choices, batch.old_log_probs, batch.old_values, batch.advantages, batch.returns,
                config, policy.actions,
            )  # fmt: skip
            optimizer.step(loss)
            collected.add(metrics)
        return collected.mean()

    def train_model(self, reward: IntrinsicReward, optimizer: Optimizer, batches: Iterable[Batch]) -> Metrics:
        collected = MeanMetrics()
        for batch in batches:
            loss, metrics = reward.loss(batch)
            optimizer.step(loss)
            collected.add({"model_loss": loss, **metrics})
        return collected.mean()

    def aside(self, work: Callable[[], T]) -> Callable[[], T]:
        result = work()
        return lambda: result

    def undisturbed(self) -> AbstractContextManager[None]:
        return nullcontext()


class PlainActing:
    """The policy as it is."""

    known = None

    def __init__(self, policy: Policy, repeats: bool) -> None:
        self.policy, self.repeats = policy.eval(), repeats
        self.seen: list[Tensor] = []

    def step(self, observations: NDArray[Any], hidden: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(torch.from_numpy(observations))
        outputs, hidden = self.policy.act(self.seen[-1].to(hidden.device), hidden)
        return outputs, hidden

    def table(self, last: NDArray[Any], finals: NDArray[Any]) -> tuple[ObservationTable, Tensor, Tensor]:
        everything = [*self.seen, torch.from_numpy(np.ascontiguousarray(last)), torch.from_numpy(finals)]
        table, names = self.policy.ops.tabulate(torch.cat(everything).to(self.policy.device), self.repeats)
        ids, final_ids = names.split([len(names) - len(finals), len(finals)])
        return table, ids.view(len(self.seen) + 1, -1), final_ids
