"""MiniGrid's rules for one step of all agents: what an action does, and what is seen afterwards.

Compiled loops over environments on the arrays of `minigrid.py`; cells and carried objects are codes of `cells.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deir.compiled import compiled
from deir.envs.minigrid.cells import (
    DOOR,
    EMPTY,
    IS_GOAL,
    IS_LAVA,
    KEY,
    KEY_AND_COLOUR,
    LOCKED_DOOR,
    OPAQUE,
    PORTABLE,
    PROPERTIES,
    TARGET,
    TOGGLED,
    TOGGLES,
    VACANT,
    WALKABLE,
)

AGENT, RED = 10, 0  # how a view of the whole grid shows the agent
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
DOOR_BITS = 0xF | 0x3 << 7  # object and state
OPENED = 0xFFFF ^ 0x3 << 7

Array = NDArray[Any]


@compiled
def mix(key: int) -> Any:
    """`cells.mix` of one number."""
    z = np.uint64(key) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def act(
    actions: Array,  # [N]
    cells: Array,  # [..] uint16: the grids of all environments, one after the other
    origins: Array,  # [N] index of cell (0, 0) of each
    numbers: Array,  # distance from cell (0, 0) -> number of the cell
    ahead: Array,  # [4] one step forward, by direction
    positions: Array,  # [N] index of the agent's cell
    directions: Array,  # [N]
    carrying: Array,  # [N] uint16
    hashes: Array,  # [N] uint64: of the grids
    any_pickup_ends: bool,
) -> tuple[Array, Array]:
    """Moves all agents, in place; [N] success, [N] terminated."""
    count = len(actions)
    success, terminated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for n in range(count):
        action, front = actions[n], positions[n] + ahead[directions[n]]
        cell, held = cells[front], carrying[n]
        can = PROPERTIES[cell]
        if action == LEFT:
            directions[n] = (directions[n] + 3) & 3
        elif action == RIGHT:
            directions[n] = (directions[n] + 1) & 3
        elif action == FORWARD:
            if can & WALKABLE:
                positions[n] = front
            success[n] = can & IS_GOAL != 0
            terminated[n] = can & (IS_GOAL | IS_LAVA) != 0
        elif (
            (action == PICKUP and can & PORTABLE and held == EMPTY)
            or (action == DROP and can & VACANT and held != EMPTY)
            or (action == TOGGLE and can & TOGGLES)
        ):
            if action == TOGGLE:
                # a key fits a locked door of its colour; the two codes then differ in the object alone
                fits = held & KEY_AND_COLOUR == (cell & KEY_AND_COLOUR) + (KEY - DOOR)
                after = cell & OPENED if LOCKED_DOOR[cell] and fits else TOGGLED[cell]
            else:  # with EMPTY for nothing, a pick-up and a drop both exchange hand and cell
                after = held
                carrying[n] = cell
            cells[front] = after
            number = numbers[front - origins[n]] << 16
            hashes[n] ^= mix(number | np.int64(cell)) ^ mix(number | np.int64(after))
            opens = action == TOGGLE and after & DOOR_BITS == DOOR
            success[n] = cell & TARGET != 0 and (action == PICKUP or opens)
            terminated[n] = action == PICKUP if any_pickup_ends else success[n]
    return success, terminated


@compiled
def light_row(lit: int, opaque: int, width: int) -> tuple[int, int]:
    """The row's final mask and what it lights in the row ahead, by MiniGrid's two sweeps; bit i is column i.

    A lit see-through cell lights its neighbour in the direction of the sweep, the cell ahead of it and the one ahead
    of that neighbour. The sweep to the left sees what the sweep to the right has lit.
    """
    ahead = 0
    for column in range(width - 1):
        if lit >> column & ~opaque >> column & 1:
            lit |= 1 << (column + 1)
            ahead |= 0b11 << column
    for column in range(width - 1, 0, -1):
        if lit >> column & ~opaque >> column & 1:
            lit |= 1 << (column - 1)
            ahead |= 0b11 << (column - 1)
    return lit, ahead


@compiled
def look(
    envs: Array,  # [K] of the N
    cells: Array,  # as above
    positions: Array,  # [N]
    directions: Array,  # [N]
    carrying: Array,  # [N]
    window: Array,  # [4, V, V] the way to each cell of the view, by direction, in MiniGrid's order (column, row)
    channels: Array,  # [2^16, 3] what is seen of a code
    see_through: bool,
) -> Array:
    """What the agents of `envs` see, [K, V, V, 3] uint8. Each stands in the middle of the last row of its view."""
    size = window.shape[1]
    views, codes = np.empty((len(envs), size, size, 3), np.uint8), np.empty((size, size), np.uint16)
    for k, n in enumerate(envs):
        way = window[directions[n]]
        for column in range(size):
            for row in range(size):
                codes[column, row] = cells[positions[n] + way[column, row]]
        lit = 1 << (size // 2)
        for row in range(0 if see_through else size, 0, -1):  # light spreads from the agent's row upwards
            opaque = 0
            for column in range(size):
                opaque |= OPAQUE[codes[column, row - 1]] << column
            lit, ahead = light_row(lit, opaque, size)
            for column in range(size):
                if not lit >> column & 1:
                    codes[column, row - 1] = 0
            lit = ahead
        codes[size // 2, size - 1] = carrying[n]
        for column in range(size):
            for row in range(size):
                for channel in range(3):
                    views[k, column, row, channel] = channels[codes[column, row], channel]
    return views


@compiled
def survey(
    envs: Array,  # [K] of the N
    grids: Array,  # [N, H, W] uint16
    columns: Array,  # [N] of the agents
    rows: Array,  # [N]
    directions: Array,  # [N]
    channels: Array,  # [2^16, 3] what is seen of a code
) -> Array:
    """The whole grids of `envs`, each with its agent in it as (10, 0, direction), in MiniGrid's order (column, row).
    [K, W, H, 3] uint8. What an agent carries is not seen."""
    height, width = grids.shape[1:]
    views = np.empty((len(envs), width, height, 3), np.uint8)
    for k, n in enumerate(envs):
        for row in range(height):
            for column in range(width):
                for channel in range(3):
                    views[k, column, row, channel] = channels[grids[n, row, column], channel]
        views[k, columns[n], rows[n], 0] = AGENT
        views[k, columns[n], rows[n], 1] = RED
        views[k, columns[n], rows[n], 2] = directions[n]
    return views


@compiled
def state_hashes(
    hashes: Array, origins: Array, numbers: Array, positions: Array, directions: Array, carrying: Array
) -> Array:
    """One number for each full state: grid with box contents, agent and carried object. [N] uint64"""
    states = np.empty(len(hashes), np.uint64)
    for n in range(len(hashes)):
        agent = numbers[positions[n] - origins[n]] << 18 | directions[n] << 16 | np.int64(carrying[n])
        states[n] = hashes[n] ^ mix(~agent)  # ~: never the key of a cell
    return states
