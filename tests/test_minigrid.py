"""The batched engine against Farama's MiniGrid, step for step."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from minigrid.wrappers import FullyObsWrapper

from deir.config import EnvConfig
from deir.envs import make_envs
from deir.envs.minigrid import catalogue, cells
from deir.envs.minigrid.catalogue import PAPER_TASKS, TaskSpec, covered, resolve
from deir.envs.minigrid.engine import MiniGridEnvs
from deir.envs.minigrid.layouts import layout_seed
from deir.envs.minigrid.rules import DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, light_row, mix
from deir.envs.observations import invisible_obstacles
from deir.errors import UserError

SEED = 7
N_ENVS = 3
COVERED = [spec for spec in catalogue.tasks() if covered(spec.build())]
LATER_VERSIONS = [f"ObstructedMaze-{kind}-v1" for kind in ("2Dlhb", "1Q", "2Q", "Full")] + ["MultiRoom-N4-S5-v0"]
OTHERS = [spec.name for spec in COVERED if spec.name not in PAPER_TASKS] + LATER_VERSIONS

Chooser = Callable[[Any, int], int]


def task(name: str) -> TaskSpec:
    spec = resolve(name)
    assert spec is not None
    return spec


def engine(name: str, seed: int = SEED, **config: Any) -> MiniGridEnvs:
    config = {"n_envs": N_ENVS, "layout_worker": False, **config}
    return MiniGridEnvs(task(name), EnvConfig(id=name, **config), seed)


class Scout:
    """Seeks the goal with a good deal of mischief: walks to something it can reach, acts on it, chooses again."""

    def __init__(self, rng: np.random.Generator, mischief: float = 0.2) -> None:
        self.rng, self.mischief, self.plans = rng, mischief, {}

    def __call__(self, env: Any, index: int) -> int:
        if self.rng.random() < 0.05:
            self.plans[index] = []
            return int(self.rng.integers(7))
        if env.step_count == 0 or not self.plans.get(index):
            self.plans[index] = self.plan(env)
        return self.plans[index].pop(0)

    def plan(self, env: Any) -> list[int]:
        routes = self.routes(env)
        wishes = self.wishes(env)
        if self.rng.random() < self.mischief:
            wishes = [wishes[i] for i in self.rng.permutation(len(wishes))]
        for wanted, last in wishes:
            ways = [route for obj, route in routes if wanted(obj)]
            if ways:
                return [*ways[int(self.rng.integers(len(ways)))], last]
        return [int(self.rng.integers(7))]

    def wishes(self, env: Any) -> list[tuple[Callable[[Any], bool], int]]:
        """What to face and what to do then, the best first."""
        held = env.carrying
        ending = catalogue.ending_of(env)
        assert ending is not None
        is_target = catalogue.target_of(env, ending)

        def a(kind: str, **having: Any) -> Callable[[Any], bool]:
            return lambda obj: (
                obj is not None and obj.type == kind and all(getattr(obj, k) == v for k, v in having.items())
            )

        pickup = (lambda obj: obj is not None and obj.can_pickup() and is_target(obj), PICKUP)
        if held is not None:
            unlock = [(a("door", is_locked=True, color=held.color), TOGGLE)] if held.type == "key" else []
            doors, drop = (a("door", is_open=False, is_locked=False), TOGGLE), (lambda obj: obj is None, DROP)
            middle = [*unlock, doors, drop]
        else:
            middle = [(a("door", is_open=False, is_locked=False), TOGGLE), (a("box"), TOGGLE), (a("key"), PICKUP)]
            middle = [middle[i] for i in self.rng.permutation(3)] + [(a("ball"), PICKUP)]
        worst = [(a("lava"), FORWARD), (a("box"), PICKUP), (a("door", is_open=True), TOGGLE), (a("door"), TOGGLE)]
        return [(a("goal"), FORWARD), pickup, *middle, *worst]

    @staticmethod
    def routes(env: Any) -> list[tuple[Any, list[int]]]:
        """Every reachable (x, y, direction): the object it faces, and the turns and steps that lead there."""
        start = (int(env.agent_pos[0]), int(env.agent_pos[1]), int(env.agent_dir))
        found, queue, faced = {start: []}, deque([start]), []
        while queue:
            x, y, d = state = queue.popleft()
            ahead = x + (1, 0, -1, 0)[d], y + (0, 1, 0, -1)[d]
            obj = env.grid.get(*ahead)
            faced.append((obj, found[state]))
            moves = [(LEFT, (x, y, (d - 1) % 4)), (RIGHT, (x, y, (d + 1) % 4))]
            if obj is None or (obj.can_overlap() and obj.type not in ("goal", "lava")):
                moves.append((FORWARD, (*ahead, d)))
            for action, place in moves:
                if place not in found:
                    found[place] = [*found[state], action]
                    queue.append(place)
        return faced


def events(env: Any, action: int) -> Counter[str]:
    """What this action is about to do, told from Farama's state."""
    obj, held = env.grid.get(*env.front_pos), env.carrying
    seen: Counter[str] = Counter()
    if obj is None:
        seen["drop"] += action == DROP and held is not None
        return seen
    seen["goal"] += action == FORWARD and obj.type == "goal"
    seen["lava"] += action == FORWARD and obj.type == "lava"
    seen["pickup"] += action == PICKUP and obj.can_pickup() and held is None
    if action == TOGGLE and obj.type == "door":
        key = held is not None and held.type == "key" and held.color == obj.color
        seen["unlock" if key else "locked"] += obj.is_locked
        seen["door"] += not obj.is_locked
    seen["box"] += action == TOGGLE and obj.type == "box"
    seen["hidden key"] += action == TOGGLE and obj.type == "box" and obj.contains is not None
    return seen


