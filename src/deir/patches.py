"""Observations that repeat: each distinct observation, and each distinct patch of one, is evaluated once.

A MiniGrid view is made of few kinds of cells, so a mini-batch of a thousand views holds a few hundred distinct 2x2
patches, which are all a first 2x2 convolution can see; the same holds for its 3x3 and 4x4 patches and the layers after.
`ObservationTable` names the distinct observations and patches of one training iteration by integers, once. `Rows` picks
observations out of it, and `Rows.plan` says which patches those need and how often each occurs, which is what batch
normalisation needs to stay the same mathematics as on the full batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CONVOLUTIONS = 3  # 2x2 convolutions of the grid encoder, so patches of 2x2, 3x3 and 4x4 cells


class PatchLevel(NamedTuple):
    """The distinct patches of one size."""

    of_observation: Tensor  # [U, positions] the patch at each position of each distinct observation
    children: Tensor  # [P, 4] the four patches of the size below that make up each one


class PlacedPatches(NamedTuple):
    """The distinct pairs of a position and a last-level patch, ordered by position."""

    of_observation: Tensor  # [U, positions]
    patches: Tensor  # [Q] the patch of each pair
    bounds: Tensor  # [positions+1] where the pairs of each position begin


class PatchPlan(NamedTuple):
    """What one batch needs of a table; indices count within the batch's own distinct things."""

    cells: Tensor  # [C, channels] float
    cell_counts: Tensor  # [C] how often each occurs in the batch; index C stands for padding
    corners: list[Tensor]  # for each level [P, 4]: 4 * child + corner, a row of the products of children and corners
    counts: list[Tensor]  # for each level [P]
    placed: Tensor  # [positions, G] the last-level patches that occur at each position, padded with any
    placed_of_observation: Tensor  # [u, positions] which of those, counted in one row, make up each observation
    observation_counts: Tensor  # [u]
    inverse: Tensor  # [B] which distinct observation each row is


@dataclass(frozen=True)
class ObservationTable:
    """The observations of one iteration. Without patches (noise, images, vectors) nothing is taken to repeat."""

    distinct: Tensor  # [U, *obs]
    cells: Tensor | None = None  # [C, channels] float
    cells_of_observation: Tensor | None = None  # [U, H*W]
    levels: tuple[PatchLevel, ...] = ()
    placed: PlacedPatches | None = None
    padding: int = 0  # cells of zeros around each view

    def rows(self, ids: Tensor) -> Rows:
        return Rows(self, ids)


class Rows(NamedTuple):
    """A batch of observations, as rows of a table."""

    table: ObservationTable
    ids: Tensor  # [B]

    def __len__(self) -> int:
        return len(self.ids)

    def gather(self) -> Tensor:
        """[B, *obs]"""
        return self.table.distinct[self.ids]

    def plan(self) -> PatchPlan:
        table = self.table
        assert table.cells is not None and table.cells_of_observation is not None and table.placed is not None
        counts = torch.bincount(self.ids, minlength=len(table.distinct))
        observations, renamed = _occurring(counts)
        inverse = renamed[self.ids]
        weights = counts[observations].double()
        below = torch.arange(len(table.cells) + 1, device=self.ids.device)  # cells are few: all keep their numbers
        corner = torch.arange(4, device=self.ids.device)
        corners, level_counts = [], []
        for level in table.levels:
            patches = level.of_observation.index_select(0, observations)
            counts = _weighted_count(patches, weights, len(level.children))
            occurring, renamed = _occurring(counts)
            corners.append(4 * below[level.children.index_select(0, occurring)] + corner)
            level_counts.append(counts[occurring])
            below = renamed
        placed = table.placed.of_observation.index_select(0, observations)
        occurring, renamed = _occurring(torch.bincount(placed.flatten(), minlength=len(table.placed.patches)))
        slots, padded = _padded_by_position(occurring, table.placed.bounds, below[table.placed.patches[occurring]])
        return PatchPlan(
            cells=table.cells,
            cell_counts=_weighted_count(
                table.cells_of_observation.index_select(0, observations), weights, len(table.cells)
            ),
            corners=corners,
            counts=level_counts,
            placed=padded,
            placed_of_observation=slots[renamed[placed]],
            observation_counts=weights,
            inverse=inverse,
        )


