"""Names of MiniGrid tasks, and which of them the batched engine takes."""

from __future__ import annotations

from typing import Any

from deir.envs.minigrid import catalogue
from deir.envs.minigrid.catalogue import PAPER_TASKS, TaskSpec, covered, resolve


def task(name: str) -> TaskSpec:
    spec = resolve(name)
    assert spec is not None
    return spec


def test_names_of_the_catalogue() -> None:
    four: Any = task("MultiRoom-N4-S5").build()
    assert (four.minNumRooms, four.maxNumRooms, four.max_steps) == (4, 4, 80)
    thirty: Any = task("MultiRoom-N30").build()
    assert (thirty.minNumRooms, thirty.width, thirty.height, thirty.max_steps) == (30, 45, 45, 600)
    assert task("ObstructedMaze-Full").gym_id == "MiniGrid-ObstructedMaze-Full-v0"
    assert task("ObstructedMaze-Full-v1").gym_id == "MiniGrid-ObstructedMaze-Full-v1"
    assert task("Empty-8x8").gym_id == task("MiniGrid-Empty-8x8-v0").gym_id == "MiniGrid-Empty-8x8-v0"
    assert all(resolve(name) is None for name in ("DoorKey-9x9", "CartPole-v1", "procgen:ninja", "module:factory"))
    names = catalogue.task_names()
    assert names[: len(PAPER_TASKS)] == list(PAPER_TASKS)
    assert len(names) == len(set(names))
    assert all(spec.description for spec in catalogue.tasks())


def test_tasks_with_rules_of_their_own_are_not_covered() -> None:
    for name in ("MemoryS7", "Dynamic-Obstacles-5x5", "GoToDoor-5x5", "PutNear-6x6-N2", "RedBlueDoors-6x6"):
        assert not covered(task(name).build()), name
    assert not covered(task("BabyAI-GoToRedBall-v0").build())
    taken = {spec.name for spec in catalogue.tasks() if covered(spec.build())}
    assert len(taken) == 51
    assert set(PAPER_TASKS) < taken


def test_changed_rules_are_noticed() -> None:
    from minigrid.envs import DoorKeyEnv, KeyCorridorEnv

    class Generous(DoorKeyEnv):  # type: ignore[misc]
        def _reward(self) -> float:
            return 2.0

    class Stepping(KeyCorridorEnv):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            return super().step(action)

    assert not covered(Generous())
    assert not covered(Stepping())


def test_tasks_from_elsewhere_are_covered_if_they_are_made_of_known_objects() -> None:
    from minigrid.core.world_object import Ball
    from minigrid.envs import EmptyEnv

    class Heavy(Ball):  # type: ignore[misc]
        def can_pickup(self) -> bool:
            return False

    class Own(EmptyEnv):  # type: ignore[misc]
        placed: type[Ball] = Ball

        def _gen_grid(self, width: int, height: int) -> None:
            super()._gen_grid(width, height)
            self.put_obj(self.placed(), 2, 2)

    class Unknown(Own):
        placed = Heavy

    assert covered(Own())
    assert not covered(Unknown())