def assert_same(name: str, steps: int, choose: Chooser, view: int | None = 7, **config: Any) -> Counter[str]:
    """`steps` steps of all environments side by side with Farama's; counts what happened in them.

    Without a size of the view, Farama's wrapper shows the whole grid.
    """
    overrides = {"agent_view_size": view or 7} | ({"max_steps": config["max_steps"]} if "max_steps" in config else {})
    bare: list[Any] = [task(name).build(**overrides) for _ in range(N_ENVS)]
    envs = engine(name, **({"full_view": True} if view is None else {"view_size": view}), **config)
    farama = bare if view is not None else [FullyObsWrapper(env) for env in bare]
    episodes = [0] * N_ENVS
    fixed = config.get("fixed_layout")
    firsts = envs.reset()
    for i, env in enumerate(farama):
        first = env.reset(seed=layout_seed(SEED, i, 0) if fixed is None else fixed)[0]["image"]
        np.testing.assert_array_equal(firsts[i], first)
    happened: Counter[str] = Counter()
    for _ in range(steps):
        actions = np.array([choose(env, i) for i, env in enumerate(bare)])
        for env, action in zip(bare, actions, strict=True):
            happened.update(events(env, int(action)))
        step = envs.step(actions)
        assert step.valid.all()
        finals = dict(zip(step.final_indices.tolist(), step.final_observations, strict=True))
        for i, env in enumerate(farama):
            seen, reward, terminated, truncated, _ = env.step(int(actions[i]))
            told = (float(step.rewards[i]), bool(step.terminated[i]), bool(step.truncated[i]), bool(step.starts[i]))
            assert told == (reward, terminated, truncated, terminated or truncated)
            assert (i in finals) == step.starts[i]
            last = finals.get(i, step.observations[i])
            np.testing.assert_array_equal(last, seen["image"])
            happened["success"] += reward > 0
            happened["truncated"] += truncated
            happened["failed"] += terminated and reward == 0
            if terminated or truncated:
                episodes[i] += 1
                seed = layout_seed(SEED, i, episodes[i]) if fixed is None else fixed
                first = env.reset(seed=seed)[0]["image"]
                np.testing.assert_array_equal(step.observations[i], first)
    return happened


def at_random(seed: int = 0) -> Chooser:
    rng = np.random.default_rng(seed)
    return lambda env, index: int(rng.integers(7))


def scouting(seed: int = 0) -> Scout:
    return Scout(np.random.default_rng(seed))


@pytest.mark.parametrize("name", [name for name in PAPER_TASKS if name != "MultiRoom-N30"])
def test_paper_tasks_equal_farama(name: str) -> None:
    assert_same(name, 250, at_random())
    happened = assert_same(name, 2500 if name == "ObstructedMaze-Full" else 600, scouting())
    assert happened["success"] >= 1, happened


def test_thirty_rooms_equal_farama() -> None:
    happened = assert_same("MultiRoom-N30", 200, scouting())
    assert happened["door"] >= 10


@pytest.mark.parametrize("name", OTHERS)
def test_other_covered_tasks_equal_farama(name: str) -> None:
    assert_same(name, 80, at_random())
    assert_same(name, 160, scouting())


