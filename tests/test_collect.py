"""Collection against a plain loop over steps and environments."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from builders import awakened
from deir.algorithm.metrics import Timer
from deir.algorithm.policy import Policy
from deir.algorithm.rollout import Position, collect
from deir.config import EnvConfig, NetworkConfig
from deir.envs import make_envs
from deir.envs.base import VectorEnvs
from deir.fast.ops import FastOps
from oracles import Collected, NaiveCollector
from scripted import BOTH, GOES_ON, KINDS, TERMINATES, TRUNCATES, ScriptedEnvs

STEPS, ENVS = 5, 3
SHAPES = {  # steps of each rollout, for each environment the steps that end an episode
    "none": (STEPS, [[], [], []]),
    "first step": (STEPS, [[0], [0], [0]]),
    "last step": (STEPS, [[4], [4], [4]]),
    "two in a row": (STEPS, [[1, 2], [3, 4], [0, 1]]),
    "every step": (STEPS, [range(5), range(5), range(5)]),
    "each its own": (STEPS, [[0, 4], [], [2]]),
    "rollouts of one step": (1, [[0], [1], []]),
    "one environment": (STEPS, [[2, 4]]),
    "a step alone": (1, [[0]]),
}


def scripted(kind: str, shape: str, late: bool) -> ScriptedEnvs:
    """Ends of all three sorts, of which no two neighbours are the same."""
    ends = np.zeros((STEPS, len(SHAPES[shape][1])), np.int64)
    for n, steps in enumerate(SHAPES[shape][1]):
        for t in steps:
            ends[t, n] = (TERMINATES, TRUNCATES, BOTH)[(t + n) % 3]
    assert GOES_ON == 0
    return ScriptedEnvs(kind, ends, late)


@dataclass
class Pair:
    """The package and the oracle, each with environments of its own."""

    make: Callable[[], VectorEnvs]
    bootstrap: bool = False
    norm: str = "batch"
    box_policy: str = "squashed"

    def __post_init__(self) -> None:
        self.envs, twin = self.make(), self.make()
        observations = self.envs.reset()
        network = NetworkConfig(features=8, hidden=6, mlp=7, norm=self.norm, box_policy=self.box_policy)
        self.policy = Policy(self.envs.observation_space, self.envs.action_space, network, FastOps())
        awakened(self.policy, torch.from_numpy(observations))
        self.position = Position(observations, np.ones(len(observations), bool), torch.zeros(len(observations), 6))
        self.generator = torch.Generator().manual_seed(1)
        self.naive = NaiveCollector(twin, self.policy, torch.Generator().manual_seed(1))

    def compare(self, steps: int) -> Collected:
        found, trace, self.position, played = collect(
            self.envs, self.policy.train(), self.position, steps, self.generator, self.bootstrap, Timer()
        )
        naive = self.naive.collect(steps)
        views = found.table.distinct
        close(views[found.ids], naive.stacked("observations"))
        close(views[found.next_ids], naive.stacked("followers"))
        assert torch.equal(found.final_indices, naive.stacked("replaced").flatten().nonzero()[:, 0])
        assert torch.equal(found.starts, naive.stacked("starts"))
        for name in ("terminated", "truncated", "valid"):
            assert torch.equal(getattr(found, name), naive.of_steps(name)), name
        assert torch.equal(found.dones, naive.of_steps("terminated") | naive.of_steps("truncated"))
        close(found.rewards, naive.of_steps("rewards").float())
        close(torch.from_numpy(played.rewards), naive.of_steps("rewards"))
        for name in ("states", "positions"):
            told = getattr(naive, name)
            ours = getattr(found, name)
            assert (ours is None) == (told[0] is None)
            assert ours is None or np.array_equal(ours.numpy(), np.stack(told).view(np.int64)), name
        close(found.actions, naive.stacked("actions"))
        close(trace.choices, naive.stacked("choices"))
        close(trace.hidden, naive.stacked("before"))
        close(trace.log_probs, naive.stacked("log_probs"))
        close(trace.values, naive.stacked("values"))
        # without bootstrapping nothing may be read behind an episode's end, and nothing is promised there
        counts = ~found.dones | self.bootstrap
        close(trace.next_values[counts], naive.stacked("next_values")[counts])
        close(torch.from_numpy(self.position.observations), torch.from_numpy(self.naive.observations))
        assert np.array_equal(self.position.starts, self.naive.starts)
        running = ~self.position.starts
        close(self.position.hidden[running], torch.stack(self.naive.hidden)[running])
        return naive


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Up to rounding, which whole numbers do not have."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late", [False, True], ids=["resets at once", "resets late"])
@pytest.mark.parametrize("bootstrap", [False, True], ids=["terminate", "bootstrap"])
def test_collection_is_that_of_a_plain_loop(shape, kind, late, bootstrap):
    """Two rollouts that follow each other, so that the memory, the episode and a pending reset cross their border."""
    pair = Pair(lambda: scripted(kind, shape, late), bootstrap)
    first, second = (pair.compare(SHAPES[shape][0]) for _ in range(2))
    assert (first.stacked("values") != 0).all() and (second.stacked("before")[0] != 0).any() == (
        not first.stacked("starts")[-1].all()
    )


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_normalisation_collects_the_same(norm, kind):
    Pair(lambda: scripted(kind, "each its own", False), True, norm).compare(STEPS)


REAL = {
    "minigrid": EnvConfig("Empty-Random-5x5", n_envs=ENVS, max_steps=7, layout_worker=False),
    "minigrid 3x3": EnvConfig("DoorKey-5x5", n_envs=ENVS, max_steps=7, view_size=3, layout_worker=False),
    "minigrid noise": EnvConfig("Empty-Random-5x5", n_envs=ENVS, max_steps=7, noise=0.1, layout_worker=False),
    "minigrid direction": EnvConfig("DoorKey-5x5", n_envs=ENVS, max_steps=7, direction=True, layout_worker=False),
    "gymnasium grid": EnvConfig("MiniGrid-Dynamic-Obstacles-5x5-v0", n_envs=ENVS, max_steps=7),
    "gymnasium vectors": EnvConfig("CartPole-v1", n_envs=ENVS, max_steps=15),
    "gymnasium late": EnvConfig("worlds:late_cartpoles", n_envs=ENVS),
    "gymnasium box": EnvConfig("Pendulum-v1", n_envs=ENVS, max_steps=7),
}


@pytest.mark.parametrize("name", REAL)
def test_collection_from_real_environments_is_that_of_a_plain_loop(name):
    pair = Pair(lambda: make_envs(REAL[name], seed=3), bootstrap=True)
    rollouts = [pair.compare(20) for _ in range(2)]
    assert any(step.truncated.any() or step.terminated.any() for found in rollouts for step in found.steps)
    assert all(step.valid.all() for found in rollouts for step in found.steps) == ("late" not in name)


@pytest.mark.parametrize("box_policy", ["squashed", "clipped"])
@pytest.mark.parametrize(
    ("kind", "envs"),
    [("vector_discrete", 3), ("image_multi", 3), ("dict_binary", 1), ("vector_box", 3), ("late_dictionaries", 2)],
)
def test_collection_with_any_kind_of_observations_and_actions_is_that_of_a_plain_loop(kind, envs, box_policy):
    pair = Pair(lambda: make_envs(EnvConfig(f"worlds:{kind}", n_envs=envs), seed=3), True, box_policy=box_policy)
    rollouts = [pair.compare(20) for _ in range(2)]
    assert any(step.terminated.any() or step.truncated.any() for found in rollouts for step in found.steps)
    assert all(step.valid.all() for found in rollouts for step in found.steps) == ("late" not in kind)
