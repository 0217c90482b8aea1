"""Integers, compiled: which observations and patches a batch holds, and how often (`patches.PatchPlan`)."""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled


@compiled
def occurring_rows(ids: Array, size: int) -> tuple[Array, Array, Array]:
    """Of a batch [B] of ids below `size`: the distinct ones [u], what part each makes up [u], which each id is [B]"""
    counts, renamed = np.zeros(size, np.int64), np.empty(size, np.int64)
    for name in ids:
        counts[name] += 1
    distinct = np.flatnonzero(counts)
    for new, name in enumerate(distinct):
        renamed[name] = new
    return distinct, counts[distinct] / len(ids), renamed[ids]


@compiled
def shares_of_names(names: Array, rows: Array, weights: Array, kinds: int) -> Array:
    """What part of a batch each name makes up, where rows [u] of names [U, positions] weigh weights [u]. [kinds]"""
    positions = names.shape[1]
    shares = np.zeros(kinds)
    for u in range(len(rows)):
        weight = weights[u] / positions
        for name in names[rows[u]]:
            shares[name] += weight
    return shares


@compiled
def occurring_patches(shares: Array, children: Array, below: Array) -> tuple[Array, Array, Array]:
    """Of the patches that have a share: their corners 4 * child + corner [P, 4], shares [P], and a table of new names.

    shares: [kinds], children: [kinds, 4], below: the new names of the children
    """
    distinct = np.flatnonzero(shares)
    corners, renamed = np.empty((len(distinct), 4), np.int64), np.zeros(len(shares), np.int64)
    for new, name in enumerate(distinct):
        renamed[name] = new
        for k in range(4):
            corners[new, k] = 4 * below[children[name, k]] + k
    return corners, shares[distinct], renamed


@compiled
def occurring_places(
    pairs: Array,  # [U, positions] the pair of a position and a patch that each observation has at each position
    rows: Array,  # [u] the observations that occur
    patches: Array,  # [Q] of each pair
    bounds: Array,  # [positions+1] where the pairs of each position begin
    below: Array,  # new names of patches
    group: int,
) -> tuple[Array, Array, Array, Array]:
    """The pairs that occur, in rectangles of `group` positions each, since positions differ in how many they have.

    Gives the positions by that number [positions], the height of each rectangle [groups], the patch in each slot [S],
    padded with any, and the slots of each row [u, positions].
    """
    positions = pairs.shape[1]
    slots, sizes = np.full(len(patches), -1, np.int64), np.zeros(positions, np.int64)
    for u in range(len(rows)):
        for position, pair in enumerate(pairs[rows[u]]):
            if slots[pair] < 0:
                slots[pair] = 0
                sizes[position] += 1
    order = np.argsort(sizes)
    heights = np.array([sizes[order[min(end, positions) - 1]] for end in range(group, positions + group, group)])
    placed, of_rows = np.zeros(group * heights.sum(), np.int64), np.empty((len(rows), positions), np.int64)
    begin = 0
    for place, position in enumerate(order):
        slot = begin
        for pair in range(bounds[position], bounds[position + 1]):
            if slots[pair] == 0:
                slots[pair] = slot
                placed[slot] = below[patches[pair]]
                slot += 1
        begin += heights[place // group]
    for u in range(len(rows)):
        for position, pair in enumerate(pairs[rows[u]]):
            of_rows[u, position] = slots[pair]
    return order, heights, placed[:begin], of_rows


@compiled
def occurring_slots(
    pairs: Array,  # [U, positions] the pair of a position and a patch that each observation has at each position
    rows: Array,  # [u] the observations that occur
    patches: Array,  # [Q] of each pair
    bounds: Array,  # [positions+1] where the pairs of each position begin
    below: Array,  # new names of patches
) -> tuple[Array, Array, Array]:
    """The pairs that occur, one slot each, ordered by position.

    Gives where the slots of each position begin [positions+1], the patch in each slot [S], and the slots of each row
    [u, positions].
    """
    positions = pairs.shape[1]
    slots, begins = np.full(len(patches), -1, np.int64), np.zeros(positions + 1, np.int64)
    for u in range(len(rows)):
        for pair in pairs[rows[u]]:
            slots[pair] = 0
    placed, of_rows, slot = np.empty(len(patches), np.int64), np.empty((len(rows), positions), np.int64), 0
    for position in range(positions):
        for pair in range(bounds[position], bounds[position + 1]):
            if slots[pair] == 0:
                slots[pair] = slot
                placed[slot] = below[patches[pair]]
                slot += 1
        begins[position + 1] = slot
    for u in range(len(rows)):
        for position, pair in enumerate(pairs[rows[u]]):
            of_rows[u, position] = slots[pair]
    return begins, placed[:slot].copy(), of_rows


@compiled
def batch_plan(
    names: Array,  # [B] observations of a batch
    cells: Array,  # [U, cells] the kind of each cell of each observation
    kinds: int,  # of cells
    first: tuple[Array, Array],  # `patches.PatchLevel` of 2x2 cells
    second: tuple[Array, Array],
    third: tuple[Array, Array],
    pairs: Array,  # `patches.PlacedPatches`
    patches: Array,
    bounds: Array,
) -> tuple[Array, ...]:
    """All of the above for one batch.

    Gives which of its distinct observations each row is and the share of each, the cells' shares, the corners and
    shares of the patches of each size, and what `occurring_slots` does.
    """
    rows, weights, inverse = occurring_rows(names, len(cells))
    cell_shares, below = shares_of_names(cells, rows, weights, kinds), np.arange(kinds + 1)
    shares = shares_of_names(first[0], rows, weights, len(first[1]))
    corners_1, shares_1, below = occurring_patches(shares, first[1], below)
    shares = shares_of_names(second[0], rows, weights, len(second[1]))
    corners_2, shares_2, below = occurring_patches(shares, second[1], below)
    shares = shares_of_names(third[0], rows, weights, len(third[1]))
    corners_3, shares_3, below = occurring_patches(shares, third[1], below)
    begins, placed, slots = occurring_slots(pairs, rows, patches, bounds, below)
    return (
        inverse, weights, cell_shares, corners_1, shares_1, corners_2, shares_2, corners_3, shares_3, begins, placed,
        slots,
    )  # fmt: skip


@compiled
def rows_differ(storage: Array, slots: Array, table: Array, ids: Array) -> Array:
    """Whether storage[slots[b]] and table[ids[b]] differ anywhere. storage: [S, K], table: [U, K] -> [B] bool"""
    differs = np.zeros(len(slots), np.bool_)
    for b in range(len(slots)):
        first, second = storage[slots[b]], table[ids[b]]
        for k in range(len(first)):
            if first[k] != second[k]:
                differs[b] = True
                break
    return differs