def test_everything_that_can_happen_was_compared() -> None:
    happened: Counter[str] = Counter()
    for name in ("DoorKey-5x5", "LavaGapS5", "ObstructedMaze-1Dlhb", "Fetch-5x5-N2", "Unlock", "BlockedUnlockPickup"):
        happened.update(assert_same(name, 400, scouting(1), max_steps=120))
    for event in ("pickup", "drop", "door", "unlock", "locked", "box", "hidden key", "goal", "lava"):
        assert happened[event] >= 3, (event, happened)
    for ending in ("success", "failed", "truncated"):
        assert happened[ending] >= 3, (ending, happened)


@pytest.mark.parametrize("view", [3, 5, 9, 11])
@pytest.mark.parametrize("name", ["MultiRoom-N6", "KeyCorridorS4R3", "ObstructedMaze-Full", "Empty-8x8", "FourRooms"])
def test_view_sizes_equal_farama(name: str, view: int) -> None:
    assert_same(name, 120, scouting(view), view=view)


@pytest.mark.parametrize(
    "name", ["MultiRoom-N6", "KeyCorridorS4R3", "ObstructedMaze-1Dlhb", "DoorKey-8x8", "FourRooms", "LavaGapS5"]
)
def test_whole_grids_equal_farama(name: str) -> None:
    assert_same(name, 200, scouting(3), view=None)


def test_whole_grids_that_are_not_square_equal_farama() -> None:
    """Columns come before rows, whatever there are more of."""
    envs, farama = engine("UnlockPickup", full_view=True), FullyObsWrapper(task("UnlockPickup").build())
    first = farama.reset(seed=layout_seed(SEED, 0, 0))[0]["image"]
    assert first.shape[0] != first.shape[1]
    np.testing.assert_array_equal(envs.reset()[0], first)


def test_whole_grids_take_the_other_variants() -> None:
    plain, changed = engine("DoorKey-8x8", full_view=True), engine("DoorKey-8x8", full_view=True, direction=True)
    whole = plain.reset()
    packed = changed.reset()
    np.testing.assert_array_equal(packed[:, : 8 * 8 * 3].reshape(whole.shape), whole)
    hidden = engine("DoorKey-8x8", full_view=True, invisible_obstacles=True).reset()
    np.testing.assert_array_equal(hidden, invisible_obstacles(whole))
    noisy = engine("DoorKey-8x8", full_view=True, noise=0.1, noise_units="raw").reset()
    assert noisy.dtype == np.float32 and 0.05 < (noisy - whole).std() < 0.15
    with pytest.raises(UserError, match=r"env\.view_size: got 5, but env\.full_view shows the whole grid"):
        make_envs(EnvConfig("DoorKey-8x8", full_view=True, view_size=5))


@pytest.mark.parametrize("worker", [False, True])
def test_one_layout_in_every_episode_and_environment_equals_farama(worker: bool) -> None:
    happened = assert_same("DoorKey-5x5", 300, scouting(2), fixed_layout=11, max_steps=60, layout_worker=worker)
    assert happened["success"] + happened["truncated"] >= 6
    for seed in (0, 1):  # whatever the run's seed
        firsts = engine("MultiRoom-N6", seed=seed, fixed_layout=3).reset()
        assert (firsts == firsts[0]).all()
        np.testing.assert_array_equal(firsts[0], task("MultiRoom-N6").build().reset(seed=3)[0]["image"])


def test_a_saved_run_of_one_layout_goes_on_in_it() -> None:
    one, other = (engine("DoorKey-5x5", fixed_layout=4, full_view=True, max_steps=5) for _ in range(2))
    one.reset()
    for _ in range(3):
        one.step(np.full(N_ENVS, 1))
    np.testing.assert_array_equal(other.load_state_dict(one.state_dict()), one._observations)
    for _ in range(4):  # beyond the end of the episode
        found = [envs.step(np.full(N_ENVS, 2)) for envs in (one, other)]
        np.testing.assert_array_equal(found[0].observations, found[1].observations)


def test_an_open_row_is_lit_from_end_to_end_and_lights_all_of_the_row_ahead() -> None:
    assert light_row(0b0001000, 0, 7) == (0b1111111, 0b1111111)
    assert light_row(0b0001000, 0b0010100, 7) == (0b0011100, 0b0011100)


def test_hashes_of_single_keys_equal_those_of_arrays() -> None:
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, 100)
    np.testing.assert_array_equal(np.array([mix(key) for key in keys], np.uint64), cells.mix(keys))


