"""Observations that repeat: each distinct observation, and each distinct patch of one, is evaluated once.

A MiniGrid view is made of few kinds of cells, so a mini-batch of a thousand views holds a few hundred distinct 2x2
patches, which are all a first 2x2 convolution can see; the same holds for its 3x3 and 4x4 patches and the layers after.
`PatchTable` names the distinct observations and patches of one training iteration by integers, once. `plan_of` says
which patches a batch of its rows needs and how often each occurs, which is what batch normalisation needs to stay the
same mathematics as on the full batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deir.algorithm.networks import grid_padding
from deir.algorithm.types import ObservationTable
from deir.fast import naming, planning

Indices = NDArray[np.int64]
Shares = NDArray[np.float64]
GROUP = 4  # positions whose patches are multiplied together
CONVOLUTIONS = 3  # 2x2 convolutions of the grid encoder, so patches of 2x2, 3x3 and 4x4 cells


class PatchLevel(NamedTuple):
    """The distinct patches of one size."""

    of_observation: Indices  # [U, positions] the patch at each position of each distinct observation
    children: Indices  # [P, 4] the four patches of the size below that make up each one


class PlacedPatches(NamedTuple):
    """The distinct pairs of a position and a last-level patch, ordered by position."""

    of_observation: Indices  # [U, positions]
    patches: Indices  # [Q] the patch of each pair
    bounds: Indices  # [positions+1] where the pairs of each position begin


class Layer(NamedTuple):
    """What one layer needs of a batch; indices count within the batch's own distinct things."""

    corners: Indices  # [P, 4]: 4 * child + corner, a row of the products of children and corners
    share: Shares  # [P] what part of the batch each patch makes up
    total: int  # patches in the batch, repeated ones counted


class Placed(NamedTuple):
    """The last-level patches that occur at each position, in rectangles of a few positions each."""

    order: Indices  # [positions] the positions, by how many patches they have
    heights: Indices  # [groups] slots for each position of a rectangle
    patches: Indices  # [S] the patch in each slot, padded with any


class PatchPlan(NamedTuple):
    """What one batch needs of a table."""

    cells: Tensor  # [C, channels] float; index C stands for padding
    cell_share: Shares  # [C]
    cell_total: int
    layers: list[Layer]
    placed: Placed
    placed_of_observation: Indices  # [u, positions] which of its slots make up each observation
    observation_share: Shares  # [u]
    inverse: Tensor  # [B] which distinct observation each row is


class Patches(NamedTuple):
    """The distinct patches of a table's observations."""

    cells: Tensor  # [C, channels] float
    cells_of_observation: Indices  # [U, H*W]
    levels: tuple[PatchLevel, ...]
    placed: PlacedPatches


@dataclass(frozen=True)
class PatchTable(ObservationTable):
    """The distinct observations of one iteration, and their distinct patches, which are named when first asked for.

    Layer normalisation asks for none, and they take eight times as much memory as the observations.
    """

    view: tuple[int, ...] | None = None  # the view's shape, where an observation is a row of bytes that begins with it

    @cached_property
    def patches(self) -> Patches:
        distinct = self.distinct.numpy()
        return _patches_of(distinct if self.view is None else distinct[:, : prod(self.view)].reshape(-1, *self.view))


def plan_of(table: PatchTable, ids: Tensor) -> PatchPlan:
    """Integer work: which observations and patches a batch of rows [B] holds, and how often."""
    names, named = ids.numpy(), table.patches
    observations, weights, inverse = planning.occurring_rows(names, len(table.distinct))
    below, layers = np.arange(len(named.cells) + 1), []  # cells are few: all keep their numbers
    for level in named.levels:
        shares = planning.shares_of_names(level.of_observation, observations, weights, len(level.children))
        corners, shares, below = planning.occurring_patches(shares, level.children, below)
        total = len(names) * level.of_observation.shape[1]
        layers.append(Layer(corners, shares, total))
    pairs, patches, bounds = named.placed
    *placed, slots = planning.occurring_places(pairs, observations, patches, bounds, below, GROUP)
    cells = named.cells_of_observation
    return PatchPlan(
        cells=named.cells,
        cell_share=planning.shares_of_names(cells, observations, weights, len(named.cells)),
        cell_total=len(names) * cells.shape[1],
        layers=layers,
        placed=Placed(*placed),
        placed_of_observation=slots,
        observation_share=weights,
        inverse=torch.from_numpy(inverse),
    )


