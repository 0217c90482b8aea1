"""MultiRoom's chain of rooms, compiled: MultiRoom-N30 throws hundreds of chains away before one has all its rooms.

The same rooms as Farama's `MultiRoomEnv._placeRoom` places, from the same random numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from minigrid.envs.multiroom import MultiRoom, MultiRoomEnv

from deir.compiled import Array, compiled, compiled_part
from deir.envs.minigrid.random_integers import Draws

_TRIES = 8  # at a room that follows another
_EAST, _SOUTH, _WEST = 0, 1, 2  # walls; the fourth is the north


def compile_rooms(env: Any, draws: Draws) -> None:
    """Gives the environment a `_placeRoom` that is compiled, if Farama's is what it has."""
    if getattr(type(env), "_placeRoom", None) is not MultiRoomEnv._placeRoom:
        return
    rooms = np.empty((env.maxNumRooms, 6), np.int64)

    def place(
        numLeft: int, roomList: list[Any], minSz: int, maxSz: int, entryDoorWall: int, entryDoorPos: tuple[int, int]
    ) -> bool:
        """Farama's caller begins anew, at a door drawn like the first, until a chain has all rooms: so does this."""
        first = np.array([entryDoorWall, *entryDoorPos], np.int64)
        chain, sizes, grid = rooms[:numLeft], (minSz, maxSz + 1), (env.width, env.height)
        draws.spend(lambda halves: place_all(halves, chain, sizes, grid, first))
        for x, y, width, height, door_x, door_y in chain.tolist():
            roomList.append(MultiRoom((x, y), (width, height), (door_x, door_y), None))
        return True

    env._placeRoom = place


@compiled
def place_all(
    halves: Array, rooms: Array, sizes: tuple[int, int], grid: tuple[int, int], first: Array
) -> tuple[int, int]:
    """Chains until one has all rooms: (0, numbers used). Or (-1, numbers used) if they do not suffice: `first`, the
    wall and the place of the door, is then that of the chain to go on with."""
    at = 0
    while True:
        count, end = _chain(halves, at, rooms, sizes, grid, (first[0], first[1], first[2]))
        if end <= len(halves) and count == len(rooms):
            return 0, end
        x, end = _draw(halves, end, 0, grid[0] - 2)
        y, end = _draw(halves, end, 0, grid[0] - 2)
        if end > len(halves):
            return -1, at
        at, first[1], first[2] = end, x, y


@compiled_part
def _chain(
    halves: Array, at: int, rooms: Array, sizes: tuple[int, int], grid: tuple[int, int], door: tuple[int, int, int]
) -> tuple[int, int]:
    """How many of the rooms find a place, and where the numbers go on. A room is x, y, width, height and the x, y of
    its entry door."""
    wall, x, y = door
    at = _room(halves, at, rooms, 0, sizes, wall, x, y)
    if not _fits(rooms, 0, grid):
        return 0, at
    count = 1
    while count < len(rooms):
        left, top, width, height = rooms[count - 1, :4]
        for _ in range(_TRIES):
            exit_wall, at = _draw(halves, at, 0, 3)
            exit_wall += exit_wall >= wall  # any but the one it was entered by
            if exit_wall in (_EAST, _WEST):
                step, at = _draw(halves, at, 1, height - 1)
                x, y = left + (width - 1) * (exit_wall == _EAST), top + step
            else:
                step, at = _draw(halves, at, 1, width - 1)
                x, y = left + step, top + (height - 1) * (exit_wall == _SOUTH)
            at = _room(halves, at, rooms, count, sizes, (exit_wall + 2) % 4, x, y)
            if _fits(rooms, count, grid):
                break
        else:
            break
        wall = (exit_wall + 2) % 4
        count += 1
    return count, at


@compiled_part
def _room(halves: Array, at: int, rooms: Array, number: int, sizes: tuple[int, int], wall: int, x: int, y: int) -> int:
    """Draws a room behind the door at (x, y) in its wall; the first room begins at its door."""
    width, at = _draw(halves, at, sizes[0], sizes[1])
    height, at = _draw(halves, at, sizes[0], sizes[1])
    left, top = x, y
    if number > 0:
        if wall in (_EAST, _WEST):
            top, at = _draw(halves, at, y - height + 2, y)
            left = x - width + 1 if wall == _EAST else x
        else:
            left, at = _draw(halves, at, x - width + 2, x)
            top = y - height + 1 if wall == _SOUTH else y
    rooms[number] = (left, top, width, height, x, y)
    return at


@compiled_part
def _fits(rooms: Array, number: int, grid: tuple[int, int]) -> bool:
    """Within the grid, and apart from every room but the one it is entered from."""
    left, top, width, height = rooms[number, :4]
    if left < 0 or top < 0 or left + width > grid[0] or top + height >= grid[1]:
        return False
    for other in range(number - 1):
        x, y, across, down = rooms[other, :4]
        beside = left + width < x or x + across <= left
        if not (beside or top + height < y or y + down <= top):
            return False
    return True


@compiled_part
def _draw(halves: Array, at: int, low: int, high: int) -> tuple[int, int]:
    """A number in [low, high[ as in `Draws.between`, and where the next begins: past the end if there were too few."""
    if high - low == 1:
        return low, at
    span = np.uint64(high - low)
    bound = np.uint64(1 << 32)
    while at < len(halves):
        product = np.uint64(halves[at]) * span
        at += 1
        leftover = product & np.uint64(0xFFFFFFFF)
        if leftover >= span or leftover >= (bound - span) % span:
            return low + int(product >> np.uint64(32)), at
    return low, len(halves) + 1
