"""MiniGrid tasks by name, and which of them the batched engine reproduces. Data first, then the few look-ups."""

from __future__ import annotations

import importlib
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from minigrid.core.world_object import WorldObj
    from minigrid.minigrid_env import MiniGridEnv


@dataclass(frozen=True)
class TaskSpec:
    """One MiniGrid task: everything needed to build it here or in another process."""

    name: str
    entry_point: str  # module:attribute
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    gym_id: str | None = None  # None: not registered with Gymnasium

    def build(self, **overrides: Any) -> MiniGridEnv:
        """The Farama task, without Gymnasium's wrappers."""
        _import_minigrid()
        module, _, attribute = self.entry_point.partition(":")
        factory = getattr(importlib.import_module(module), attribute)
        return cast("MiniGridEnv", factory(**{**self.kwargs, **overrides}))


@dataclass(frozen=True)
class Ending:
    """What ends an episode beside MiniGridEnv's own rules (reaching a goal: success; walking into lava: failure)."""

    target: Literal["none", "obj", "door", "kind"] = "none"
    """Picking it up or opening it is success: env.obj, env.door, or all of the type and colour asked for."""
    any_pickup: bool = False
    """Picking up anything else ends the episode without a reward."""


@dataclass(frozen=True)
class _PaperTask:
    description: str
    gym_id: str | None = None
    entry_point: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)


PAPER_TASKS = {
    "FourRooms": _PaperTask("four rooms joined by gaps; reach the goal", "MiniGrid-FourRooms-v0"),
    "MultiRoom-N2-S4": _PaperTask("two small rooms and a door; reach the goal", "MiniGrid-MultiRoom-N2-S4-v0"),
    # v0 is registered upstream with six rooms; v1 has the paper's four and its 80 steps.
    "MultiRoom-N4-S5": _PaperTask("four small rooms in a row; reach the goal", "MiniGrid-MultiRoom-N4-S5-v1"),
    "MultiRoom-N6": _PaperTask("six rooms in a row; reach the goal", "MiniGrid-MultiRoom-N6-v0"),
    "MultiRoom-N30": _PaperTask(
        "thirty rooms in a row on a 45x45 grid, 600 steps; reach the goal",
        entry_point="minigrid.envs:MultiRoomEnv",
        kwargs={"minNumRooms": 30, "maxNumRooms": 30, "maxRoomSize": 10, "width": 45, "height": 45, "max_steps": 600},
    ),
    "DoorKey-8x8": _PaperTask("find the key, open the door, reach the goal", "MiniGrid-DoorKey-8x8-v0"),
    "DoorKey-16x16": _PaperTask("find the key, open the door, reach the goal", "MiniGrid-DoorKey-16x16-v0"),
    "KeyCorridorS4R3": _PaperTask(
        "find the key in a side room, pick up the ball behind the locked door", "MiniGrid-KeyCorridorS4R3-v0"
    ),
    "KeyCorridorS6R3": _PaperTask("the same with larger rooms", "MiniGrid-KeyCorridorS6R3-v0"),
    # v0 as in the paper, though some of its layouts cannot be solved; v1 repairs that.
    "ObstructedMaze-Full": _PaperTask(
        "3x3 rooms, doors blocked by balls, keys hidden in boxes; pick up the blue ball (v0 as in the paper)",
        "MiniGrid-ObstructedMaze-Full-v0",
    ),
}

# The first entry that a name starts with describes it.
FAMILIES = {
    "BlockedUnlockPickup": "move the ball away, open the door with the key, pick up the box",
    "DistShift": "reach the goal past a strip of lava",
    "DoorKey": "find the key, open the door, reach the goal",
    "Dynamic-Obstacles": "reach the goal among moving balls",
    "Empty": "an empty room; reach the goal",
    "Fetch": "pick up the object the mission names",
    "FourRooms": "four rooms joined by gaps; reach the goal",
    "GoToDoor": "go to the door the mission names",
    "GoToObject": "go to the object the mission names",
    "KeyCorridor": "find the key in a side room, pick up the ball behind the locked door",
    "LavaCrossing": "cross rivers of lava; reach the goal",
    "LavaGap": "pass the gap in a wall of lava; reach the goal",
    "LockedRoom": "find the key, open the locked room, reach the goal",
    "Memory": "remember the object seen at the start, choose the same one at the end",
    "MultiRoom": "rooms in a row behind doors; reach the goal",
    "ObstructedMaze": "locked and blocked doors, hidden keys; pick up the blue ball",
    "Playground": "rooms with objects and no task",
    "PutNear": "put one object beside another",
    "RedBlueDoors": "open the red door, then the blue one",
    "SimpleCrossing": "walls with gaps; reach the goal",
    "UnlockPickup": "open the door with the key, pick up the box",
    "Unlock": "open the door with the key",
    "WFC": "mazes by wave function collapse; reach the goal",
    "BabyAI": "an instruction in words",
}

# Class that defines `step` -> what it adds to MiniGridEnv.step. A class that is not here is not covered.
_BASE = "minigrid.minigrid_env.MiniGridEnv"
ENDINGS = {
    _BASE: Ending(),
    "minigrid.envs.keycorridor.KeyCorridorEnv": Ending("obj"),
    "minigrid.envs.obstructedmaze.ObstructedMazeEnv": Ending("obj"),
    "minigrid.envs.unlockpickup.UnlockPickupEnv": Ending("obj"),
    "minigrid.envs.blockedunlockpickup.BlockedUnlockPickupEnv": Ending("obj"),
    "minigrid.envs.unlock.UnlockEnv": Ending("door"),
    "minigrid.envs.fetch.FetchEnv": Ending("kind", any_pickup=True),
}