def extend_table(table: PatchTable, storage: Tensor, slots: Tensor) -> tuple[PatchTable, Tensor, Tensor]:
    """The table with the observations of `storage[slots]` added.

    Gives the table, the new row of each old row [U], and the row of each slot [len(slots)].
    """
    used, inverse = slots.unique(return_inverse=True)
    extended, names = tabulate(torch.cat([table.distinct, storage[used]]), table.view)
    old, new = names.split([len(table.distinct), len(used)])
    return extended, old, new[inverse]


def tabulate(observations: Tensor, view: tuple[int, ...] | None = None) -> tuple[PatchTable, Tensor]:
    """[B, *obs] -> the table of distinct observations and, for each of the B, its row [B].

    Observations are views of integer cells [B, H, W, 3], or rows of bytes that begin with a view of the shape `view`.
    """
    everything = np.ascontiguousarray(observations.numpy())
    rows, names = _sorted(*naming.distinct_rows(everything.reshape(len(everything), prod(everything.shape[1:]))))
    return PatchTable(torch.from_numpy(rows.reshape(-1, *everything.shape[1:])), view), torch.from_numpy(names)


def _patches_of(grids: NDArray[np.uint8]) -> Patches:
    """Of views [U, H, W, 3]."""
    padding = grid_padding(grids.shape[1:])
    cell_kinds, cells = _distinct_cells(grids)
    levels, grid = [], np.pad(cells, ((0, 0), (padding, padding), (padding, padding)), constant_values=len(cell_kinds))
    kinds = len(cell_kinds) + 1
    for _ in range(CONVOLUTIONS):
        corners = np.stack([grid[:, :-1, :-1], grid[:, :-1, 1:], grid[:, 1:, :-1], grid[:, 1:, 1:]], -1)
        children, grid = _distinct_quadruples(corners, kinds)
        levels.append(PatchLevel(np.ascontiguousarray(grid.reshape(len(grid), -1)), children))
        kinds = len(children)
    return Patches(
        torch.from_numpy(cell_kinds).float(),
        np.ascontiguousarray(cells.reshape(len(cells), -1)),
        tuple(levels),
        PlacedPatches(*naming.distinct_pairs(levels[-1].of_observation, kinds)),
    )


def _sorted(rows: NDArray[np.uint8], names: Indices) -> tuple[NDArray[np.uint8], Indices]:
    """The same with rows [D, K] in their own order, so that it does not matter which occurred first. names: [N]"""
    order = np.argsort(rows.view(np.dtype((np.void, rows.shape[1])))[:, 0])
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return rows[order], places[names]


def _distinct_cells(grids: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """[U, H, W, 3] -> the kinds of cells [C, 3] and the kind of each cell [U, H, W]"""
    keys = (grids[..., 0].astype(np.int64) << 16) | (grids[..., 1].astype(np.int64) << 8) | grids[..., 2]
    first, names = naming.distinct_numbers(keys.ravel())
    return grids.reshape(-1, 3)[first], names.reshape(keys.shape)


def _distinct_quadruples(corners: NDArray[np.int64], kinds: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[U, h, w, 4] names below `kinds` -> distinct quadruples [P, 4] and the quadruple at each position [U, h, w]"""
    if kinds < 2**15:  # four names fit into one integer
        keys = ((corners[..., 0] * kinds + corners[..., 1]) * kinds + corners[..., 2]) * kinds + corners[..., 3]
    else:
        pairs = naming.distinct_numbers(corners.reshape(-1, 2) @ np.array([kinds, 1]))[1].reshape(-1, 2)
        keys = (pairs @ np.array([int(pairs.max()) + 1, 1])).reshape(corners.shape[:-1])
    first, names = naming.distinct_numbers(keys.ravel())
    return corners.reshape(-1, 4)[first], names.reshape(keys.shape)
