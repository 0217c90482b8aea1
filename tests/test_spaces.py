"""Spaces of every kind: laid out as arrays, packed and unpacked exactly, refused with words where they cannot be."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from deir.config import EnvConfig
from deir.envs import check_env, make_envs
from deir.envs.gymnasium import GymnasiumEnvs
from deir.envs.kinds import suits_control
from deir.envs.layout import ObservationLayout
from deir.envs.minigrid import missions
from deir.envs.spaces import PackedBox, SeenBox, described, from_description
from deir.errors import UserError
from deir.plugin.observations import ObservationFormat
from deir.runs import checkpoint
from test_gymnasium import MINIGRID, N, Shown, make, shown


@pytest.mark.parametrize(
    ("own", "space", "given"),
    [
        (spaces.MultiDiscrete([3, 2], start=[5, 0]), spaces.MultiDiscrete([3, 2]), [[0, 1], [1, 0], [2, 1]]),
        (spaces.MultiDiscrete([[2, 2]]), spaces.MultiDiscrete([2, 2]), [[0, 1], [1, 0], [1, 1]]),
        (spaces.MultiBinary(2), spaces.MultiDiscrete([2, 2]), [[0, 1], [1, 0], [1, 1]]),
        (spaces.Box(0, 4, (1, 2), np.float64), spaces.Box(0, 4, (2,), np.float32), [[0, 4], [1, 0.5], [2, 5]]),
        (spaces.Box(0, 4, (2,), np.int32), spaces.Box(0, 4, (2,), np.float32), [[0.4, 3.7], [1, 2], [9, -1]]),
    ],
)
def test_actions_of_every_kind(own: Any, space: Any, given: Any) -> None:
    seen: list[Any] = []

    class Recorder(Shown):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert own.contains(action)
            seen.append(np.array(action))
            return super().step(0)

    envs = GymnasiumEnvs(EnvConfig(id="recorder", n_envs=N), factory=lambda: Recorder(spaces.Box(-1, 1, (2,)), own))
    assert envs.action_space == space
    envs.reset()
    envs.step(np.array(given))
    expected = np.array(given) + np.reshape(getattr(own, "start", 0), -1)
    if isinstance(own, spaces.Box):
        expected = np.clip(np.rint(expected) if own.dtype == np.int32 else expected, 0, 4)
    assert np.allclose(np.reshape(seen, (N, -1)), expected)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 84, 84), (84, 84, 4)),
        ((84, 84, 4), (84, 84, 4)),
        ((12, 84, 84), (84, 84, 12)),
        ((2, 84, 84), (84, 84, 2)),
        ((10, 20, 15), (10, 20, 15)),
        ((4, 20, 30, 3), (20, 30, 12)),
        ((4, 3, 20, 30), (20, 30, 12)),
        ((1, 9, 3), (27,)),
    ],
)
def test_orders_of_axes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    layout = ObservationLayout.of(spaces.Box(0, 255, shape, np.uint8), "any")
    assert layout.space.shape == expected
    raw = np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)
    out = layout.batch(raw)
    if len(shape) == 4:  # the frames' channels stand side by side, the oldest first
        frames = raw if shape[-1] == 3 else raw.transpose(0, 1, 3, 4, 2)
        assert np.array_equal(out, np.concatenate([frames[:, k] for k in range(4)], -1))
    assert sorted(out.reshape(-1)) == sorted(raw.reshape(-1))


NESTED = spaces.Dict(
    camera=spaces.Box(0, 255, (3, 8, 9), np.uint8),
    body=spaces.Tuple([spaces.Box(-np.inf, np.inf, (3,), np.float64), spaces.Discrete(4, start=2)]),
    name=spaces.Text(5),
    keys=spaces.MultiBinary(2),
    gears=spaces.MultiDiscrete([2, 3]),
)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_parts_are_packed_and_unpacked_exactly(mode: AutoresetMode) -> None:
    def factory() -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([lambda: Shown(NESTED)] * N, autoreset_mode=mode)

    envs = GymnasiumEnvs(EnvConfig(id="nested", n_envs=N), factory=factory)
    space = envs.observation_space
    assert isinstance(space, PackedBox)
    assert {name: (part.shape, part.dtype) for name, part in space.parts.items()} == {
        "camera": ((8, 9, 3), np.uint8),
        "body.0": ((3,), np.float32),
        "body.1": ((4,), np.uint8),
        "keys": ((4,), np.uint8),
        "gears": ((5,), np.uint8),
    }
    assert pickle.loads(pickle.dumps(space)) == space
    assert space.contains(space.sample())

    def expected(steps: int) -> dict[str, NDArray[Any]]:
        NESTED.seed(steps)
        raw = NESTED.sample()
        return {
            "camera": raw["camera"].transpose(1, 2, 0),
            "body.0": raw["body"][0].astype(np.float32),
            "body.1": np.eye(4)[raw["body"][1] - 2],
            "keys": np.eye(2)[raw["keys"]].reshape(-1),
            "gears": np.concatenate([np.eye(2)[raw["gears"][0]], np.eye(3)[raw["gears"][1]]]),
        }

    def check(rows: NDArray[Any], steps: int) -> None:
        found = space.unpack(rows)  # type: ignore[union-attr]
        for name, part in expected(steps).items():
            assert np.array_equal(found[name], np.stack([part] * len(rows))), name

    check(envs.reset(), 0)
    for k in (1, 2):
        check(envs.step(np.zeros(N, np.int64)).observations, k)
    last = envs.step(np.zeros(N, np.int64))
    late = mode is AutoresetMode.NEXT_STEP
    check(last.observations if late else last.final_observations, 3)
    check(envs.step(np.zeros(N, np.int64)).observations if late else last.observations, 0)


@pytest.mark.parametrize("name", ["MiniGrid-DoorKey-5x5-v0", MINIGRID])
def test_directions_by_engine_and_gymnasium(name: str) -> None:
    """The engine's and Gymnasium's packed observations hold Farama's direction beside the view."""
    for envs in (
        make_envs(EnvConfig(id=name, n_envs=N, direction=True, layout_worker=False)),
        make(name, direction=True),
    ):
        space = envs.observation_space
        assert isinstance(space, PackedBox)
        assert list(space.parts) == ["image", "direction"]
        assert envs.repeats
        before = space.unpack(envs.reset())["direction"]
        assert np.array_equal(before.sum(1), np.ones(N))
        after = space.unpack(envs.step(np.ones(N, np.int64)).observations)["direction"]
        assert np.array_equal(after.argmax(1), (before.argmax(1) + 1) % 4)
        envs.close()
    plain, packed = make(name), make(name, direction=True)
    assert np.array_equal(packed.observation_space.unpack(packed.reset())["image"], plain.reset())  # type: ignore[attr-defined]


