"""Rollouts in compiled code against the same ones step by step."""

from typing import Any

import numpy as np
import pytest
import torch

from builders import awakened
from deir.algorithm.metrics import Timer
from deir.algorithm.ops import Ops
from deir.algorithm.policy import Policy
from deir.algorithm.rollout import Collected, Position, collect
from deir.config import EnvConfig, NetworkConfig
from deir.envs import make_envs
from deir.fast import playing
from deir.fast.ops import FastOps
from deir.fast.patch_cache import Level
from deir.fast.threads import use_threads

STEPS, ROLLOUTS, ENVS = 24, 3, 7
TASK = {"id": "DoorKey-5x5", "max_steps": 11}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # environment, network
    "views": (TASK, {}),
    "a key behind a door, boxes": ({"id": "ObstructedMaze-1Dlhb", "max_steps": 20}, {}),
    "pick-ups end": ({"id": "UnlockPickup", "max_steps": 15}, {}),
    "goals, without walls": ({"id": "Empty-Random-5x5", "time_penalty": False}, {}),
    "lava, 3x3": ({"id": "LavaGapS5", "max_steps": 20, "view_size": 3}, {}),
    "whole grids": ({**TASK, "full_view": True}, {}),
    "one layout, invisible obstacles": ({**TASK, "fixed_layout": 5, "invisible_obstacles": True}, {}),
    "episodes that end with the rollout": ({**TASK, "max_steps": STEPS // 2}, {}),
    "one environment": ({**TASK, "n_envs": 1}, {}),
    "mlp": (TASK, {"encoder": "mlp"}),
    "no normalisation": (TASK, {"norm": "none"}),
    "noise": ({**TASK, "noise": 0.1}, {}),
    "raw noise, whole grids": ({**TASK, "noise": 0.1, "noise_units": "raw", "full_view": True}, {}),
    "noise, mlp": ({**TASK, "noise": 0.1}, {"encoder": "mlp"}),
}
WHOLE = ("ids", "actions", "starts", "rewards", "terminated", "truncated", "valid", "final_indices", "final_ids")
TOLD = ("states", "positions")


class StepByStep(FastOps):
    def play(self, *given: Any) -> None:
        return None


class Run:
    """Rollouts that follow each other, with a policy that prefers some actions."""

    def __init__(self, name: str, ops: Ops, steps: int = STEPS) -> None:
        task, network = VARIANTS[name]
        self.envs = make_envs(EnvConfig(**{"n_envs": ENVS, "layout_worker": False, **task}), seed=3)
        observations = self.envs.reset()
        torch.manual_seed(0)
        small = NetworkConfig(**{"features": 12, "hidden": 6, "mlp": 9, **network})
        self.policy = Policy(self.envs.observation_space, self.envs.action_space, small, ops)
        awakened(self.policy, torch.from_numpy(observations))
        self.position = Position.at_episode_starts(observations, self.policy)
        self.generator, self.steps = torch.Generator().manual_seed(1), steps

    def collect(self, bootstrap: bool = True) -> Collected:
        found = collect(self.envs, self.policy, self.position, self.steps, self.generator, bootstrap, Timer())
        self.position = found.position
        return found


def compare(found: Collected, expected: Collected, exactly: bool = False) -> None:
    ours, theirs = found.rollout, expected.rollout
    assert torch.equal(ours.table.distinct, theirs.table.distinct)
    for name in (*WHOLE, *TOLD):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert np.array_equal(found.played.rewards, expected.played.rewards)  # in double precision
    assert np.array_equal(found.position.observations, expected.position.observations)
    assert np.array_equal(found.position.starts, expected.position.starts)
    tolerances = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-4, "atol": 1e-5}
    for name in ("hidden", "log_probs", "values", "next_values", "choices"):
        torch.testing.assert_close(getattr(found.trace, name), getattr(expected.trace, name), **tolerances, msg=name)
    torch.testing.assert_close(found.position.hidden, expected.position.hidden, **tolerances)


