"""The Gymnasium backend keeps the contract, whichever way the environments reset."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers its ids)
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from deir.config import EnvConfig
from deir.envs import check_env, make_envs
from deir.envs.gymnasium import GymnasiumEnvs
from deir.envs.minigrid.state_hash import state_hash
from deir.envs.observations import invisible_obstacles
from deir.envs.procgen import ProcgenEnvs
from deir.envs.seeds import env_seeds
from deir.errors import UserError

N = 3
MINIGRID = "MiniGrid-Dynamic-Obstacles-5x5-v0"  # not covered by the batched engine
EMPTY = "MiniGrid-Empty-5x5-v0"
TASKS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"max_episode_steps": 25},
    MINIGRID: {"max_steps": 12},
    "BabyAI-GoToObj-v0": {"max_steps": 12},
}
Transition = tuple[NDArray[Any], int, float, bool, bool, NDArray[Any]]


class Shown(gymnasium.Env[Any, Any]):
    """Shows constant observations of a given space; an episode takes three steps; the reward is the action taken."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.steps = 0

    def _observation(self) -> Any:
        self.observation_space.seed(self.steps)
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observation(), float(action), self.steps == 3, False, {}


def make(name: str, **options: Any) -> GymnasiumEnvs:
    return GymnasiumEnvs(EnvConfig(id=name, n_envs=N, **options))


def shown(observation_space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None) -> GymnasiumEnvs:
    return GymnasiumEnvs(EnvConfig(id="shown", n_envs=N), factory=lambda: Shown(observation_space, action_space))


def in_mode(name: str, mode: AutoresetMode) -> GymnasiumEnvs:
    def factory(num_envs: int) -> VectorEnv[Any, Any, Any]:
        vector_kwargs = {"autoreset_mode": mode}
        return gymnasium.make_vec(name, num_envs, "sync", vector_kwargs=vector_kwargs, **TASKS[name])

    return GymnasiumEnvs(EnvConfig(id=name, n_envs=N), factory=factory)


def transitions(envs: GymnasiumEnvs | ProcgenEnvs, count: int) -> list[list[Transition]]:
    """What is learnt from: [N] lists of transitions, the actions taken from one stream for each environment."""
    n_actions = envs.action_space.n  # type: ignore[attr-defined]
    streams = [np.random.default_rng(i) for i in range(envs.n_envs)]
    found: list[list[Transition]] = [[] for _ in range(envs.n_envs)]
    observations, resets_next = envs.reset(), np.zeros(envs.n_envs, bool)
    while min(map(len, found)) < count:
        actions = np.array([0 if resets_next[i] else s.integers(n_actions) for i, s in enumerate(streams)])
        step = envs.step(actions)
        assert np.array_equal(step.valid, ~resets_next)
        finals = dict(zip(step.final_indices, step.final_observations, strict=True))
        for i in np.flatnonzero(step.valid):
            after = finals.get(i, step.observations[i])
            end = bool(step.terminated[i]), bool(step.truncated[i])
            found[i].append((observations[i], int(actions[i]), float(step.rewards[i]), *end, after))
        done = step.terminated | step.truncated
        resets_next = done & ~np.isin(np.arange(envs.n_envs), step.final_indices)
        assert np.array_equal(step.starts, (done & ~resets_next) | ~step.valid)
        observations = step.observations
    return [rows[:count] for rows in found]


def naive_transitions(name: str, count: int) -> list[list[Transition]]:
    """The same from single environments in a plain loop."""

    def see(raw: Any) -> NDArray[Any]:
        return np.asarray(raw["image"] if isinstance(raw, dict) else raw)

    found: list[list[Transition]] = []
    for i, seed in enumerate(env_seeds(N, 0)):
        env, stream, rows = gymnasium.make(name, **TASKS[name]), np.random.default_rng(i), []
        observation = see(env.reset(seed=seed)[0])
        for _ in range(count):
            action = int(stream.integers(env.action_space.n))  # type: ignore[attr-defined]
            raw, reward, terminated, truncated, _ = env.step(action)
            rows.append((observation, action, float(reward), terminated, truncated, see(raw)))
            observation = see(env.reset()[0]) if terminated or truncated else see(raw)
        found.append(rows)
    return found