def test_own_step_limit_and_no_time_penalty() -> None:
    envs = engine("Empty-5x5", max_steps=9, time_penalty=False)
    envs.reset()
    truncations, rewards = [], []
    for action in [2, 2, 1, 2, 2] + [6] * 9:  # straight to the goal, then nothing until the limit
        step = envs.step(np.full(N_ENVS, action))
        rewards.append(step.rewards.tolist())
        truncations.append(step.truncated.tolist())
    assert rewards == [[0.0] * N_ENVS] * 4 + [[1.0] * N_ENVS] + [[0.0] * N_ENVS] * 9
    assert truncations == [[False] * N_ENVS] * 13 + [[True] * N_ENVS]


def full_state(env: Any) -> tuple[Any, ...]:
    """Everything in a Farama task that decides its future but the step count."""
    ending = catalogue.ending_of(env)
    assert ending is not None
    is_target = catalogue.target_of(env, ending)

    def describe(obj: Any) -> Any:
        return None if obj is None else (obj.encode(), is_target(obj), describe(obj.contains))

    grid = tuple(describe(obj) for obj in env.grid.grid)
    return grid, tuple(int(v) for v in env.agent_pos), int(env.agent_dir), describe(env.carrying)


@pytest.mark.parametrize("name", ["Empty-Random-5x5", "DoorKey-5x5", "ObstructedMaze-1Dlhb", "Fetch-5x5-N2"])
def test_equal_states_have_equal_hashes_and_others_do_not(name: str) -> None:
    envs = engine(name)
    farama: list[Any] = [task(name).build() for _ in range(N_ENVS)]
    envs.reset()
    for i, env in enumerate(farama):
        env.reset(seed=layout_seed(SEED, i, 0))
    episodes = [0] * N_ENVS
    scout = scouting()
    state_of: dict[int, Any] = {}
    hash_of: dict[Any, int] = {}
    for _ in range(500):
        for i, number in enumerate(envs.state_hashes().tolist()):
            state = full_state(farama[i])
            assert state_of.setdefault(number, state) == state
            assert hash_of.setdefault(state, number) == number
        actions = np.array([scout(env, i) for i, env in enumerate(farama)])
        envs.step(actions)
        for i, env in enumerate(farama):
            _, _, terminated, truncated, _ = env.step(int(actions[i]))
            if terminated or truncated:
                episodes[i] += 1
                env.reset(seed=layout_seed(SEED, i, episodes[i]))
    assert 20 < len(state_of) < 500 * N_ENVS  # many states, and some of them met again


