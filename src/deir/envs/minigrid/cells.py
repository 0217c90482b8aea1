"""A grid cell as one 16-bit code, and tables over all codes.

    bits 0-3 object   4-6 colour   7-8 door state   9 target   10-11 content   12-14 its colour   15 its target bit

The low nine bits are MiniGrid's own (object, colour, state). `target` marks the object whose pick-up (or opening)
ends the task; `content` is what a box holds: 0 nothing, 1 a key, 2 a ball, 3 an empty box.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from minigrid.core.world_object import WorldObj

UNSEEN, EMPTY, WALL_TYPE, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA = range(10)
GREY = 5
OPEN, CLOSED, LOCKED = range(3)
TARGET = 1 << 9
WALL = WALL_TYPE | GREY << 4
KEY_AND_COLOUR = 0x7F  # the bits that decide whether a carried object opens a locked door
_STATE = 0x3 << 7
_CONTENT = 10
_CONTENTS = {KEY: 1, BALL: 2, BOX: 3}

Codes = NDArray[np.uint16]

_ALL = np.arange(1 << 16)
_TYPES = _ALL & 0xF
_STATES = (_ALL >> 7) & 0x3
_IS_DOOR = _TYPES == DOOR

# Bits of PROPERTIES
WALKABLE, IS_GOAL, IS_LAVA, PORTABLE, VACANT, TOGGLES = 1, 2, 4, 8, 16, 32


def _properties() -> NDArray[np.uint8]:
    bits = {
        WALKABLE: np.isin(_TYPES, (EMPTY, FLOOR, GOAL, LAVA)) | (_IS_DOOR & (_STATES == OPEN)),
        IS_GOAL: _TYPES == GOAL,
        IS_LAVA: _TYPES == LAVA,
        PORTABLE: np.isin(_TYPES, (KEY, BALL, BOX)),
        VACANT: _TYPES == EMPTY,  # a floor tile is not: nothing can be dropped on it
        TOGGLES: np.isin(_TYPES, (DOOR, BOX)),
    }
    table = np.zeros(len(_ALL), dtype=np.uint8)
    for bit, holds in bits.items():
        table[holds] |= bit
    return table


def _toggled() -> Codes:
    """What a cell becomes when toggled without a fitting key."""
    table = _ALL.copy()
    table[_IS_DOOR & (_STATES == OPEN)] ^= CLOSED << 7
    table[_IS_DOOR & (_STATES == CLOSED)] ^= CLOSED << 7
    kinds = np.array([EMPTY, KEY, BALL, BOX])[(_ALL >> _CONTENT) & 0x3]
    inside = kinds | ((_ALL >> 12) & 0x7) << 4 | (_ALL >> 15) * TARGET
    return np.where(_TYPES == BOX, inside, table).astype(np.uint16)


PROPERTIES = _properties()
TOGGLED = _toggled()
LOCKED_DOOR = _IS_DOOR & (_STATES == LOCKED)
OPAQUE = ((_TYPES == WALL_TYPE) | (_IS_DOOR & (_STATES != OPEN))).astype(np.int64)
CHANNELS = np.stack([_TYPES, (_ALL >> 4) & 0x7, _STATES], axis=-1).astype(np.uint8)  # [2^16, 3] MiniGrid's encoding


def encode(obj: WorldObj | None, is_target: Callable[[WorldObj], bool]) -> int:
    """The code of a MiniGrid object; an object the engine cannot reproduce is a ValueError."""
    if obj is None:
        return EMPTY
    if type(obj).__module__ != "minigrid.core.world_object":
        raise ValueError(f"{type(obj).__qualname__} is not one of MiniGrid's own objects")
    kind, colour, state = obj.encode()
    if kind == DOOR and obj.is_open and obj.is_locked:  # type: ignore[attr-defined]
        raise ValueError("a door that is both open and locked")
    code = kind | colour << 4 | state << 7 | is_target(obj) * TARGET
    if obj.contains is not None:
        inside = encode(obj.contains, is_target)
        if kind != BOX or inside & 0xF not in _CONTENTS or inside >> _CONTENT:
            raise ValueError(f"a {obj.type} that holds a {obj.contains.type}")
        code |= _CONTENTS[inside & 0xF] << _CONTENT | (inside >> 4 & 0x7) << 12 | (inside >> 9) << 15
    return int(code)


def decode(code: int) -> WorldObj | None:
    """A MiniGrid object that looks and behaves like the one encoded (the target bit is not kept)."""
    from minigrid.core.world_object import WorldObj

    obj: Any = WorldObj.decode(code & 0xF, code >> 4 & 0x7, code >> 7 & 0x3)
    if obj is not None and code >> _CONTENT:
        obj.contains = decode(int(TOGGLED[code]))
    return cast("WorldObj | None", obj)


def mix(keys: NDArray[Any]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: spreads each key over 64 bits, one to one."""
    z = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