def assert_same(left: list[list[Transition]], right: list[list[Transition]]) -> None:
    for rows, others in zip(left, right, strict=True):
        for row, other in zip(rows, others, strict=True):
            assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(row, other, strict=True))


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("name", TASKS)
def test_every_autoreset_mode_gives_the_same_learning_data(name: str, mode: AutoresetMode) -> None:
    found = transitions(in_mode(name, mode), 120)
    assert any(row[3] or row[4] for row in found[0])
    assert_same(found, naive_transitions(name, 120))


@pytest.mark.parametrize("name", TASKS)
def test_a_name_gives_the_same_learning_data_too(name: str) -> None:
    limit = next(iter(TASKS[name].values()))
    assert_same(transitions(make(name, max_steps=limit), 60), naive_transitions(name, 60))


def test_a_vector_environment_of_its_own_make() -> None:
    def native(num_envs: int) -> VectorEnv[Any, Any, Any]:
        return gymnasium.make_vec("CartPole-v1", num_envs, "vector_entry_point")

    config = EnvConfig(id="native", n_envs=N)
    found = transitions(GymnasiumEnvs(config, seed=1, factory=native), 60)
    assert_same(found, transitions(GymnasiumEnvs(config, seed=1, factory=native), 60))
    assert any(row[3] for row in found[0])


@pytest.mark.parametrize("name", TASKS)
def test_contract(name: str) -> None:
    envs = make(name)
    observations = envs.reset()
    for _ in range(200):
        assert observations.shape == (N, *envs.observation_space.shape)  # type: ignore[misc]
        assert all(envs.observation_space.contains(o) for o in observations)
        step = envs.step(np.array([envs.action_space.sample() for _ in range(N)]))
        assert step.rewards.dtype == np.float64
        assert step.terminated.dtype == step.truncated.dtype == step.valid.dtype == step.starts.dtype == np.bool_
        assert step.valid.all()
        assert np.array_equal(np.flatnonzero(step.starts), step.final_indices)
        assert step.final_observations.shape == (len(step.final_indices), *observations.shape[1:])
        assert step.final_observations.dtype == observations.dtype
        observations = step.observations
    assert envs.repeats == (name != "CartPole-v1")
    assert envs.state_dict() is None
    picture = envs.render(1)
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.shape[-1] == 3
    envs.close()


@pytest.mark.parametrize(("name", "limit"), [("CartPole-v1", 3), ("MountainCar-v0", 230), (MINIGRID, 1), (EMPTY, 400)])
def test_max_steps_replaces_the_task_s_own_limit(name: str, limit: int) -> None:
    envs = make(name, max_steps=limit)
    envs.reset()
    for t in range(1, limit + 1):
        step = envs.step(np.zeros(N, np.int64))
        assert not step.terminated.any()
        assert np.array_equal(step.truncated, np.full(N, t == limit))


def test_max_steps_of_a_factory() -> None:
    config = EnvConfig(id="factory", n_envs=N, max_steps=2)
    envs = GymnasiumEnvs(config, factory=lambda: gymnasium.make("CartPole-v1"))
    envs.reset()
    assert not envs.step(np.zeros(N, np.int64)).truncated.any()
    assert envs.step(np.zeros(N, np.int64)).truncated.all()
    longer = EnvConfig(id="factory", n_envs=N, max_steps=501)
    with pytest.raises(UserError, match=r"env\.max_steps.*500"):
        GymnasiumEnvs(longer, factory=lambda: gymnasium.make("CartPole-v1"))


