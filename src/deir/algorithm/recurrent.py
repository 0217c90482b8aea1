"""A GRU over observations, of which many rows of a batch may share one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deir.algorithm.networks import Encoder
from deir.fast import loops
from deir.fast.kernels import arrays_of, gru_update
from deir.fast.patches import Rows


class Gates(NamedTuple):
    """What a GRU takes of its inputs: W x + b, once for each distinct one."""

    distinct: Tensor  # [U, 3H]
    rows: Tensor | None  # [B] which of them each row of the batch has; None: its own

    def split(self, sizes: list[int]) -> list[Gates]:
        """Those of the parts of a batch."""
        if self.rows is None:
            return [Gates(part, None) for part in self.distinct.split(sizes)]
        return [Gates(self.distinct, part) for part in self.rows.split(sizes)]

    def rows_of(self, hidden: Tensor) -> Tensor:
        """[B] for the memories [B, H]"""
        return torch.arange(len(hidden), device=hidden.device) if self.rows is None else self.rows

    def gather(self) -> Tensor:
        """[B, 3H]"""
        return self.distinct if self.rows is None else self.distinct.index_select(0, self.rows)


def gru_gates(cell: nn.GRUCell, encoder: Encoder, observations: Rows | Tensor) -> Gates:
    if isinstance(observations, Rows):
        embeddings, rows = encoder.embed_distinct(observations)
    else:
        embeddings, rows = encoder(observations), None
    return Gates(F.linear(embeddings, cell.weight_ih, cell.bias_ih), rows)


def gru_step(cell: nn.GRUCell, gates: Gates, hidden: Tensor) -> Tensor:
    """The memory after one more input. hidden: [M, H] before it -> [B, H]; row b continues memory b mod M."""
    return gru_update(gates.distinct, F.linear(hidden, cell.weight_hh, cell.bias_hh), hidden, gates.rows)


@torch.no_grad()
def gru_scan(cell: nn.GRUCell, gates: Gates, hidden: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Runs a GRU over time. gates of T*N steps, hidden [N, H] before the first step, starts [T, N] bool.

    Gives the memory before each step (zero at episode starts) and after it, both [T, N, H].
    """
    rows = gates.rows_of(starts.flatten()).view(starts.shape)  # [T, N]
    if hidden.device.type == "cpu":
        arrays = arrays_of(gates.distinct, rows, hidden, starts, cell.weight_hh.T, cell.bias_hh)
        before, after = loops.gru_scan(*arrays)
        return torch.from_numpy(before), torch.from_numpy(after)
    befores, afters = [], []
    for row, start in zip(rows, starts, strict=True):
        befores.append(hidden * ~start[:, None])
        hidden = gru_step(cell, Gates(gates.distinct, row), befores[-1])
        afters.append(hidden)
    return torch.stack(befores), torch.stack(afters)
