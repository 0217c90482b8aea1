"""Whole rollouts of MiniGrid in compiled code: groups of environments side by side, each played to the rollout's end.

Python is needed where an episode ends, for the next layout alone.
"""

from __future__ import annotations

from math import prod
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deir.algorithm.actions import DiscreteActions
from deir.algorithm.policy import Policy
from deir.algorithm.rollout import Played, Position
from deir.algorithm.types import ObservationTable
from deir.envs.base import VectorEnvs
from deir.envs.minigrid.boards import Board
from deir.envs.minigrid.engine import MiniGridEnvs
from deir.fast.acting import FrozenPolicy
from deir.fast.arrays import arrays_of
from deir.fast.blas import product
from deir.fast.naming import free_places
from deir.fast.patch_cache import grid_weights, larger, new_level
from deir.fast.patches import tabulate
from deir.fast.play_loops import AS_VECTORS, BY_PATCHES, DONE, ENDED, FINALS, NAMES, WHOLE, Net, Records, Tables, play
from deir.fast.threads import free_threads, share_out

GROUPS = 4  # that environments are divided into where views are encoded together, whatever the number of threads
PATCHES = 2048  # of each size, at first


def play_rollout(envs: VectorEnvs, policy: Policy, position: Position, noise: Tensor) -> Played | None:
    """`rollout.step_by_step` in compiled code; None where it is not known how. noise: [T, N, A]"""
    if type(envs) is not MiniGridEnvs or product(policy.gru.weight_hh.dtype) is None:
        return None
    net = net_of(FrozenPolicy(policy), envs.repeats) if envs.board(slice(0)) is not None else None
    if net is None:
        return None
    # a view that is encoded alone has the same bits in any group: then fewer groups meet fewer views twice
    count = min(GROUPS if net.encoder == WHOLE else free_threads(), envs.n_envs)
    bounds = [envs.n_envs * g // count for g in range(count + 1)]
    parts = [slice(*pair) for pair in zip(bounds[:-1], bounds[1:], strict=True)]
    boards = [board for part in parts if (board := envs.board(part)) is not None]
    draws, drawn = noise.numpy(), envs.draw_noise(len(noise))
    groups = [
        Group(net, board, position, part, draws[:, part], drawn[:, part], envs.repeats)
        for part, board in zip(parts, boards, strict=True)
    ]
    beginning = Lock()  # layouts come from one stock
    share_out(lambda number: groups[number].play(envs, beginning), count)
    played = together(groups)
    envs.played(played.observations)
    return played


def net_of(frozen: FrozenPolicy, named: bool) -> Net | None:
    """None of an encoder that is not compiled, and of actions that are not a choice out of several."""
    policy = frozen.policy
    if type(policy.actions) is not DiscreteActions or (frozen.grids is None and frozen.vectors is None):
        return None
    flat = np.empty(0, frozen.arrays[0][1].dtype)
    layer = flat.reshape(0, 0), flat
    whole: Any = (flat, flat), (layer,) * 3, layer, layer  # as `grid_weights` takes them
    vectors: Any = (layer,) * 3
    padding, encoder = 0, AS_VECTORS
    if frozen.grids is not None:
        whole, padding = (frozen.grids.inputs, *frozen.grids.layers), frozen.grids.padding
        encoder = BY_PATCHES if named else WHOLE
    elif frozen.vectors is not None:
        of_gru = (policy.gru.weight_ih.T, policy.gru.bias_ih)
        vectors = tuple(arrays_of(*pair) for pair in (*frozen.vectors.layers, of_gru))
    normal, convolutions, linear, inputs = whole
    grid = grid_weights(normal, convolutions, linear, inputs, padding, encoder == BY_PATCHES)
    layers: Any = frozen.arrays
    memory, features, last = layers
    return Net(grid, whole, vectors, memory, features, last, encoder, frozen.gemm)


class Group:
    """Some neighbouring environments in one rollout."""

    def __init__(
        self,
        net: Net,
        board: Board,
        position: Position,
        part: slice,  # of the environments
        noise: NDArray[Any],  # [T, G, A] of choices
        drawn: NDArray[np.float32],  # [T, G, *obs] for noisy views
        named: bool,
    ) -> None:
        self.net, self.board, self.part, self.noise = net, board, part, np.ascontiguousarray(noise)
        observations, number = position.observations[part], net.memory[1].dtype
        (steps, envs, actions), (hidden, gates) = noise.shape, net.memory[0].shape
        every, rows = (steps + 1, envs), (2 * steps + 1) * envs if named else envs
        shape, finals = observations.shape[1:], steps * envs
        seen = np.empty((1 if named else steps + 1, *observations.shape), observations.dtype)
        seen[0] = observations
        if not named:
            seen[1:] = drawn
        self.records = Records(
            seen=seen, ids=np.empty(every, np.int64), starts=np.empty(every, np.bool_),
            before=np.empty((*every, hidden), number), after=np.empty((*every, hidden), number),
            outputs=np.empty((steps, envs, actions), number), actions=np.empty((steps, envs), np.int64),
            rewards=np.empty((steps, envs)), terminated=np.empty((steps, envs), np.bool_),
            truncated=np.empty((steps, envs), np.bool_), states=np.empty(every, np.uint64),
            positions=np.empty((*every, 2), np.int64), final_indices=np.empty(finals, np.int64),
            final_seen=np.empty((0 if named else finals, *shape), seen.dtype), final_ids=np.empty(finals, np.int64),
            final_after=np.empty((finals, hidden), number),
        )  # fmt: skip
        self.records.starts[0] = position.starts[part]
        self.records.before[0] = position.hidden[part].numpy() * ~position.starts[part][:, None]
        widths = net.grid.kernel_2.shape[1], net.grid.kernel_3.shape[1], len(net.grid.bias_3)
        levels: Any = tuple(new_level(PATCHES if width else 1, width, net.grid.bias_1) for width in widths)
        self.tables = Tables(
            free_places(rows if named else 1), np.empty((rows, prod(shape)), seen.dtype),
            np.empty((rows, gates), number), levels, np.zeros(6, np.int64), named,
        )  # fmt: skip

    def play(self, envs: MiniGridEnvs, beginning: Lock) -> None:
        t, why, records = 0, ENDED, self.records
        while why != DONE:
            t, why = play(t, self.net, self.tables, self.board, records, self.noise)
            if why == ENDED:
                ended = np.flatnonzero(records.starts[t])
                with beginning:
                    firsts = envs.begin(ended + self.part.start)
                records.seen[min(t, len(records.seen) - 1), ended] = firsts
            elif why != DONE:
                self._make_room()

    def _make_room(self) -> None:
        cells = prod(2 * self.net.grid.padding + side for side in self.records.seen.shape[2:4])
        room = 4 * self.noise.shape[1] * cells
        pairs = zip(self.tables.levels, self.tables.counts[:3].tolist(), strict=True)
        grown: Any = tuple(larger(*pair, room) for pair in pairs)
        self.tables = self.tables._replace(levels=grown)


def together(groups: list[Group]) -> Played:
    """The environments of all groups, side by side."""
    ended = [int(group.tables.counts[FINALS]) for group in groups]
    order = np.zeros(0, np.int64)

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(group.records, name) for group in groups], axis=1)

    def finals(name: str, sort: bool = True) -> NDArray[Any]:
        """[K, …] of the steps that ended an episode, in their order"""
        parts = [getattr(group.records, name)[:count] for group, count in zip(groups, ended, strict=True)]
        return np.concatenate(parts)[order] if sort else np.concatenate(parts)

    starts, seen = joined("starts"), joined("seen")
    steps, envs = len(starts) - 1, starts.shape[1]
    for group in groups:
        step, env = np.divmod(group.records.final_indices, group.records.ids.shape[1])
        group.records.final_indices[:] = step * envs + env + group.part.start
    order = np.argsort(finals("final_indices", sort=False))
    table: ObservationTable
    if groups[0].tables.named:
        table = _table_of_names(groups)
        ids, final_ids = joined("ids"), finals("final_ids")
    else:
        everything = np.concatenate([seen.reshape(-1, *seen.shape[2:]), finals("final_seen")])
        table = ObservationTable(torch.from_numpy(everything))
        ids, final_ids = np.split(np.arange(len(everything)), [starts.size])
        ids = ids.reshape(starts.shape)
    tensor, actions, after = torch.from_numpy, torch.from_numpy(joined("actions")), joined("after")
    return Played(
        table, tensor(ids), tensor(finals("final_indices")), tensor(final_ids), starts,
        tensor(joined("before")[:steps]), tensor(after[:steps]), tensor(joined("outputs")), actions, actions,
        joined("rewards"), joined("terminated"), joined("truncated"), np.ones((steps, envs), np.bool_),
        joined("states"), joined("positions"), seen[-1], tensor(after[steps]), tensor(finals("final_after")), None,
    )  # fmt: skip


def _table_of_names(groups: list[Group]) -> ObservationTable:
    """The views of all groups; the groups' names become rows of it, in place."""
    known = [int(group.tables.counts[NAMES]) for group in groups]
    stored = np.concatenate([group.tables.stored[:count] for group, count in zip(groups, known, strict=True)])
    table, rows = tabulate(torch.from_numpy(stored.reshape(len(stored), *groups[0].records.seen.shape[2:])))
    for group, renamed in zip(groups, np.split(rows.numpy(), np.cumsum(known)[:-1]), strict=True):
        count = group.tables.counts[FINALS]
        group.records.ids[:] = renamed[group.records.ids]
        group.records.final_ids[:count] = renamed[group.records.final_ids[:count]]
    return table