@pytest.mark.parametrize("name", VARIANTS)
def test_compiled_rollouts_are_those_step_by_step(name):
    fast, slow = Run(name, FastOps()), Run(name, StepByStep())
    ends = 0
    for number in range(ROLLOUTS):
        bootstrap = number != 1
        found, expected = fast.collect(bootstrap), slow.collect(bootstrap)
        compare(found, expected)
        ends += len(found.rollout.final_indices)
        ours, theirs = fast.envs.state_dict(), slow.envs.state_dict()
        assert str(ours["noise"]) == str(theirs["noise"])
        for part in ("cells", "x", "y", "directions", "carrying", "steps", "episodes", "observations"):
            assert np.array_equal(ours[part], theirs[part]), part
    assert ends > 2 * fast.envs.n_envs or name == "goals, without walls"
    step = slow.envs.step(np.full(slow.envs.n_envs, 2))  # the engine itself goes on where the loop has left it
    assert np.array_equal(fast.envs.step(np.full(fast.envs.n_envs, 2)).observations, step.observations)


@pytest.mark.parametrize("name", ["views", "mlp", "noise", "noise, mlp"])
def test_the_bits_are_the_same_with_any_number_of_threads(name):
    runs, found = {threads: Run(name, FastOps()) for threads in (1, 2, 4)}, {}
    try:
        for threads, run in runs.items():
            use_threads(threads, large=False)
            found[threads] = [run.collect() for _ in range(ROLLOUTS)]
    finally:
        use_threads(1, large=False)
    for threads in (2, 4):
        for one, other in zip(found[1], found[threads], strict=True):
            compare(other, one, exactly=True)


def test_there_is_room_for_any_number_of_patches(monkeypatch):
    plenty, little = Run("whole grids", FastOps()), Run("whole grids", FastOps())
    expected = [plenty.collect() for _ in range(ROLLOUTS)]
    known, larger = [], playing.larger

    def scarcely_larger(level: Level, names: int, room: int) -> Level:
        known.append(names)
        return larger(level, names, room // 2)  # what one step needs

    monkeypatch.setattr(playing, "PATCHES", 1)
    monkeypatch.setattr(playing, "larger", scarcely_larger)
    for each in expected:
        compare(little.collect(), each, exactly=True)
    assert max(known) > 0  # levels that were in use have grown


def test_what_the_loop_does_not_know_goes_step_by_step():
    class OtherEnvs:
        def __init__(self, envs: Any) -> None:
            self.envs = envs

        def __getattr__(self, name: str) -> Any:
            return getattr(self.envs, name)

    def compiled(run: Run) -> bool:
        noise = run.policy.actions.noise((2, run.envs.n_envs), run.generator)
        return run.policy.ops.play(run.envs, run.policy.eval(), run.position, noise) is not None

    assert compiled(Run("views", FastOps()))
    VARIANTS["direction"] = ({**TASK, "direction": True}, {})
    VARIANTS["layer normalisation"] = (TASK, {"norm": "layer"})
    try:
        assert not any(compiled(Run(name, FastOps())) for name in ("direction", "layer normalisation"))
    finally:
        del VARIANTS["direction"], VARIANTS["layer normalisation"]
    heard, wrapped = Run("views", FastOps()), Run("views", FastOps())
    heard.envs.on_end = lambda ended: None
    wrapped.envs = OtherEnvs(wrapped.envs)
    assert not compiled(heard) and not compiled(wrapped)


def test_noise_drawn_at_once_is_that_of_the_steps():
    once, often = (make_envs(EnvConfig(**TASK, n_envs=3, noise=0.1, layout_worker=False), seed=1) for _ in range(2))
    drawn = once.draw_noise(5)
    assert drawn.shape == (5, 3, 7, 7, 3) and drawn.std() > 0.9
    assert np.array_equal(drawn, np.concatenate([often.draw_noise(1) for _ in range(5)]))


def test_first_observations_have_the_noise_of_their_episode_alone():
    """Whoever ends earlier or later beside an environment, it sees the same."""
    envs = [make_envs(EnvConfig(**TASK, n_envs=3, noise=0.1, layout_worker=False), seed=1) for _ in range(2)]
    firsts = [one.reset() for one in envs]
    assert np.array_equal(*firsts)
    envs[0].begin(np.array([0]))
    again = [one.begin(np.array([0, 2]))[1] for one in envs]
    assert np.array_equal(*again) and not np.array_equal(again[0], firsts[0][2])