# What the engine computes itself: a task with its own version of one of these is not covered.
OWNED = ("_reward", "gen_obs", "gen_obs_grid", "get_view_exts", "front_pos", "dir_vec")
# WFC's layouts need pattern images that the minigrid package does not ship, so nothing could be compared.
UNVERIFIED = "minigrid.envs.wfc"

_VERSIONED = re.compile(r"(?P<name>.+)-v(?P<version>\d+)")


def resolve(name: str) -> TaskSpec | None:
    """The task of this name: a paper's short name, any other short name (`Empty-8x8`, `ObstructedMaze-Full-v1`), or
    the registered id; None where there is no such MiniGrid task."""
    if ":" in name:  # module:factory and procgen:game are never MiniGrid names; spares the import
        return None
    if name in PAPER_TASKS:
        return _paper_task(name)
    registered = _registered_ids()
    if name in registered:
        return _from_registry(name, name)
    versions = [gym_id for gym_id in registered if gym_id == f"MiniGrid-{name}" or _short(gym_id) == name]
    return _from_registry(name, min(versions, key=_version)) if versions else None


def tasks() -> list[TaskSpec]:
    """Every task with a short name, the paper's first."""
    short = {_short(gym_id) for gym_id in _registered_ids() if gym_id.startswith("MiniGrid-")}
    names = [*PAPER_TASKS, *sorted(short - set(PAPER_TASKS))]
    return [spec for name in names if (spec := resolve(name)) is not None]


def task_names() -> list[str]:
    """Every name `resolve` knows: short names, short names with a version, registered ids."""
    ids = _registered_ids()
    versioned = [gym_id.removeprefix("MiniGrid-") for gym_id in ids if gym_id.startswith("MiniGrid-")]
    return list(dict.fromkeys([*(spec.name for spec in tasks()), *versioned, *ids]))


def covered(env: Any) -> bool:
    """Whether the batched engine reproduces this Farama task exactly; every other one needs the Gymnasium backend."""
    if ending_of(env) is None:
        return False
    return type(env.unwrapped).__module__.startswith("minigrid.") or _has_known_objects(env.unwrapped)


def ending_of(env: Any) -> Ending | None:
    """How the task ends, told by the class that defines its `step`; None where the engine does not cover it."""
    _import_minigrid()
    from gymnasium.spaces import Discrete
    from minigrid.core.actions import Actions
    from minigrid.minigrid_env import MiniGridEnv

    task = env.unwrapped
    if not isinstance(task, MiniGridEnv) or task.actions is not Actions or task.action_space != Discrete(len(Actions)):
        return None
    if any(getattr(type(task), name) is not getattr(MiniGridEnv, name) for name in OWNED):
        return None
    if type(task).__module__.startswith(UNVERIFIED):
        return None
    stepping = [_qualified(c) for c in type(task).__mro__ if "step" in vars(c) and issubclass(c, MiniGridEnv)]
    # Exactly one class may stand between the task and MiniGridEnv.step, and it must be one of the known.
    if stepping[1:] not in ([], [_BASE]):
        return None
    return ENDINGS.get(stepping[0])


def target_of(env: Any, ending: Ending) -> Callable[[WorldObj], bool]:
    """Tells the object, or objects, that the current episode is about."""
    if ending.target == "obj":
        return lambda obj: obj is env.obj
    if ending.target == "door":
        return lambda obj: obj is env.door
    if ending.target == "kind":
        return lambda obj: obj.type == env.targetType and obj.color == env.targetColor
    return lambda obj: False


def _has_known_objects(task: MiniGridEnv) -> bool:
    """Whether a task from elsewhere is made of MiniGrid's own objects, as its first layout shows."""
    from deir.envs.minigrid.cells import encode

    task.reset(seed=0)
    try:
        for obj in task.grid.grid:
            encode(obj, lambda _: False)
    except ValueError:
        return False
    return True


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _import_minigrid() -> None:
    """Registers the ids; late, for it takes a third of a second."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pygame's own use of deprecated packages
        importlib.import_module("minigrid")


def _registered_ids() -> list[str]:
    _import_minigrid()
    from gymnasium.envs.registration import registry

    return [gym_id for gym_id in registry if gym_id.startswith(("MiniGrid-", "BabyAI-"))]


def _short(gym_id: str) -> str:
    match = _VERSIONED.fullmatch(gym_id)
    return (match["name"] if match else gym_id).removeprefix("MiniGrid-")


def _version(gym_id: str) -> int:
    match = _VERSIONED.fullmatch(gym_id)
    return int(match["version"]) if match else 0


def _paper_task(name: str) -> TaskSpec | None:
    task = PAPER_TASKS[name]
    if task.entry_point is not None:
        return TaskSpec(name, task.entry_point, task.kwargs, task.description)
    assert task.gym_id is not None
    return _from_registry(name, task.gym_id, task.description)


def _from_registry(name: str, gym_id: str, description: str | None = None) -> TaskSpec | None:
    _import_minigrid()
    from gymnasium.envs.registration import registry

    registered = registry[gym_id]
    entry_point = registered.entry_point
    if not isinstance(entry_point, str):  # no other process could build it; Gymnasium can
        return None
    short = _short(gym_id)
    words = description or next((text for family, text in FAMILIES.items() if short.startswith(family)), "")
    return TaskSpec(name, entry_point, dict(registered.kwargs), words, gym_id)