def test_missions_are_read_word_by_word() -> None:
    envs = make_envs(EnvConfig(id="Fetch-5x5-N2", n_envs=N, mission=True))
    assert isinstance(envs.observation_space, PackedBox)
    codes = envs.observation_space.unpack(envs.reset())["mission"].reshape(N, missions.LENGTH, -1)
    for code, grid in zip(codes, envs._grids, strict=True):  # type: ignore[attr-defined]
        words = [["?", *missions.VOCABULARY][word.argmax()] for word in code if word.any()]
        assert words == grid.mission.replace(",", "").split()
    assert missions.encode(np.array(["zebra door"]))[0].sum() == 2
    with pytest.raises(UserError, match=r"env\.mission"):
        check_env(EnvConfig(id="CartPole-v1", mission=True))


@pytest.mark.parametrize(
    ("observations", "actions"),
    [
        (spaces.Text(4), None),
        (spaces.Box(-1, 1, (2, 2, 2, 2, 2)), None),
        (spaces.Dict(graph=spaces.Graph(spaces.Box(-1, 1, (2,)), None)), None),
        (spaces.Discrete(10**6), None),
        (spaces.Box(-1, 1, (2,)), spaces.Dict(a=spaces.Discrete(2))),
    ],
)
def test_unsupported_spaces_say_what_is_supported(observations: spaces.Space[Any], actions: Any) -> None:
    expected = (
        r"action space.*Discrete, MultiDiscrete, MultiBinary and Box" if actions else r"images.*vectors.*dictionary"
    )
    with pytest.raises(UserError, match=expected):
        shown(observations, actions)