def test_seeds() -> None:
    seeds = {(s, g): env_seeds(64, s, g) for s in range(4) for g in range(4)}
    assert len({seed for row in seeds.values() for seed in row}) == 64 * 16
    assert seeds[1, 2] == env_seeds(64, 1, 2)
    config = EnvConfig(id="CartPole-v1", n_envs=N)
    first = GymnasiumEnvs(config, seed=5).reset()
    assert len(np.unique(first[:, 0])) == N
    assert np.array_equal(first, GymnasiumEnvs(config, seed=5).reset())
    assert not np.isin(first, GymnasiumEnvs(config, seed=5, generation=1).reset()).any()
    assert not np.isin(first, GymnasiumEnvs(config, seed=6).reset()).any()


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Box(-1, 1, (5,), np.float64), (5,), np.float32),
        (spaces.Box(0, 255, (9, 8), np.uint8), (9, 8, 1), np.uint8),
        (spaces.Box(0, 255, (9, 8, 3), np.uint8), (9, 8, 3), np.uint8),
        (spaces.Box(0, 255, (3, 9, 8), np.uint8), (9, 8, 3), np.uint8),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), (84, 84, 4), np.uint8),
        (spaces.Box(0, 255, (3, 3, 3), np.uint8), (3, 3, 3), np.uint8),
        (spaces.Box(0, 10, (7, 7, 3), np.int64), (7, 7, 3), np.uint8),
        (spaces.Box(0, 1, (9, 8, 3), np.float64), (9, 8, 3), np.float32),
        (spaces.Dict(image=spaces.Box(0, 255, (9, 8, 3), np.uint8), text=spaces.Text(3)), (9, 8, 3), np.uint8),
        (spaces.Box(-1, 1, (4, 3), np.float32), (12,), np.float32),  # a stack of vectors
        (spaces.Box(-1, 1, (), np.float32), (1,), np.float32),
        (spaces.Box(0, 255, (9, 1), np.uint8), (9,), np.float32),
    ],
)
def test_observations_of_every_kind(space: spaces.Space[Any], shape: tuple[int, ...], dtype: Any) -> None:
    envs, raw = shown(space), []
    assert envs.observation_space.shape == shape
    assert envs.observation_space.dtype == dtype
    for t in range(4):
        space.seed(t)
        sample = space.sample()
        raw.append(sample["image"] if isinstance(sample, dict) else sample)
    expected = np.stack(raw)
    if space.shape in ((3, 9, 8), (4, 84, 84)):
        expected = expected.transpose(0, 2, 3, 1)
    expected = expected.reshape(4, *shape).astype(dtype)
    seen = [envs.reset()] + [(step := envs.step(np.zeros(N, np.int64))).observations for _ in range(3)]
    assert all(o.dtype == dtype and o.flags.c_contiguous for o in seen)
    assert np.array_equal(np.stack(seen)[:, 1], expected[[0, 1, 2, 0]])
    assert step.terminated.all()
    assert step.starts.all()
    assert np.array_equal(step.final_observations, np.stack([expected[3]] * N))


def test_actions_are_counted_from_zero() -> None:
    envs = shown(spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=5))
    assert envs.action_space == spaces.Discrete(3)
    envs.reset()
    assert np.array_equal(envs.step(np.array([0, 1, 2])).rewards, [5.0, 6.0, 7.0])


def test_vector_environments_must_say_when_they_reset() -> None:
    def silent() -> VectorEnv[Any, Any, Any]:
        vector = SyncVectorEnv([lambda: Shown(spaces.Box(-1, 1, (2,)))] * N)
        vector.metadata = {}
        return vector

    with pytest.raises(UserError, match="autoreset_mode"):
        GymnasiumEnvs(EnvConfig(id="silent", n_envs=N), factory=silent)


def test_a_factory_of_another_size_is_refused() -> None:
    with pytest.raises(UserError, match=r"env\.n_envs: got 3, expected 2"):
        GymnasiumEnvs(EnvConfig(id="pair", n_envs=N), factory=lambda: gymnasium.make_vec("CartPole-v1", 2, "sync"))


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(UserError, match=r"returned dict, expected a gymnasium\.Env"):
        GymnasiumEnvs(EnvConfig(id="dict", n_envs=N), factory=dict)
    with pytest.raises(UserError, match="arguments"):
        GymnasiumEnvs(EnvConfig(id="needy", n_envs=N), factory=lambda size: size)