def test_hashes_do_not_depend_on_the_view_or_the_path() -> None:
    small, large = engine("DoorKey-8x8", view_size=3), engine("DoorKey-8x8", view_size=9)
    rng = np.random.default_rng(0)
    small.reset()
    large.reset()
    for actions in rng.integers(0, 7, (300, N_ENVS)):
        small.step(actions)
        large.step(actions)
        np.testing.assert_array_equal(small.state_hashes(), large.state_hashes())
    kept = small.state_hashes()
    small.load_state_dict(small.state_dict())  # hashes the grids anew
    np.testing.assert_array_equal(small.state_hashes(), kept)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_restored_environments_go_on_to_the_last_bit(noise: float) -> None:
    variant: dict[str, Any] = {"noise": noise, "invisible_obstacles": True, "max_steps": 30, "view_size": 5}
    first, second = engine("KeyCorridorS3R2", **variant), engine("KeyCorridorS3R2", seed=99, **variant)
    rng = np.random.default_rng(0)
    first.reset()
    second.reset()
    for actions in rng.integers(0, 7, (70, N_ENVS)):
        seen = first.step(actions).observations
    state = first.state_dict()
    numbers = {key: value for key, value in state.items() if not isinstance(value, np.ndarray)}
    state.update(json.loads(json.dumps(numbers)))
    np.testing.assert_array_equal(second.load_state_dict(state), seen)
    for actions in rng.integers(0, 7, (150, N_ENVS)):
        for one, other in zip(first.step(actions), second.step(actions), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(first.state_hashes(), second.state_hashes())


def test_a_saved_state_is_not_changed_by_going_on() -> None:
    envs = engine("DoorKey-5x5")
    envs.reset()
    state = envs.state_dict()
    kept = {key: value.copy() for key, value in state.items() if isinstance(value, np.ndarray)}
    for actions in np.random.default_rng(0).integers(0, 7, (50, N_ENVS)):
        envs.step(actions)
    for key, value in kept.items():
        np.testing.assert_array_equal(state[key], value)
    with pytest.raises(UserError, match="expected 3 of DoorKey-8x8"):
        engine("DoorKey-8x8").load_state_dict(state)


def can_be_solved(grid: np.ndarray, x: int, y: int) -> bool:
    """A search on the cell codes [H, W] that takes objects out of the way and keys along."""
    reached: set[tuple[int, int]] = set()
    keys: set[int] = set()
    while True:
        queue, found, more = [(x, y)], {(x, y)}, False
        while queue:
            column, row = queue.pop()
            code = int(grid[row, column])
            kind, colour, state = code & 0xF, code >> 4 & 0x7, code >> 7 & 0x3
            if kind == cells.GOAL or (code & cells.TARGET and kind != cells.DOOR):
                return True
            inside = int(cells.TOGGLED[code])
            for key in {code, inside}:
                if key & 0xF == cells.KEY and key >> 4 & 0x7 not in keys:
                    keys.add(key >> 4 & 0x7)
                    more = True
            if kind == cells.DOOR and state == cells.LOCKED and colour not in keys:
                continue
            for side in ((column + 1, row), (column - 1, row), (column, row + 1), (column, row - 1)):
                if side not in found and int(grid[side[1], side[0]]) & 0xF not in (cells.WALL_TYPE, cells.LAVA):
                    found.add(side)
                    queue.append(side)
        if not more and found == reached:
            return False
        reached = found


@pytest.mark.parametrize(
    "name", ["FourRooms", "MultiRoom-N2-S4", "MultiRoom-N4-S5", "MultiRoom-N6", "DoorKey-8x8", "KeyCorridorS4R3"]
)
def test_every_layout_can_be_solved(name: str) -> None:
    envs = engine(name, n_envs=60)
    envs.reset()
    state = envs.state_dict()
    assert all(can_be_solved(*layout) for layout in zip(state["cells"], state["x"], state["y"], strict=True))


def test_invisible_obstacles_and_noise_reach_the_observations() -> None:
    plain, invisible = engine("DoorKey-8x8"), engine("DoorKey-8x8", invisible_obstacles=True)
    noisy = engine("DoorKey-8x8", invisible_obstacles=True, noise=0.1, noise_units="raw", max_steps=5)
    seen, hidden, noised = plain.reset(), invisible.reset(), noisy.reset()
    assert set(np.unique(seen[..., 0])) & {1, 2}
    assert not set(np.unique(hidden[..., 0])) & {1, 2}
    np.testing.assert_array_equal(hidden, seen * (seen[..., :1] > 2))
    assert noised.dtype == np.float32
    assert noisy.observation_space.contains(noised[0])
    assert np.abs(noised - hidden).max() < 0.6
    assert plain.repeats
    assert invisible.repeats
    assert not noisy.repeats
    assert plain.observation_space.contains(seen[0])
    for _ in range(5):
        step = noisy.step(np.full(N_ENVS, 6))
    assert step.truncated.all()
    # The last observation of an episode and the first of the next have noise of their own.
    assert len(np.unique(np.concatenate([noised, step.observations, step.final_observations]))) > 1300
    again = engine("DoorKey-8x8", invisible_obstacles=True, noise=0.1, noise_units="raw", max_steps=5)
    np.testing.assert_array_equal(again.reset(), noised)


def test_pictures_are_faramas() -> None:
    name = "ObstructedMaze-1Dlhb"
    envs = engine(name)
    envs.reset()
    env: Any = task(name).build(render_mode="rgb_array")
    env.reset(seed=layout_seed(SEED, 0, 0))
    scout = scouting()
    for step in range(120):
        action = scout(env, 0)
        done = env.step(action)[2]
        if done:
            break
        envs.step(np.array([action] + [6] * (N_ENVS - 1)))
        if step % 15 == 0:
            np.testing.assert_array_equal(envs.render(0), env.render())


def test_wrong_actions_and_views_are_refused() -> None:
    envs = engine("Empty-5x5")
    envs.reset()
    for actions in ([0, 0, 7], [0, -1, 0], [0, 0]):
        with pytest.raises(ValueError, match="3 actions from 0 to 6"):
            envs.step(np.array(actions))
    with pytest.raises(UserError, match="view_size"):
        engine("Empty-5x5", view_size=4)
