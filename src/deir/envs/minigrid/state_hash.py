"""The full state of a Farama environment as one number."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigrid.core.world_object import WorldObj
    from minigrid.minigrid_env import MiniGridEnv


def _code(thing: WorldObj | None) -> bytes:
    """Type, colour and state; a box is followed by what it holds."""
    if thing is None:
        return b"\1\0\0"  # MiniGrid's code of an empty cell
    code = bytes(thing.encode())
    return code + _code(thing.contains) if thing.type == "box" else code


def state_hash(env: MiniGridEnv) -> int:
    """A 64-bit number of the full state: all cells, contents of boxes, the agent's place, heading and load."""
    cells = b"".join([_code(thing) for thing in env.grid.grid])
    x, y = env.agent_pos
    agent = struct.pack("<4i", env.grid.width, x, y, env.agent_dir)
    return int.from_bytes(blake2b(cells + agent + _code(env.carrying), digest_size=8).digest(), "little")