def test_module_and_factory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import gymnasium\ndef pole():\n    return gymnasium.make('CartPole-v1')\nlimit = 3\n"
    (tmp_path / "my_poles.py").write_text(text)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.chdir(tmp_path)
    config = EnvConfig(id="my_poles:pole", n_envs=N)
    check_env(config)
    assert make_envs(config, seed=3).reset().shape == (N, 4)
    assert np.array_equal(make_envs(config, 3).reset(), make_envs(EnvConfig(id="CartPole-v1", n_envs=N), 3).reset())
    with pytest.raises(UserError, match="Did you mean 'pole'"):
        check_env(EnvConfig(id="my_poles:poles"))
    with pytest.raises(UserError, match="unknown name 'limit'"):
        check_env(EnvConfig(id="my_poles:limit"))
    with pytest.raises(UserError, match=r"my_pools.*cannot be imported"):
        check_env(EnvConfig(id="my_pools:pole"))
    with pytest.raises(UserError, match=r"env\.noise"):
        make_envs(EnvConfig(id="my_poles:pole", noise=0.1))


def test_babyai_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    envs = make("BabyAI-GoToSeq-v0", max_steps=1)  # draws about every third layout again
    envs.reset()
    for _ in range(10):
        envs.step(np.zeros(N, np.int64))
    assert capsys.readouterr().out == ""


def test_a_task_that_cannot_begin_is_told() -> None:
    with pytest.raises(UserError, match="MazeSimple-v0 cannot begin an episode"):
        make("MiniGrid-WFC-MazeSimple-v0").reset()


def test_state_hashes_tell_states_apart() -> None:
    envs = make("MiniGrid-Empty-8x8-v0")
    envs.reset()
    start = envs.state_hashes()
    assert start is not None
    assert start.dtype == np.uint64
    assert len(set(start)) == 1
    turns: list[Any] = []
    for _ in range(4):
        envs.step(np.ones(N, np.int64))
        turns.append(envs.state_hashes())
    assert np.array_equal(turns[3], start)
    assert len({int(h[0]) for h in turns}) == 4
    envs.step(np.array([2, 2, 6]))
    moved = envs.state_hashes()
    assert moved is not None
    assert moved[0] == moved[1] != moved[2] == start[2]
    assert make("CartPole-v1").state_hashes() is None


def test_state_hashes_see_into_boxes_and_hands() -> None:
    env: Any = gymnasium.make("MiniGrid-ObstructedMaze-1Dlh-v0").unwrapped
    env.reset(seed=1)
    seen = {state_hash(env)}
    box = next(thing for thing in env.grid.grid if thing is not None and thing.type == "box")
    key, box.contains = box.contains, None
    seen.add(state_hash(env))
    env.carrying = key
    seen.add(state_hash(env))
    env.carrying, box.contains = None, box.__class__(box.color, key)
    seen.add(state_hash(env))
    assert len(seen) == 4
    box.contains = key
    assert state_hash(env) in seen


def test_variants_of_minigrid_views() -> None:
    plain, hidden = make(MINIGRID), make(MINIGRID, invisible_obstacles=True)
    raw, noisy = make(MINIGRID, noise=0.1, noise_units="raw"), make(MINIGRID, noise=0.1)
    small = make(MINIGRID, view_size=3)
    assert small.reset().shape == (N, 3, 3, 3)
    assert small.repeats
    views, others, noised = plain.reset(), hidden.reset(), raw.reset()
    assert noised.dtype == np.float32
    assert not raw.repeats
    assert raw.observation_space.dtype == np.float32
    assert noisy.reset().max() < 2
    deviations, ends = [noised - views], 0
    for _ in range(40):
        actions = np.full(N, 2)
        step, other, noised = plain.step(actions), hidden.step(actions), raw.step(actions).observations
        assert np.array_equal(other.observations, invisible_obstacles(step.observations))
        assert np.array_equal(other.final_observations, invisible_obstacles(step.final_observations))
        deviations.append(noised - step.observations)
        ends += len(step.final_indices)
    assert ends
    assert np.array_equal(others, invisible_obstacles(views))
    assert not np.array_equal(others, views)
    assert abs(np.std(deviations) - 0.1) < 0.005


