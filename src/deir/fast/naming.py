"""Names for distinct things, compiled: 0, 1, 2 … in the order in which they first occur."""

from __future__ import annotations

import numpy as np

from deir.compiled import Array, compiled


@compiled
def free_places(count: int) -> Array:
    """For the names of as many things; half of the places or more stay free. Their number is a power of two."""
    size = 4
    while size < 2 * count:
        size *= 2
    return np.full(size, -1, np.int64)


@compiled
def _place_of_row(places: Array, stored: Array, row: Array) -> int:
    """Where the name of a row of bytes stands, or is to stand."""
    mixed = np.uint64(14695981039346656037)  # FNV-1a
    for byte in row:
        mixed = (mixed ^ np.uint64(byte)) * np.uint64(1099511628211)
    last = len(places) - 1
    place = np.int64(mixed ^ (mixed >> np.uint64(29))) & last
    while places[place] >= 0:
        other, k = stored[places[place]], 0
        while k < len(row) and other[k] == row[k]:
            k += 1
        if k == len(row):
            break
        place = (place + 1) & last
    return int(place)


@compiled
def name_rows(places: Array, stored: Array, known: int, rows: Array) -> tuple[Array, int]:
    """The names of rows of bytes [N, K], and how many are known then: new ones get the next names and are stored."""
    names = np.empty(len(rows), np.int64)
    for n in range(len(rows)):
        place = _place_of_row(places, stored, rows[n])
        if places[place] < 0:
            places[place] = known
            stored[known] = rows[n]
            known += 1
        names[n] = places[place]
    return names, known


@compiled
def distinct_rows(rows: Array) -> tuple[Array, Array]:
    """Of rows of bytes [N, K]: the distinct ones [D, K], and which each row is [N]"""
    stored = np.empty_like(rows)
    names, known = name_rows(free_places(len(rows)), stored, 0, rows)
    return stored[:known].copy(), names


@compiled
def distinct_numbers(numbers: Array) -> tuple[Array, Array]:
    """Of integers [N]: where each distinct one first occurs [D], and which each is [N]"""
    names, first = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
    places, known = free_places(len(numbers)), 0
    last = len(places) - 1
    for n in range(len(numbers)):
        mixed = np.uint64(numbers[n]) * np.uint64(11400714819323198485)  # 2^64 / golden ratio
        place = np.int64(mixed >> np.uint64(32)) & last
        while places[place] >= 0 and numbers[first[places[place]]] != numbers[n]:
            place = (place + 1) & last
        if places[place] < 0:
            places[place] = known
            first[known] = n
            known += 1
        names[n] = places[place]
    return first[:known].copy(), names


@compiled
def distinct_pairs(patches: Array, kinds: int) -> tuple[Array, Array, Array]:
    """Of patches [U, positions], names below `kinds`: the distinct pairs of a position and a patch, by position.

    Gives which pair each is [U, positions], the patch of each pair [Q], and where those of each position begin
    [positions+1].
    """
    rows, positions = patches.shape
    pairs, of_pairs = np.empty((rows, positions), np.int64), np.empty(rows * positions, np.int64)
    begins, named, known = np.zeros(positions + 1, np.int64), np.full(kinds, -1, np.int64), 0
    for position in range(positions):
        for u in range(rows):
            patch = patches[u, position]
            if named[patch] < begins[position]:  # not of this position
                named[patch] = known
                of_pairs[known] = patch
                known += 1
            pairs[u, position] = named[patch]
        begins[position + 1] = known
    return pairs, of_pairs[:known].copy(), begins