SEEN = [
    spaces.Box(-1, 1, (5,), np.float64),
    spaces.Box(0, 255, (8,), np.uint8),
    spaces.Box(0, 10**6, (3,), np.int64),
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Box(-1, 1, (20, 18), np.float32),
    spaces.Box(0, 255, (6, 7), np.uint8),
    spaces.Box(0, 255, (7, 7, 3), np.uint8),
    spaces.Box(0, 9, (3, 7, 7), np.int64),
    spaces.Box(0, 1, (5, 7, 7), np.float32),
    spaces.Box(0, 1, (10, 20, 15), np.float32),
    spaces.Box(0, 255, (1, 9, 4), np.uint8),
    spaces.Box(0, 255, (4, 3, 20, 20), np.uint8),
    spaces.Box(0, 255, (4, 20, 20, 3), np.uint8),
]


@pytest.mark.parametrize("box", SEEN, ids=lambda box: f"{box.shape}-{box.dtype}")
def test_the_plug_in_sees_what_environments_see_and_gives_it_back(box: spaces.Box) -> None:
    ours, theirs = ObservationLayout.of(box, "x"), ObservationFormat(box)
    assert ours.space == theirs.space and ours.space.dtype == theirs.space.dtype
    raw = np.stack([box.sample() for _ in range(6)])
    laid_out = ours.batch(raw)
    for kind in (raw, torch.from_numpy(raw), raw.astype(np.float64)):
        read = theirs.read("observations", kind.reshape(2, 3, *box.shape), ("T", 3))
        assert read.numpy().dtype == laid_out.dtype and np.array_equal(read.flatten(0, 1).numpy(), laid_out)
    given = theirs.as_given(torch.from_numpy(laid_out))
    assert np.allclose(given.numpy(), raw)
    again = ObservationFormat(ours.space)  # of a run that is loaded: as it is
    assert again.space == ours.space and np.array_equal(again.read("x", laid_out, ("B",)).numpy(), laid_out)


def test_channels_first_can_be_said() -> None:
    box = spaces.Box(0, 255, (10, 20, 15), np.uint8)
    assert ObservationFormat(box).space.shape == (10, 20, 15)
    assert ObservationFormat(box, channels_first=True).space.shape == (20, 15, 10)
    assert ObservationFormat(spaces.Box(0, 255, (3, 9, 9), np.uint8), channels_first=False).space.shape == (3, 9, 9)


@pytest.mark.parametrize(
    "space",
    [
        *SEEN,
        spaces.Box(np.array([-1.0, -np.inf]), np.array([2.0, np.inf])),
        spaces.Discrete(4, start=2),
        spaces.MultiDiscrete([2, 5]),
        SeenBox(0, 1, (4,), np.uint8),
        PackedBox({"camera": SeenBox(0, 255, (8, 8, 3), np.uint8), "speed": SeenBox(-np.inf, np.inf, (2,))}),
    ],
    ids=str,
)
def test_a_space_comes_back_from_its_description(space: Any, tmp_path: Any) -> None:
    checkpoint.save({"space": described(space)}, tmp_path / "1.safetensors")
    again = from_description(checkpoint.load(tmp_path / "1.safetensors")["space"])
    assert type(again) is type(space) and again == space and again.dtype == space.dtype
    assert described(spaces.Text(3)) is None


def test_the_kinds_of_gymnasiums_own_tasks_are_those_of_their_spaces() -> None:
    for name, spec in gymnasium.registry.items():
        module = str(spec.entry_point).partition(":")[0]
        if not module.startswith("gymnasium.envs.") or "mujoco" in module:
            continue
        try:
            env = gymnasium.make(name)
        except (gymnasium.error.DependencyNotInstalled, ImportError):
            continue
        acts, sees = env.action_space, env.observation_space
        env.close()
        vector = isinstance(sees, spaces.Box) and len(sees.shape) == 1
        assert suits_control(name) == ("continuous" if isinstance(acts, spaces.Box) else "control" if vector else None)


def test_gymnasiums_own_tasks_are_not_made_to_choose_a_preset(monkeypatch: Any) -> None:
    monkeypatch.setattr(gymnasium, "make", lambda *_, **__: pytest.fail("an environment was made"))
    for name in ("CartPole-v1", "Pendulum-v1", "Hopper-v5", "LunarLanderContinuous-v3", "FrozenLake-v1"):
        suits_control(name)