def _padded_by_position(pairs: Tensor, bounds: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs [Q] ordered by position, in a rectangle: the slot of each [Q], and the patch in each slot [positions, G]"""
    begins = torch.searchsorted(pairs, bounds)
    sizes = begins[1:] - begins[:-1]
    positions, width = len(sizes), int(sizes.max())
    slots = torch.arange(len(pairs), device=pairs.device)
    slots = slots + (torch.arange(positions, device=pairs.device) * width - begins[:-1]).repeat_interleave(sizes)
    padded = patches.new_zeros(positions * width)
    padded[slots] = patches
    return slots, padded.view(positions, width)


def _weighted_count(names: Tensor, weights: Tensor, kinds: int) -> Tensor:
    """How often each name occurs in the batch. names: [u, positions], weights: [u] -> [kinds]"""
    return torch.bincount(names.flatten(), weights.repeat_interleave(names.shape[1]), minlength=kinds)


def _occurring(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The names that occur, and a table from old to new names."""
    names = counts.nonzero()[:, 0]
    renamed = torch.zeros(len(counts), dtype=torch.int64, device=counts.device)
    renamed[names] = torch.arange(len(names), device=counts.device)
    return names, renamed


def concatenate(parts: list[Rows | Tensor]) -> Rows | Tensor:
    """One batch of several, which stay rows when all are of one table."""
    rows = [part for part in parts if isinstance(part, Rows)]
    if len(rows) == len(parts) and all(part.table is rows[0].table for part in rows):
        return Rows(rows[0].table, torch.cat([part.ids for part in rows]))
    return torch.cat([part.gather() if isinstance(part, Rows) else part for part in parts])


def extend_table(table: ObservationTable, storage: Tensor, slots: Tensor) -> tuple[ObservationTable, Tensor, Tensor]:
    """A table of repeating observations with those of `storage[slots]` added.

    Gives the table, the new row of each old row [U], and the row of each slot [len(slots)].
    """
    used, inverse = slots.unique(return_inverse=True)
    device = table.distinct.device
    extended, names = tabulate(torch.cat([table.distinct, storage[used].to(device)]), True, table.padding)
    old, new = names.split([len(table.distinct), len(used)])
    return extended, old, new[inverse.to(device)]


def tabulate(observations: Tensor, repeats: bool, padding: int = 0) -> tuple[ObservationTable, Tensor]:
    """[B, *obs] -> the table of distinct observations and, for each of the B, its row [B].

    repeats: whether to look for distinct ones, which must be views of integer cells [B, H, W, 3].
    """
    if not repeats:
        return ObservationTable(observations), torch.arange(len(observations), device=observations.device)
    grids = observations.cpu().numpy()
    first, names = _distinct_rows(grids.reshape(len(grids), -1))
    distinct = grids[first]
    cell_kinds, cells = _distinct_cells(distinct)
    levels, grid = [], np.pad(cells, ((0, 0), (padding, padding), (padding, padding)), constant_values=len(cell_kinds))
    kinds = len(cell_kinds) + 1
    for _ in range(CONVOLUTIONS):
        corners = np.stack([grid[:, :-1, :-1], grid[:, :-1, 1:], grid[:, 1:, :-1], grid[:, 1:, 1:]], -1)
        children, grid = _distinct_quadruples(corners, kinds)
        levels.append(PatchLevel(_tensor(grid.reshape(len(grid), -1)), _tensor(children)))
        kinds = len(children)
    device = observations.device
    table = ObservationTable(
        torch.from_numpy(distinct).to(device),
        torch.from_numpy(cell_kinds).float().to(device),
        _tensor(cells.reshape(len(cells), -1)).to(device),
        tuple(PatchLevel(*(part.to(device) for part in level)) for level in levels),
        PlacedPatches(*(part.to(device) for part in _place(grid.reshape(len(grid), -1), kinds))),
        padding,
    )
    return table, _tensor(names).to(device)


def _place(patches: NDArray[np.int64], kinds: int) -> PlacedPatches:
    """[U, positions] names below `kinds` of the patches at each position of each observation"""
    positions = np.arange(patches.shape[1])
    pairs, names = np.unique(patches + positions * kinds, return_inverse=True)
    bounds = np.searchsorted(pairs, np.arange(patches.shape[1] + 1) * kinds)
    return PlacedPatches(_tensor(names.reshape(patches.shape)), _tensor(pairs % kinds), _tensor(bounds))


def _tensor(indices: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))


def _distinct_rows(rows: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the distinct rows, and for each row which of those it equals."""
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1])))[:, 0]
    _, first, names = np.unique(whole, return_index=True, return_inverse=True)
    return first, names


def _distinct_cells(grids: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """[U, H, W, 3] -> the kinds of cells [C, 3] and the kind of each cell [U, H, W]"""
    keys = (grids[..., 0].astype(np.int32) << 16) | (grids[..., 1].astype(np.int32) << 8) | grids[..., 2]
    kinds, names = np.unique(keys, return_inverse=True)
    return np.stack([kinds >> 16, (kinds >> 8) & 255, kinds & 255], -1).astype(np.uint8), names.reshape(keys.shape)


def _distinct_quadruples(corners: NDArray[np.int64], kinds: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[U, h, w, 4] names below `kinds` -> distinct quadruples [P, 4] and the quadruple at each position [U, h, w]"""
    if kinds < 2**15:  # four names fit into one integer
        keys = ((corners[..., 0] * kinds + corners[..., 1]) * kinds + corners[..., 2]) * kinds + corners[..., 3]
    else:
        pairs = np.unique(corners.reshape(-1, 2) @ np.array([kinds, 1]), return_inverse=True)[1].reshape(-1, 2)
        keys = (pairs @ np.array([int(pairs.max()) + 1, 1])).reshape(corners.shape[:-1])
    _, first, names = np.unique(keys, return_index=True, return_inverse=True)
    return corners.reshape(-1, 4)[first], names.reshape(keys.shape)