def test_reward_without_time_penalty() -> None:
    path = [2, 2, 1, 2, 2]  # to the goal in the opposite corner
    for time_penalty, expected in ((True, 1 - 0.9 * 5 / 100), (False, 1.0)):
        envs = make(EMPTY, time_penalty=time_penalty)
        envs.reset()
        steps = [envs.step(np.full(N, action)) for action in path]
        assert not any(step.rewards.any() for step in steps[:-1])
        assert steps[-1].terminated.all()
        assert np.allclose(steps[-1].rewards, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "DoorKey-9x9"}, "Did you mean 'DoorKey-8x8'"),
        ({"id": "CartPole-v9"}, "Did you mean 'CartPole-v1'"),
        ({"id": "procgen:nija"}, "Did you mean 'procgen:ninja'"),
        ({"id": "ninja"}, "Did you mean 'procgen:ninja'"),
        ({"id": "CartPole-v1", "view_size": 3}, r"env\.view_size.*CartPole-v1 is not a MiniGrid task"),
        ({"id": "CartPole-v1", "noise": 0.1}, r"env\.noise"),
        ({"id": "CartPole-v1", "invisible_obstacles": True}, r"env\.invisible_obstacles"),
        ({"id": "CartPole-v1", "time_penalty": False}, r"env\.time_penalty"),
        ({"id": "CartPole-v1", "distribution_mode": "easy"}, r"env\.distribution_mode.*not a ProcGen game"),
        ({"id": "DoorKey-8x8", "num_levels": 5}, r"env\.num_levels.*not a ProcGen game"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_env(EnvConfig(**options))
    with pytest.raises(UserError, match=message):
        make_envs(EnvConfig(**options))


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"id": "DoorKey-8x8", "view_size": 3, "noise": 0.1, "invisible_obstacles": True}, (3, 3, 3)),
        ({"id": "MultiRoom-N30", "view_size": 5}, (5, 5, 3)),
        ({"id": "BabyAI-GoToObj-v0", "view_size": 3, "max_steps": 5, "time_penalty": False}, (3, 3, 3)),
        ({"id": "CartPole-v1", "max_steps": 5}, (4,)),
    ],
)
def test_what_applies_is_accepted(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    config = EnvConfig(**options, n_envs=1, layout_worker=False)
    check_env(config)
    assert make_envs(config).observation_space.shape == shape


def test_the_door_picks_the_backend() -> None:
    kinds = {
        name: type(make_envs(EnvConfig(id=name, n_envs=2, layout_worker=False))).__name__
        for name in ("DoorKey-8x8", EMPTY, "Dynamic-Obstacles-5x5", "BabyAI-GoToObj-v0", "CartPole-v1")
    }
    assert list(kinds.values()) == ["MiniGridEnvs", "MiniGridEnvs", "GymnasiumEnvs", "GymnasiumEnvs", "GymnasiumEnvs"]


def test_environments_do_not_import_torch() -> None:
    code = "import sys, deir.envs.gymnasium, deir.envs.procgen; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_whole_grids_and_one_layout_of_tasks_beyond_the_engine():
    """As Farama's own wrappers give them, through a registered id and through a factory."""
    from minigrid.wrappers import FullyObsWrapper, ReseedWrapper

    tasks = {"GoToDoor-5x5": "MiniGrid-GoToDoor-5x5-v0", "factory": EMPTY}
    for name, task in tasks.items():
        config = EnvConfig(name, n_envs=2, full_view=True, fixed_layout=5, max_steps=6)
        factory = None if name != "factory" else lambda: gymnasium.make(EMPTY)
        envs = GymnasiumEnvs(config, seed=1, factory=factory)
        farama = FullyObsWrapper(ReseedWrapper(gymnasium.make(task), seeds=(5,)))
        expected = farama.reset()[0]["image"]
        seen = envs.reset()
        assert seen.shape == (2, *expected.shape) and envs.repeats
        np.testing.assert_array_equal(seen, np.stack([expected, expected]))
        for _ in range(6):
            step = envs.step(np.array([0, 0]))
        assert step.truncated.all()
        np.testing.assert_array_equal(step.observations, np.stack([expected, expected]))
        envs.close()
    for field, value in (("full_view", True), ("fixed_layout", 3)):
        with pytest.raises(UserError, match=f"env.{field}: got {value}, but CartPole-v1 is not a MiniGrid task"):
            make_envs(EnvConfig("CartPole-v1", **{field: value}))
